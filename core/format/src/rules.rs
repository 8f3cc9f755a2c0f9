//! The rules: which level and chunk a new file gets, by its path.
//!
//! The file holds the rules as programs use them, and the text that an operator gave. It is made as
//! a whole under another name and then renamed, so it is never half written. The `revision` tells a
//! newer set of rules from an older one.

use crate::{Uuid, Version, checksum::crc32c};
use core::mem::size_of;
use layout::{Geometry, Level};
use units::ChunkBytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most bytes of the file.
pub const RULES_BYTES_MAX: usize = 1 << 20;
/// The most rules.
pub const RULE_COUNT_MAX: usize = 1000;
/// The most patterns of one rule, bytes of a name, and bytes of a pattern.
pub const RULE_PART_MAX: usize = 255;
const SUPPORTED: Version = Version { major: 1, minor: 0 };
const MAGIC: [u8; 8] = *b"CXLRRUL\0";
const CHECKSUM_BYTES: usize = 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 8],
    version_major: U16,
    version_minor: U16,
    file_bytes: U32,
    array_uuid: Uuid,
    revision: U64,
    rule_count: U32,
    text_bytes: U32,
    default_level: u8,
    default_chunk_shift: u8,
    reserved_50: [u8; 14],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RuleBytes {
    level: u8,
    chunk_shift: u8,
    name_bytes: u8,
    pattern_count: u8,
    under_bytes: U16,
    reserved_6: [u8; 2],
}

const RULES_HEADER_BYTES: usize = size_of::<HeaderBytes>();
const RULE_HEAD_BYTES: usize = size_of::<RuleBytes>();

/// Why a file is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RulesError {
    /// The file is cut short, or no file of rules.
    #[error("the file of rules is cut short or is none")]
    NotRules,
    /// The checksum does not fit.
    #[error("the file of rules is damaged (wrong checksum)")]
    BadChecksum,
    /// A newer program wrote the file.
    #[error("the file of rules has version {found}, this program reads up to {SUPPORTED}; use a newer cxlraid")]
    NewerVersion {
        /// The file's version.
        found: Version,
    },
    /// A field makes no sense.
    #[error("the {field} in the file of rules makes no sense")]
    Invalid {
        /// The field.
        field: &'static str,
    },
}

/// The level and chunk that a rule gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleShape {
    /// The level.
    pub level: Level,
    /// The chunk.
    pub chunk: ChunkBytes,
}

impl RuleShape {
    /// The level and chunk of a file that lies in this way.
    #[must_use]
    pub const fn of(geometry: &Geometry) -> Self {
        Self { level: geometry.level(), chunk: geometry.chunk() }
    }
}

/// One rule as it lies in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule<'a> {
    /// The rule's name, for people.
    pub name: &'a [u8],
    /// The directory below which the rule holds: an absolute logical path; empty for the whole
    /// array.
    pub under: &'a [u8],
    /// What a file gets for which the rule holds.
    pub shape: RuleShape,
    pattern_count: u8,
    patterns: &'a [u8],
}

impl<'a> Rule<'a> {
    /// The patterns of which one has to fit; none if the rule holds for every file below `under`.
    pub fn patterns(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.patterns;
        core::iter::from_fn(move || take_counted(&mut rest))
    }
}

/// A file of rules that has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RulesFile<'a> {
    /// The array.
    pub array_uuid: Uuid,
    /// Higher than that of every file of rules which the array had before.
    pub revision: u64,
    /// What files get for which no rule holds.
    pub default: RuleShape,
    /// What the operator gave.
    pub text: &'a [u8],
    rule_count: usize,
    rules: &'a [u8],
}

/// A rule to be stored.
pub struct NewRule<'a, Patterns> {
    /// See [`Rule::name`]: at most [`RULE_PART_MAX`] bytes.
    pub name: &'a [u8],
    /// See [`Rule::under`]: at most [`crate::PATH_BYTES_MAX`] bytes.
    pub under: &'a [u8],
    /// See [`Rule::shape`].
    pub shape: RuleShape,
    /// See [`Rule::patterns`]: at most [`RULE_PART_MAX`], each of at most so many bytes.
    pub patterns: Patterns,
}

impl<'a> RulesFile<'a> {
    /// Tells whether the bytes are a file of rules of the array that can be used.
    ///
    /// # Errors
    /// Why they are not.
    pub fn decode(file: &'a [u8]) -> Result<Self, RulesError> {
        let (header, _) = HeaderBytes::ref_from_prefix(file).map_err(|_| RulesError::NotRules)?;
        let end = header.file_bytes.get() as usize;
        if header.magic != MAGIC || end > file.len() || end < RULES_HEADER_BYTES + CHECKSUM_BYTES {
            return Err(RulesError::NotRules);
        }
        let (body, checksum) = file[..end].split_at(end - CHECKSUM_BYTES);
        if checksum != crc32c(&[body]).to_le_bytes() {
            return Err(RulesError::BadChecksum);
        }
        let found = Version { major: header.version_major.get(), minor: header.version_minor.get() };
        if found.major > SUPPORTED.major {
            return Err(RulesError::NewerVersion { found });
        }
        let invalid = |field| RulesError::Invalid { field };
        let (rules, text) = body[RULES_HEADER_BYTES..]
            .split_at_checked((body.len() - RULES_HEADER_BYTES).wrapping_sub(header.text_bytes.get() as usize))
            .ok_or(invalid("length of the text"))?;
        let rule_count = header.rule_count.get() as usize;
        let default = shape(header.default_level, header.default_chunk_shift).ok_or(invalid("default shape"))?;
        let decoded = Self { array_uuid: header.array_uuid, revision: header.revision.get(), default, text, rule_count, rules };
        if rule_count > RULE_COUNT_MAX || decoded.rules().count() != rule_count {
            return Err(invalid("number of rules"));
        }
        if decoded.rules().any(|rule| rule.patterns().count() != rule.pattern_count.into()) {
            return Err(invalid("number of patterns"));
        }
        Ok(decoded)
    }

    /// The rules, in the order in which they are asked.
    pub fn rules(&self) -> impl Iterator<Item = Rule<'a>> + use<'a> {
        let mut rest = self.rules;
        (0..self.rule_count).map_while(move |_| take_rule(&mut rest))
    }

    /// Gives the bytes of a file of rules to `put`, which appends them, and `finish`, which gets
    /// the checksum's bytes of what was put. Parts that are too long are for the caller to refuse.
    pub fn encode<'r, Patterns: Iterator<Item = &'r [u8]> + Clone>(
        (array_uuid, revision): (Uuid, u64),
        default: RuleShape,
        rules: &[NewRule<'r, Patterns>],
        text: &[u8],
        put: &mut impl FnMut(&[u8]),
    ) {
        let rule_bytes = |rule: &NewRule<'r, Patterns>| {
            let patterns: usize = rule.patterns.clone().map(|pattern| 1 + pattern.len()).sum();
            RULE_HEAD_BYTES + rule.name.len() + rule.under.len() + patterns
        };
        let file_bytes = RULES_HEADER_BYTES + rules.iter().map(rule_bytes).sum::<usize>() + text.len() + CHECKSUM_BYTES;
        put(HeaderBytes {
            magic: MAGIC,
            version_major: SUPPORTED.major.into(),
            version_minor: SUPPORTED.minor.into(),
            file_bytes: (file_bytes as u32).into(),
            array_uuid,
            revision: revision.into(),
            rule_count: (rules.len() as u32).into(),
            text_bytes: (text.len() as u32).into(),
            default_level: default.level.code(),
            default_chunk_shift: default.chunk.shift() as u8,
            reserved_50: [0; 14],
        }
        .as_bytes());
        for rule in rules {
            let head = RuleBytes {
                level: rule.shape.level.code(),
                chunk_shift: rule.shape.chunk.shift() as u8,
                name_bytes: rule.name.len() as u8,
                pattern_count: rule.patterns.clone().count() as u8,
                under_bytes: (rule.under.len() as u16).into(),
                reserved_6: [0; 2],
            };
            put(head.as_bytes());
            put(rule.name);
            put(rule.under);
            for pattern in rule.patterns.clone() {
                put(&[pattern.len() as u8]);
                put(pattern);
            }
        }
        put(text);
    }

    /// The last bytes of the file, after `body`, which [`Self::encode`] gave.
    #[must_use]
    pub fn checksum_of(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
        crc32c(&[body]).to_le_bytes()
    }
}

fn shape(level: u8, chunk_shift: u8) -> Option<RuleShape> {
    Some(RuleShape { level: Level::from_code(level)?, chunk: ChunkBytes::from_shift(chunk_shift.into())? })
}

/// Takes the next rule off the front.
fn take_rule<'a>(rest: &mut &'a [u8]) -> Option<Rule<'a>> {
    let (head, after) = RuleBytes::ref_from_prefix(rest).ok()?;
    let (name, after) = after.split_at_checked(head.name_bytes.into())?;
    let (under, after) = after.split_at_checked(head.under_bytes.get().into())?;
    let mut end = after;
    for _ in 0..head.pattern_count {
        take_counted(&mut end)?;
    }
    let patterns = &after[..after.len() - end.len()];
    *rest = end;
    Some(Rule { name, under, shape: shape(head.level, head.chunk_shift)?, pattern_count: head.pattern_count, patterns })
}

/// Takes bytes off the front before which stands how many they are.
fn take_counted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&count, after) = rest.split_first()?;
    let (taken, after) = after.split_at_checked(count.into())?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documented::assert_documented;

    const DEFAULT: RuleShape = RuleShape { level: Level::Raid5, chunk: ChunkBytes::DEFAULT };

    fn encoded() -> Vec<u8> {
        let shape = |level| RuleShape { level, chunk: ChunkBytes::DEFAULT };
        let [media, all]: [&[&[u8]]; 2] = [&[b"**/*.avi", b"*.mpg"], &[]];
        let rules = [
            NewRule { name: b"media", under: b"/data/films", shape: shape(Level::Raid4), patterns: media.iter().copied() },
            NewRule { name: b"", under: b"", shape: shape(Level::Raid0), patterns: all.iter().copied() },
        ];
        let mut bytes = Vec::new();
        let uuid = Uuid::from_random([7; 16]);
        RulesFile::encode((uuid, 3), DEFAULT, &rules, b"# text\n", &mut |part| bytes.extend_from_slice(part));
        bytes.extend(RulesFile::checksum_of(&bytes));
        bytes
    }

    #[test]
    fn every_field_is_documented() {
        assert_documented!(
            "rules.md",
            "Header",
            HeaderBytes,
            [
                magic,
                version_major,
                version_minor,
                file_bytes,
                array_uuid,
                revision,
                rule_count,
                text_bytes,
                default_level,
                default_chunk_shift,
                reserved_50,
            ]
        );
        assert_documented!(
            "rules.md",
            "Rule",
            RuleBytes,
            [level, chunk_shift, name_bytes, pattern_count, under_bytes, reserved_6,]
        );
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let bytes = encoded();
        let file = RulesFile::decode(&bytes).unwrap();
        assert_eq!((file.revision, file.default, file.text), (3, DEFAULT, &b"# text\n"[..]));
        let rules: Vec<_> = file.rules().collect();
        assert_eq!(rules.len(), 2);
        assert_eq!((rules[0].name, rules[0].under, rules[0].shape.level), (&b"media"[..], &b"/data/films"[..], Level::Raid4));
        assert_eq!(rules[0].patterns().collect::<Vec<_>>(), [&b"**/*.avi"[..], b"*.mpg"]);
        assert_eq!((rules[1].patterns().count(), rules[1].shape.level), (0, Level::Raid0));
        // What lies behind the end is not looked at.
        assert_eq!(RulesFile::decode(&[&bytes[..], b"more"].concat()).unwrap().rules().count(), 2);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let bytes = encoded();
        for length in 0..bytes.len() {
            assert!(RulesFile::decode(&bytes[..length]).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert!(RulesFile::decode(&flipped).is_err(), "{at}");
        }
    }

    #[test]
    fn fields_that_fit_the_checksum_and_make_no_sense_are_refused() {
        let changed = |at: usize, value: u8| {
            let mut bytes = encoded();
            let end = bytes.len() - CHECKSUM_BYTES;
            bytes[at] = value;
            let checksum = RulesFile::checksum_of(&bytes[..end]);
            bytes[end..].copy_from_slice(&checksum);
            RulesFile::decode(&bytes).err()
        };
        assert_eq!(changed(8, 2), Some(RulesError::NewerVersion { found: Version { major: 2, minor: 0 } }));
        assert_eq!(changed(10, 1), None);
        for (at, value, field) in [
            (40, 3, "number of rules"),
            (43, 1, "number of rules"),
            (46, 1, "length of the text"),
            (48, 3, "default shape"),
            (49, 99, "default shape"),
            (RULES_HEADER_BYTES, 7, "number of rules"),
            (RULES_HEADER_BYTES + 2, 255, "number of rules"),
        ] {
            assert_eq!(changed(at, value), Some(RulesError::Invalid { field }), "{at}");
        }
    }
}
