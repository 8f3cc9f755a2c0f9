//! A deputy's own descriptor table, which begins as a copy of the program's and is made empty but for
//! what the call names.

use crate::call::Call;
use crate::calls::links::paths_of;
use crate::calls::paths;
use crate::shortage::{can_be_served_apart, can_be_served_apart_for_guest};
use crate::table::{ROWS, Row};
use heap::vec::Vec;
use linux_raw_sys::general as nr;
use sys::OsError;
use sys::raw::syscall;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sys::rustix::thread::{UnshareFlags, unshare_unsafe};
use units::MEMBER_COUNT_MAX;

/// A deputy allows itself so many numbers, as far as the hard limit does.
const DEPUTY_LIMIT: u64 = 1024;

/// With so many free numbers a deputy can do everything that a call needs once it is attached: files on
/// all members, and some more.
const ENOUGH: usize = MEMBER_COUNT_MAX + 8;

/// Standard input, output and error.
const STANDARD: [u32; 3] = [0, 1, 2];

/// In a deputy of a guest that has the guest's descriptors: tells whether numbers are short, and the
/// deputy has a table of its own from here on. That is for calls that return no descriptor. What a
/// descriptor stands for the deputy finds out by opening it on each member, and would tell something
/// else than EMFILE.
pub(crate) fn leave_full_table(call: &Call) -> bool {
    if !(can_be_served_apart(call.number) || can_be_served_apart_for_guest(call.number)) {
        return false;
    }
    // SAFETY: what is open here the deputy, a process with one thread, has by number alone.
    if unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_err() {
        return false;
    }
    let open_one = |_| open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let free: Result<Vec<_>, _> = (0..ENOUGH).map(open_one).collect();
    free.is_err_and(|error| error == OsError::MFILE)
}

/// In a deputy with descriptors of its own: closes all but those that the call may mean, and raises the
/// soft limit as far as needed.
pub(crate) fn make_room(call: &Call) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DEPUTY_LIMIT, |hard| hard.min(DEPUTY_LIMIT));
    if limit.current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    let mut next = 0;
    for number in kept(call, &ROWS[call.number]) {
        if next < number {
            close_range(next, number - 1);
        }
        next = next.max(number + 1);
    }
    close_range(next, u32::MAX);
}

/// The numbers that a call may mean, ascending: its descriptors, and every number that stands in a
/// path, as in `/proc/self/fd/7/name`.
fn kept(call: &Call, row: &Row) -> Vec<u32> {
    let mut kept = Vec::from(STANDARD);
    let descriptors = (0..call.args.len()).filter(|index| row.descriptors >> index & 1 == 1);
    kept.extend(descriptors.map(|index| call.descriptor(index)).filter(|&number| number >= 0).map(|number| number as u32));
    for path in paths_of(call, row) {
        let Ok(text) = paths::text(call.args[path]) else { continue };
        let numbers = text.split(|&byte| byte == b'/').filter_map(|part| core::str::from_utf8(part).ok()?.parse::<u32>().ok());
        kept.extend(numbers.filter(|&number| number < u32::MAX));
    }
    kept.sort_unstable();
    kept
}

fn close_range(first: u32, last: u32) {
    // SAFETY: numbers of this process alone, which uses none of them any more.
    unsafe { syscall(nr::__NR_close_range as usize, [first as usize, last as usize, 0, 0, 0, 0]) };
}
