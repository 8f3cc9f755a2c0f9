//! The privileges that a file gives to whoever executes it: the setuid bit, the setgid bit, and
//! file capabilities (the extended attribute `security.capability`).
//!
//! A file system takes them away before it lets a process write that lacks CAP_FSETID (capabilities
//! always), since the program is no longer what its owner gave them to. A store makes no system
//! call, so the kernel cannot do it. So the first write after the privileges may have changed looks
//! at the file. If the file gives any, the backing files are truncated to the length that they
//! have: a call that changes no byte, and before which the kernel takes from each what this
//! process' credentials do not let it keep.
//!
//! What is known of a file is one word that all processes share (`SharedFile::privileges`). Its
//! lowest bit, [`NONE`], says that the file gives none. The rest counts the changes by which it may
//! have come to give some. Whoever makes such a change raises the count afterwards, which clears
//! the bit. Whoever looks stores the bit only if the count is what it was before the look.

use crate::stripes::Blocks;
use crate::{Files, Inode, key};
use array::SharedFile;
use core::sync::atomic::Ordering;
use dax::Backing;
use format::Attribute;
use sys::OsError;
use sys::rustix::fs::{Mode, fchmod, fgetxattr, fremovexattr, fstat, ftruncate};
use units::MemberSet;

/// The file gives no privileges.
const NONE: u32 = 1;
/// The setuid and the setgid bit.
pub const SET_ID: u32 = 0o6000;
/// The extended attribute that holds file capabilities.
pub const CAPABILITIES: &core::ffi::CStr = c"security.capability";

impl Inode {
    /// Takes the file's privileges away as far as this process' credentials do not let it keep
    /// them. To be called before the file's bytes are changed for a program, inside
    /// [`Self::with_lanes`] and with no lock held.
    ///
    /// # Errors
    /// `IO` if more members failed than the level bears; `INTR`.
    #[inline]
    pub(crate) fn drop_privileges(&self) -> Result<(), OsError> {
        let known = self.shared().privileges.load(Ordering::Acquire);
        if known & NONE != 0 { Ok(()) } else { self.look_and_drop(known) }
    }

    #[cold]
    fn look_and_drop(&self, known: u32) -> Result<(), OsError> {
        if self.gives_privileges() {
            self.change_size_locked(|_| {
                let held = self.lock_stripes(Blocks::ALL)?;
                let truncated = self.on_members(truncate_to_own_length);
                drop(held);
                truncated
            })?;
            if self.gives_privileges() {
                // This process may keep them; the next one to write may not.
                return Ok(());
            }
        }
        let _ = self.shared().privileges.compare_exchange(known, known | NONE, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    /// Notes of a file that the caller has just made, without a set-ID bit, that it gives no
    /// privileges. The namespace lock is held, so nobody has changed that yet.
    pub fn note_made_without_privileges(&self) {
        self.shared().privileges.fetch_or(NONE, Ordering::AcqRel);
    }

    /// Whether any member in use says so: a process that died may have taken them away on some
    /// only.
    pub(crate) fn gives_privileges(&self) -> bool {
        self.in_use().any(|(_, backing)| gives(backing))
    }

    /// Takes privileges away that the backing files of members give which were made anew, and those
    /// of the others do not: the file was written without these members.
    pub(crate) fn drop_privileges_on(&self, made: MemberSet) {
        let Some((_, whole)) = self.in_use().find(|(slot, _)| !made.contains(*slot)) else { return };
        for (_, backing) in self.in_use().filter(|(slot, _)| made.contains(*slot)) {
            if !gives(backing) || gives(whole) {
                continue;
            }
            // By itself the kernel takes them away only if this process must not keep them.
            let _ = truncate_to_own_length(backing);
            if let Ok(stat) = whole.fd().and_then(fstat) {
                let _ = backing.fd().and_then(|fd| fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777)));
            }
            let _ = backing.fd().and_then(|fd| fremovexattr(fd, CAPABILITIES));
        }
    }

    /// Notes that the file may give privileges from now on.
    pub fn note_privileges(&self) {
        note(self.shared());
    }
}

impl Files {
    /// Notes that a file may give privileges from now on, whether anybody has it open or not.
    pub fn note_privileges(&self, attribute: Attribute) {
        if let Some(shared) = self.array().runtime().find_file(key(attribute.inode, attribute.generation)) {
            note(shared);
        }
    }

    /// Notes that any file may give privileges from now on.
    pub fn note_privileges_of_any(&self) {
        self.array().runtime().entered_files().for_each(note);
    }
}

fn gives(backing: &Backing) -> bool {
    // What cannot be asked is no reason to refuse a write: the member's next call tells what is
    // wrong with it.
    backing.fd().and_then(fstat).is_ok_and(|stat| stat.st_mode & SET_ID != 0)
        || backing.fd().and_then(|fd| fgetxattr(fd, CAPABILITIES, &mut [0u8; 0][..])).is_ok()
}

/// All stripe locks are held: who gets space within the size holds one, and may make the backing
/// file longer meanwhile.
fn truncate_to_own_length(backing: &Backing) -> Result<(), OsError> {
    match ftruncate(backing.fd()?, backing.bytes()?) {
        // Nothing is wrong with the member: its file system lets nobody truncate this file.
        Err(OsError::PERM | OsError::TXTBSY) => Ok(()),
        result => result,
    }
}

fn note(shared: &SharedFile) {
    let raised = |word: u32| Some((word & !NONE).wrapping_add(NONE << 1));
    let _ = shared.privileges.fetch_update(Ordering::AcqRel, Ordering::Relaxed, raised);
}
