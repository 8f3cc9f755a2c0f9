//! The room that the array has for bytes of files (statfs(2)).
//!
//! Every member holds as much of a file as every other, so the fullest member sets the limit. Each
//! byte that is free there gives room for as many bytes of files as a stripe has data chunks: what
//! the level costs is not counted as room. The level is the array's own, whatever level rules give
//! to single files.

use crate::{Namespace, ProgramPath, Reached};
use sys::Result;
use sys::rustix::fs::{OFlags, StatFs, fstatfs};

impl Namespace {
    /// statfs(2).
    pub fn statfs<'p>(&self, path: impl Into<ProgramPath<'p>>) -> Result<Reached<StatFs>> {
        self.find(path.into(), OFlags::PATH | OFlags::CLOEXEC, true)?.and_then(|_| self.fstatfs())
    }

    /// fstatfs(2), the same for every descriptor.
    pub fn fstatfs(&self) -> Result<StatFs> {
        let mut whole: StatFs = self.on_first(|root| fstatfs(root))?;
        let unit = whole.f_bsize.max(1) as u64;
        for slot in self.array().in_use().iter() {
            let Ok(member) = fstatfs(self.root(slot)?) else { continue };
            let in_units = |blocks: u64| (u128::from(blocks) * member.f_bsize as u128 / u128::from(unit)) as u64;
            whole.f_blocks = whole.f_blocks.min(in_units(member.f_blocks));
            whole.f_bfree = whole.f_bfree.min(in_units(member.f_bfree));
            whole.f_bavail = whole.f_bavail.min(in_units(member.f_bavail));
            whole.f_files = whole.f_files.min(member.f_files);
            whole.f_ffree = whole.f_ffree.min(member.f_ffree);
        }
        let columns = self.array().default_geometry().data_columns() as u64;
        for blocks in [&mut whole.f_blocks, &mut whole.f_bfree, &mut whole.f_bavail] {
            *blocks = blocks.saturating_mul(columns);
        }
        Ok(whole)
    }
}
