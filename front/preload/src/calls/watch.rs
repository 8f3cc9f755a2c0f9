//! Calls that name a file to the kernel for good: inotify, fanotify, file handles. The anchor stands for the file.
//!
//! Changes of names and attributes are made on the anchor like on every member, so they are seen. Data is stored, not written: there is no
//! IN_MODIFY for it.

use super::on_path::{self, At};
use crate::array;
use crate::dispatch::{Call, Verdict};
use linux_raw_sys::general::{__NR_fanotify_mark, __NR_inotify_add_watch, AT_SYMLINK_FOLLOW};
use namespace::Reached;
use sys::OsError;

/// inotify_add_watch, fanotify_mark, name_to_handle_at.
pub(crate) fn by_anchor(call: &mut Call) -> Verdict {
    const IN_DONT_FOLLOW: usize = 0x0200_0000;
    const FAN_MARK_DONT_FOLLOW: usize = 4;
    let (at, follow) = if call.number == __NR_inotify_add_watch as usize {
        (At::cwd(1), call.args[2] & IN_DONT_FOLLOW == 0)
    } else if call.number == __NR_fanotify_mark as usize {
        (At::directory(3, 4), call.args[1] & FAN_MARK_DONT_FOLLOW == 0)
    } else {
        (At::directory(0, 1), call.args[4] as u32 & AT_SYMLINK_FOLLOW != 0)
    };
    let act = |path: &[u8]| -> Result<Reached<()>, OsError> {
        let namespace = array::namespace()?;
        match namespace.resolve(path, follow)? {
            Reached::Array(path) => namespace.anchor_path(&path).map(Reached::Host),
            Reached::Host(path) => Ok(Reached::Host(path)),
        }
    };
    on_path::serve(call, at, act, |()| Ok(0))
}

/// Calls so new that every program can do without: not there on array paths.
pub(crate) fn absent(call: &mut Call) -> Verdict {
    on_path::serve(call, At::directory(0, 1), |_| Err::<Reached<()>, _>(OsError::NOSYS), |()| Ok(0))
}
