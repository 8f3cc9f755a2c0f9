//! mount and umount2: binding a directory of the array onto another is done on every member. What else is mounted is the host's affair.

use super::border::Looks;
use super::on_path::{self, At};
use super::paths::{self, Where};
use crate::array;
use crate::dispatch::{Call, Verdict};
use linux_raw_sys::general::{MS_BIND, MS_REC, MS_SILENT};

pub(crate) fn mount(call: &mut Call) -> Verdict {
    let flags = call.args[3] as u32;
    // In old programs the upper half is a magic number.
    let flags = if flags & 0xffff_0000 == 0xc0ed_0000 { flags & 0xffff } else { flags };
    let binds = flags & MS_BIND != 0 && flags & !(MS_BIND | MS_REC | MS_SILENT) == 0;
    let at = [At::cwd(0).by_name(), At::cwd(1).by_name()];
    if !binds || at.iter().any(|at| matches!(at.locate(call), Where::Host)) {
        return Verdict::Pass;
    }
    // The kernel reads the type, though it needs none.
    if call.args[2] != 0
        && let Err(error) = paths::text(call.args[2])
    {
        return Verdict::error(error);
    }
    on_path::serve_two(call, at, Looks::Rename, |from, to| array::namespace()?.bind_mount(from, to, flags & MS_REC != 0))
}

pub(crate) fn unmount(call: &mut Call) -> Verdict {
    on_path::serve(call, At::cwd(0).by_name(), |path| array::namespace()?.unmount(path, call.args[1] as u32), |()| Ok(0))
}
