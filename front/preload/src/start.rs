//! The constructor: what happens before the program's own first instruction.
//!
//! Without a `CXLRAID_MOUNTS` or `CXLRAID_LEVEL` setting nothing at all happens. Otherwise, with
//! every signal blocked: remember environment and process, take over the signal actions, adopt
//! inherited descriptors, patch.

use crate::environment::{Auxiliary, Environment, find};
use crate::mask::set_mask;
use crate::report::report;
use crate::{calls, coverage, dispatch, filter, inherit, loader, own, patch, process, signals, sud, unreached};
use core::ffi::{c_char, c_int};
use heap::boxed::Box;
use heap::string::String;
use heap::vec::Vec;
use linux_raw_sys::general::__NR_exit_group;
use sys::raw::syscall;
use units::Shown;

/// What a shell says of a program that it could not execute.
const NOT_EXECUTED: usize = 126;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

/// What the dynamic linker calls first.
///
/// # Safety
/// The arguments are not believed: glibc hands over the argument count, the arguments, and the
/// environment on the first stack; musl nothing.
unsafe extern "C" fn construct(count: c_int, arguments: *const *const c_char, variables: *const *const c_char) {
    let Some(variables) = loader::first_environment(count, arguments, variables) else { return };
    // SAFETY: the environment is the one on the first stack, followed by the auxiliary vector.
    let (wanted, auxiliary) = unsafe {
        let wanted = [&b"CXLRAID_MOUNTS"[..], b"CXLRAID_LEVEL"].into_iter().any(|name| find(variables, name).is_some());
        (wanted, Auxiliary::after(variables))
    };
    // SAFETY: constructors run, and this library's is the first of them.
    unsafe { loader::let_sanitizer_be_first(&auxiliary) };
    if !wanted || auxiliary.secure {
        return;
    }
    // SAFETY: as above.
    if let Some(why) = unsafe { loader::obstacle(&auxiliary) } {
        // SAFETY: the environment on the first stack.
        return stand_aside(Box::leak(Box::new(unsafe { Environment::copy(variables) })), why);
    }
    // Not of faults: copies behind guards are made here already, as of an inherited descriptor's
    // file.
    let mask = set_mask(!signals::never_blocked());
    // What others hold for long is not waited for without hearing those that the program is to be
    // ended by.
    sys::rest::let_in(Some(mask & !signals::never_blocked()));
    // SAFETY: as above; no other thread runs yet.
    unsafe { begin(variables, &auxiliary) };
    sys::rest::let_in(None);
    signals::inherit_mask(mask);
    set_mask(mask & !signals::never_blocked());
}

/// Leaves the program to the kernel, with nothing of the array in its hands. Says so, unless the array
/// is mounted for such programs (`cxlraid run --mount`) and nothing was taken from this one.
#[cold]
fn stand_aside(environment: &'static Environment, why: &str) {
    own::set_environment(environment);
    let inherited = crate::array::inherited(environment);
    let count = inherited.len();
    let closed = if count == 0 { String::new() } else { heap::format!(" and {count} open files of it are closed") };
    let moved = match unreached::leave_directory(count) {
        Ok(None) => String::new(),
        Ok(Some((place, inside))) => {
            heap::format!("; it starts in {}, where nothing can be made, and not in {}", Shown(place.to_bytes()), Shown(&inside))
        }
        Err(reason) => {
            report!("this program {why}; it is ended, since it would work on one member alone{reason}");
            loop {
                // SAFETY: the process ends.
                unsafe { syscall(__NR_exit_group as usize, [NOT_EXECUTED, 0, 0, 0, 0, 0]) };
            }
        }
    };
    if !crate::calls::apart::may_end() {
        report!("this program {why}, so it does not see the array itself{closed}{moved}; programs it starts may");
    } else if count != 0 || !moved.is_empty() {
        report!("this program {why}, so it uses the array through its mount{closed}{moved}");
    }
    crate::array::give_up(&inherited);
}

/// # Safety
/// As for [`construct`]; signals are blocked and there is one thread.
unsafe fn begin(variables: *const *const c_char, auxiliary: &Auxiliary) {
    #[cfg(not(test))]
    crate::arch::entry::prepare();
    process::start();
    let room = sys::low_limit::make_room(|| !::array::runtime::is_filtered());
    crate::arch::entry::place_stacks();
    sys::file_limit::refresh();
    // SAFETY: the caller's promise.
    unsafe { crate::needed::take_back(variables) };
    // SAFETY: as above.
    let environment = Box::leak(Box::new(unsafe { Environment::copy(variables) }));
    own::set_environment(environment);
    // SAFETY: the caller's promise.
    unsafe { loader::note_name(auxiliary) };
    if let Some(path) = environment.get_c_str(b"CXLRAID_TRACE") {
        coverage::start(path);
    }
    if let Some(path) = environment.get_c_str(b"CXLRAID_DEBUG_SUD") {
        sud::prepare(path);
    }
    // The descriptors are listed before the library opens its own: the kernel makes an entry of /proc
    // for each that it lists.
    let mut inherited = Vec::new();
    inherit::descriptors(|descriptor| inherited.push(descriptor));
    // SAFETY: the library's own header and segments.
    if let Some(image) = unsafe { patch::elf::Image::at(own::address()) } {
        let text = image.texts().next().unwrap_or_default();
        own::set_text(image.bias.wrapping_add(text.start) as usize..image.bias.wrapping_add(text.end) as usize);
    }
    // SAFETY: the caller's promise.
    let prepared = match unsafe { patch::objects::prepare(auxiliary, environment) } {
        Ok(prepared) => prepared,
        Err(why) => return stand_aside(environment, &why),
    };
    signals::start();
    calls::aio::serve_by(dispatch::serve);
    crate::stored::take_name(auxiliary);
    crate::array::start(environment);
    // The former program's library has left descriptors by which files are found, and without which
    // the process' locks on them go. High numbers of the program's own may lie above them.
    inherited.retain(|&descriptor| !crate::array::adopt_own(descriptor));
    // A file that was opened for writing later than for reading has a second one, which may be low.
    if crate::array::has_own_locks() {
        inherited.retain(|&descriptor| !crate::array::keeps_own_locks(descriptor));
    }
    inherited.into_iter().rev().for_each(crate::array::adopt);
    crate::array::forget_former_programs();
    crate::calls::directory::start();
    drop(room);
    prepared.patch();
    filter::open();
    if environment.get(b"CXLRAID_DEBUG_SITES").is_some() {
        patch::objects::report_counts();
    }
    sud::start();
}
