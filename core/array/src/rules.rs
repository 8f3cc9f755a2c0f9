//! The array's rules on its members: which level and chunk a new file gets. Here they are bytes;
//! core/file asks them.
//!
//! Invariants: the superblocks of all members in use say that files may have shapes of their own
//! before any rule is stored, so before any such file is made. A file of rules is durable on every
//! member in use before it counts on one. Of several files the one with the highest revision counts,
//! so a member that comes back cannot bring old rules along.

use crate::assemble::Array;
use crate::limited::write_fully;
use crate::member::{Member, read_fully};
use crate::regular::open_regular;
use crate::superblock::open_new;
use alloc::vec;
use alloc::vec::Vec;
use format::{INCOMPATIBLE_SHAPES, RULES_BYTES_MAX, RULES_FILE, RULES_NEW_FILE, RulesFile};
use sys::rustix::fs::{AtFlags, OFlags, fstat, fsync, ftruncate, renameat, unlinkat};
use sys::{AsFd as _, OwnedFd, Result};
use units::{MemberSet, Slot};

impl Array {
    /// Tells whether files may have another level or chunk than the array, as far as this process
    /// knows.
    #[inline]
    #[must_use]
    pub fn may_have_shapes(&self) -> bool {
        self.has_shapes || self.runtime.rules_epoch() != 0
    }

    /// The file of rules that counts, and the members in use that do not have it. None if no member
    /// in use has one.
    #[must_use]
    pub fn read_rules(&self) -> Option<(Vec<u8>, MemberSet)> {
        let (mut newest, mut holders): (Option<(u64, Vec<u8>)>, MemberSet) = (None, MemberSet::EMPTY);
        for slot in self.in_use().iter() {
            let Some((revision, bytes)) = self.rules_on(slot) else { continue };
            match &newest {
                Some((known, _)) if *known > revision => {}
                Some((known, _)) if *known == revision => holders = holders.with(slot),
                _ => {
                    holders = MemberSet::EMPTY.with(slot);
                    newest = Some((revision, bytes));
                }
            }
        }
        newest.map(|(_, bytes)| (bytes, self.in_use().minus(holders)))
    }

    fn rules_on(&self, slot: Slot) -> Option<(u64, Vec<u8>)> {
        let file = open_regular(self.members[slot].meta()?.as_fd(), RULES_FILE, OFlags::RDONLY).ok()?;
        // A length that somebody gave it by hand is none to be believed.
        let mut bytes = vec![0; (fstat(&file).ok()?.st_size as usize).min(RULES_BYTES_MAX)];
        let length = read_fully(&file, &mut bytes).ok()?;
        bytes.truncate(length);
        let revision = RulesFile::decode(&bytes).ok().filter(|rules| rules.array_uuid == self.uuid)?.revision;
        Some((revision, bytes))
    }

    /// Makes a file of rules the one that counts, and tells all processes. `rules` holds one that
    /// decodes. The namespace lock is held, so no other process changes the rules meanwhile.
    ///
    /// # Errors
    /// What the kernel says where a superblock or a file cannot be written: where none could be
    /// written, the rules that counted before count on. `IO` if too many members fail.
    pub fn write_rules(&self, rules: &[u8]) -> Result<()> {
        self.before_change()?;
        if !self.may_have_shapes() || !self.has_shapes_everywhere() {
            self.recording(|| self.rewrite_superblocks(|superblock| superblock.features.incompatible |= INCOMPATIBLE_SHAPES))?;
        }
        // Should this process die between two members, the others know that files may have shapes
        // before one has.
        self.runtime.raise_rules_epoch();
        let put = self.put_rules(rules, self.in_use());
        self.runtime.raise_rules_epoch();
        put
    }

    /// Gives members in use the file of rules that counts, which they lack. What cannot be written
    /// now is left to the next.
    pub fn spread_rules(&self, rules: &[u8], lacking: MemberSet) {
        if !lacking.is_empty() && self.has_shapes_everywhere() {
            let _ = self.put_rules(rules, lacking);
        }
    }

    /// Tells whether the superblocks of all members in use say that files may have shapes of their own.
    fn has_shapes_everywhere(&self) -> bool {
        let says_so = |member: &Member| {
            let superblock = member.meta().and_then(|meta| crate::superblock::read(meta).ok());
            superblock.is_some_and(|(superblock, _)| superblock.has_shapes())
        };
        self.in_use().iter().all(|slot| says_so(&self.members[slot]))
    }

    /// Puts a file of rules in the place of what these members have, on all of them or on none as
    /// long as none of them fails.
    fn put_rules(&self, rules: &[u8], members: MemberSet) -> Result<()> {
        let metas: Vec<(Slot, &OwnedFd)> = members.iter().filter_map(|slot| Some((slot, self.members[slot].meta()?))).collect();
        let written = metas.iter().try_for_each(|(_, meta)| {
            let file = open_new(meta, RULES_NEW_FILE, self.access)?;
            ftruncate(&file, 0)?;
            write_fully(&file, rules, 0)?;
            fsync(&file)
        });
        if let Err(error) = written {
            for (_, meta) in &metas {
                let _ = unlinkat(meta, RULES_NEW_FILE, AtFlags::empty());
            }
            return Err(error);
        }
        for &(slot, meta) in &metas {
            let put = renameat(meta, RULES_NEW_FILE, meta, RULES_FILE).and_then(|()| fsync(meta));
            self.after_call(slot, put)?;
        }
        self.before_change()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::test_array::three_members;
    use format::{NewRule, RuleShape};
    use layout::Level;
    use std::vec::Vec;
    use units::ChunkBytes;

    fn rules(array: &Array, revision: u64) -> Vec<u8> {
        let none: [NewRule<'_, core::iter::Empty<&[u8]>>; 0] = [];
        let shape = RuleShape { level: Level::Raid5, chunk: ChunkBytes::DEFAULT };
        let mut bytes = Vec::new();
        RulesFile::encode((array.uuid(), revision), shape, &none, b"", &mut |part| bytes.extend_from_slice(part));
        bytes.extend(RulesFile::checksum_of(&bytes));
        bytes
    }

    #[test]
    fn the_highest_revision_counts_and_goes_to_members_that_lack_it() {
        let (home, config) = three_members("rules-spread", Level::Raid5);
        let array = Array::attach(&config).unwrap();
        let [first, second] = [1, 2].map(|revision| rules(&array, revision));
        assert_eq!((array.read_rules(), array.may_have_shapes()), (None, false));
        array.write_rules(&first).unwrap();
        assert_eq!((array.read_rules(), array.may_have_shapes()), (Some((first.clone(), MemberSet::EMPTY)), true));
        // A command that ended between two members.
        std::fs::write(home.path("m1/.cxlraid/rules"), &second).unwrap();
        let lacking = MemberSet::EMPTY.with(0).with(2);
        assert_eq!(array.read_rules(), Some((second.clone(), lacking)));
        array.spread_rules(&second, lacking);
        assert_eq!(array.read_rules(), Some((second.clone(), MemberSet::EMPTY)));
        // What is damaged, or another array's, does not count.
        std::fs::write(home.path("m0/.cxlraid/rules"), &second[..40]).unwrap();
        let (foreign_home, foreign) = three_members("rules-foreign", Level::Raid5);
        let foreign = Array::attach(&foreign).unwrap();
        std::fs::write(home.path("m1/.cxlraid/rules"), rules(&foreign, 9)).unwrap();
        assert_eq!(array.read_rules(), Some((second, MemberSet::EMPTY.with(0).with(1))));
        for array in [&array, &foreign] {
            std::fs::remove_file(crate::runtime::segment_path(array.uuid())).unwrap();
        }
        drop(foreign_home);
    }

    #[test]
    fn the_superblocks_say_that_files_have_shapes_before_any_rule_counts() {
        let (home, config) = three_members("rules-bit", Level::Raid5);
        let array = Array::attach(&config).unwrap();
        let before = rules(&array, 1);
        array.write_rules(&before).unwrap();
        for slot in 0..3 {
            let superblock = std::fs::read(home.path(std::format!("m{slot}/.cxlraid/superblock"))).unwrap();
            assert!(format::Superblock::choose(&superblock).unwrap().0.has_shapes(), "{slot}");
        }
        // Where one member cannot take the new rules, the old ones count on.
        std::fs::create_dir(home.path("m2/.cxlraid/rules.new")).unwrap();
        assert!(array.write_rules(&rules(&array, 2)).is_err());
        assert_eq!(array.read_rules(), Some((before, MemberSet::EMPTY)));
        assert!(!home.path("m0/.cxlraid/rules.new").exists());
        std::fs::remove_file(crate::runtime::segment_path(array.uuid())).unwrap();
    }

    /// A command dies when its rules are on the members, and before it has said so once more.
    #[test]
    fn what_a_command_stored_that_died_is_read_by_processes_that_run() {
        const DIES: &str = "CXLRAID_TEST_DIES_AT_RULES";
        let mounts = |home: &std::path::Path| -> Vec<Vec<u8>> {
            (0..3).map(|slot| home.join(std::format!("m{slot}")).into_os_string().into_encoded_bytes()).collect()
        };
        if let Some(home) = std::env::var_os(DIES) {
            let mounts = mounts(std::path::Path::new(&home));
            let config = Config::new(Level::Raid5, None, &mounts, &[b"/data".to_vec()], Default::default()).unwrap();
            let array = Array::attach(&config).unwrap();
            array.runtime.with_namespace(|_| {
                array.runtime.raise_rules_epoch();
                array.put_rules(&rules(&array, 2), array.in_use()).unwrap();
                std::process::abort();
            });
        }
        let (home, config) = three_members("rules-died", Level::Raid5);
        let array = Array::attach(&config).unwrap();
        array.write_rules(&rules(&array, 1)).unwrap();
        let thread = std::thread::current();
        let mut this = std::process::Command::new(std::env::current_exe().unwrap());
        let status = this.args(["--exact", thread.name().unwrap()]).env(DIES, home.path("")).output().unwrap().status;
        assert!(!status.success());
        let before = array.runtime.rules_epoch();
        let during = array.runtime.with_namespace(|_| array.runtime.rules_epoch());
        assert!(during > before, "whoever has read the rules since the first sign reads them again");
        assert_eq!(array.read_rules().unwrap().0, rules(&array, 2));
        std::fs::remove_file(crate::runtime::segment_path(array.uuid())).unwrap();
    }
}
