//! Which shape a new file gets: the array's rules as a process uses them.
//!
//! Rules are asked when a file is made and never again: the inode table says from then on which
//! shape the file has. A process reads the rules when it makes its first file, and again when the
//! runtime segment says that they have changed.

use crate::files::Files;
use crate::glob::{BadGlob, Glob};
use alloc::vec::Vec;
use array::Array;
use format::{Rule, RuleShape, RulesFile, Shape};
use sync::{LocalGuard, LocalLock};
use sys::OsError;
use units::MemberSet;

/// The most that the rules of an array may weigh together ([`ReadyRule::weight`]): some 2 MiB in
/// each program that makes files.
pub const WEIGHT_MAX: usize = 65_536;

/// One rule, ready to be asked.
pub struct ReadyRule {
    under: Vec<u8>,
    globs: Vec<Glob>,
    shape: RuleShape,
}

impl ReadyRule {
    /// Makes a rule for the paths below `under` that fit one of `patterns`, or for all of them if
    /// there are no patterns.
    ///
    /// # Errors
    /// The index (from 0) of the first pattern that cannot be understood, and the reason.
    pub fn new<'p>(
        under: &[u8],
        patterns: impl IntoIterator<Item = &'p [u8]>,
        shape: RuleShape,
    ) -> Result<Self, (usize, BadGlob)> {
        let mut globs = Vec::new();
        for (index, pattern) in patterns.into_iter().enumerate() {
            globs.extend(Glob::parse(pattern).map_err(|error| (index, error))?);
        }
        let under = under.strip_suffix(b"/").unwrap_or(under).to_vec();
        Ok(Self { under, globs, shape })
    }

    /// How much memory and time the rule takes: bytes and other parts of its patterns, with every
    /// choice of braces written out.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.globs.iter().map(Glob::weight).sum()
    }

    fn of(rule: &Rule<'_>) -> Option<Self> {
        Self::new(rule.under, rule.patterns(), rule.shape).ok()
    }

    /// Tells whether the rule holds for a file at a logical path.
    #[must_use]
    pub fn holds(&self, path: &[u8]) -> bool {
        match path.strip_prefix(&self.under[..]) {
            Some([b'/', below @ ..]) => self.globs.is_empty() || self.globs.iter().any(|glob| glob.fits(below)),
            _ => false,
        }
    }

    /// Tells whether no file is left for `other`, which is asked after this rule. The answer is false
    /// where that is not easily told.
    #[must_use]
    pub fn leaves_nothing_for(&self, other: &Self) -> bool {
        let is_same = self.under == other.under;
        let is_below = other.under.strip_prefix(&self.under[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let covers = |one: &Glob| self.globs.iter().any(|glob| glob.covers(one, is_same));
        let takes_all = self.globs.is_empty() || self.globs.iter().any(Glob::fits_everything);
        is_below && (takes_all || !other.globs.is_empty() && other.globs.iter().all(covers))
    }
}

/// The rules as this process last read them.
pub(crate) struct Rules {
    /// The runtime segment's `rules_epoch` when the rules were read; None if they never were.
    epoch: Option<u64>,
    rules: Vec<ReadyRule>,
    default: Option<RuleShape>,
}

impl Rules {
    pub(crate) const UNREAD: Self = Self { epoch: None, rules: Vec::new(), default: None };

    fn of(file: &[u8], epoch: u64) -> Self {
        let Ok(file) = RulesFile::decode(file) else { return Self { epoch: Some(epoch), ..Self::UNREAD } };
        // If one rule is not understood, or the rules weigh too much, there are none: without that
        // rule a later one would decide for its files.
        let (mut rules, mut weight) = (Vec::new(), 0);
        for rule in file.rules() {
            let Some(rule) = ReadyRule::of(&rule) else { return Self { epoch: Some(epoch), ..Self::UNREAD } };
            weight += rule.weight();
            if weight > WEIGHT_MAX {
                return Self { epoch: Some(epoch), ..Self::UNREAD };
            }
            rules.push(rule);
        }
        Self { epoch: Some(epoch), rules, default: Some(file.default) }
    }

    fn shape_at(&self, path: &[u8]) -> Option<RuleShape> {
        self.rules.iter().find(|rule| rule.holds(path)).map(|rule| rule.shape).or(self.default)
    }
}

/// The rules of the process, and the array's own shape.
pub(crate) struct Policy {
    own: Shape,
    rules: LocalLock<Rules>,
}

impl Policy {
    pub(crate) const fn new(own: Shape) -> Self {
        Self { own, rules: LocalLock::new(Rules::UNREAD) }
    }

    /// Keeps other threads from asking the rules as long as the result lives: a fork must not copy
    /// rules that are being read. A thread that asks the rules waits, while it does, for no lock that
    /// a forking thread holds.
    pub(crate) fn hold(&self) -> LocalGuard<'_, Rules> {
        self.rules.lock()
    }

    /// The shape of a file for which no rule says otherwise.
    pub(crate) const fn own(&self) -> Shape {
        self.own
    }
}

impl Files {
    /// Returns the shape of a file that is made at a logical path. The namespace lock is held.
    ///
    /// The file gets the array's own shape instead of that of the rules if the latter does not bear
    /// the loss of the members that are out, since such a file could be neither written nor read, or
    /// if it has more parity chunks per stripe than the array's journal has room for.
    pub(crate) fn shape_at(&self, path: &[u8]) -> Shape {
        let (array, own) = (self.array(), self.policy().own());
        if !array.may_have_shapes() {
            return own;
        }
        let mut rules = self.policy().rules.lock();
        let epoch = array.runtime().rules_epoch();
        if rules.epoch != Some(epoch) {
            *rules = read(array, epoch);
        }
        let found = rules.shape_at(path);
        drop(rules);
        let shape = found.and_then(|found| Shape::new(found.level, found.chunk, own.members(), own.start_slot()).ok());
        let is_fit = |shape: &Shape| {
            let geometry = shape.geometry();
            geometry.survives(array.runtime().out())
                && self.parity_count_max().is_none_or(|most| geometry.level().parity_count() <= most)
        };
        shape.filter(is_fit).unwrap_or(own)
    }

    /// Returns the shape that a file of this level and chunk has in the array.
    ///
    /// # Errors
    /// `INVAL` if no file of the array can have it: the level does not fit the number of members, the
    /// members do not say yet that files may have shapes of their own, or the array's journal has no
    /// room for the level's parity.
    pub fn shape_from(&self, wanted: RuleShape) -> Result<Shape, OsError> {
        let own = self.policy().own();
        let shape = Shape::new(wanted.level, wanted.chunk, own.members(), own.start_slot()).map_err(|_| OsError::INVAL)?;
        let has_room = self.parity_count_max().is_none_or(|most| shape.geometry().level().parity_count() <= most);
        let is_allowed = self.array().may_have_shapes() || shape.geometry() == own.geometry();
        if has_room && is_allowed { Ok(shape) } else { Err(OsError::INVAL) }
    }

    /// Replaces the rules of the array. `make` gets the revision that the new rules must have, and
    /// returns them as a file of rules ([`RulesFile`]) of this array.
    ///
    /// # Errors
    /// As for [`Array::write_rules`].
    pub fn set_rules(&self, make: impl FnOnce(u64) -> Vec<u8>) -> Result<(), OsError> {
        let array = self.array();
        array.runtime().with_namespace(|_| {
            let known = array.read_rules();
            let revision = known.and_then(|(file, _)| Some(RulesFile::decode(&file).ok()?.revision));
            array.write_rules(&make(revision.unwrap_or(0).saturating_add(1)))
        })
    }

    /// Gives the rules that count to those members in use that lack them, such as a member that was
    /// made anew.
    pub fn spread_rules(&self) {
        let array = self.array();
        if array.may_have_shapes() {
            array.runtime().with_namespace(|_| {
                if let Some((file, lacking)) = array.read_rules() {
                    array.spread_rules(&file, lacking);
                }
            });
        }
    }

    /// Returns the most parity chunks per stripe for which the array's journal has room; None without
    /// a journal.
    #[must_use]
    pub fn parity_count_max(&self) -> Option<usize> {
        self.array().journal().map(|journal| journal.header.parity_max())
    }

    /// Tells whether a file, by its own level, bears the loss of the members `out` together with those
    /// that have lost bytes of it already. True of a file without bytes, and of one that the inode
    /// table does not know.
    #[must_use]
    pub fn file_bears(&self, attribute: format::Attribute, out: MemberSet) -> bool {
        let Ok(record) = self.record(attribute) else { return true };
        let lost = record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost);
        let size = self.shared_if_open(attribute).map_or(record.size, array::SharedFile::size);
        size == 0 || record.geometry().survives(out.union(lost))
    }

    /// Returns the shape of a file.
    ///
    /// # Errors
    /// `IO` if the inode table does not know the file.
    pub fn shape_of(&self, attribute: format::Attribute) -> Result<Shape, OsError> {
        self.record(attribute).map(|record| record.shape)
    }

    /// Tells whether nothing of a file waits to be made good: no bytes wait for a resync or a rebuild,
    /// and no stores of mappings to be followed.
    ///
    /// # Errors
    /// As for [`Self::shape_of`].
    pub fn is_settled(&self, attribute: format::Attribute) -> Result<bool, OsError> {
        let record = self.record(attribute)?;
        Ok(record.resync.is_none() && record.flags & format::FLAG_MAPPED == 0 && !self.waits_in_journal(attribute))
    }

    /// Returns the size of a file in bytes, whether or not a process has the file open.
    ///
    /// # Errors
    /// As for [`Self::shape_of`].
    pub fn size_of(&self, attribute: format::Attribute) -> Result<u64, OsError> {
        let recorded = self.record(attribute)?.size;
        Ok(self.shared_if_open(attribute).map_or(recorded, array::SharedFile::size))
    }
}

/// Reads the array's rules. If none can be read now, the next file asks again.
fn read(array: &Array, epoch: u64) -> Rules {
    array.read_rules().map_or(Rules::UNREAD, |(file, _)| Rules::of(&file, epoch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Level;
    use units::ChunkBytes;

    fn rule(under: &str, patterns: &[&str]) -> ReadyRule {
        let shape = RuleShape { level: Level::Raid0, chunk: ChunkBytes::DEFAULT };
        ReadyRule::new(under.as_bytes(), patterns.iter().map(|text| text.as_bytes()), shape).unwrap()
    }

    #[test]
    fn a_rule_holds_below_its_directory_only() {
        let held = rule("/data/films", &[]);
        for (path, expected) in
            [("/data/films/a", true), ("/data/films/x/a", true), ("/data/films", false), ("/data/filmsx/a", false)]
        {
            assert_eq!(held.holds(path.as_bytes()), expected, "{path}");
        }
        let all = rule("", &["**/*.o", "data/x"]);
        for (path, expected) in [("/data/a.o", true), ("/a.o", true), ("/data/x", true), ("/x", false)] {
            assert_eq!(all.holds(path.as_bytes()), expected, "{path}");
        }
        assert!(rule("/", &[]).holds(b"/a"));
    }

    #[test]
    fn a_rule_that_an_earlier_one_leaves_nothing_is_known() {
        for (first, second, expected) in [
            (rule("", &[]), rule("/a", &["x"]), true),
            (rule("/a", &[]), rule("/a/b", &[]), true),
            (rule("/a/b", &[]), rule("/a", &[]), false),
            (rule("/a", &[]), rule("/ab", &[]), false),
            (rule("/a", &["**/*.o", "x"]), rule("/a", &["x", "y/*.o"]), true),
            (rule("/a", &["**/*.o"]), rule("/a/b", &["*.o", "*.c"]), false),
            (rule("/a", &["**/*.o"]), rule("/a/b", &["{x/,}*.o"]), true),
            (rule("/a", &["**/*"]), rule("/a/b", &[]), true),
        ] {
            assert_eq!(first.leaves_nothing_for(&second), expected);
        }
    }
}
