//! The text of rules, as an operator writes it: TOML, one table `[[rule]]` for each rule in the
//! order in which they are asked, and `[default]`.
//!
//! A text that is not understood as a whole is refused as a whole, with the line: a rule that was
//! half understood would give files another level than the operator meant.

use crate::{
    args::{parse_chunk, parse_level},
    failure::{Exit, Failure},
};
use array::config::normalise;
use file::{ReadyRule, WEIGHT_MAX};
use format::{NewRule, RULE_COUNT_MAX, RULE_PART_MAX, RULES_BYTES_MAX, RuleShape, RulesFile, Uuid};
use layout::{Geometry, Level};
use std::path::Path;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use units::ChunkBytes;

/// What may stand in a rule one day, and is refused until then.
const NOT_YET: [&str; 9] = ["regex", "directory", "min-size", "on", "parity", "start", "floor", "on-rename", "free"];

/// What rules must fit.
pub(crate) struct Frame<'a> {
    /// The array's own level and chunk.
    pub(crate) own: RuleShape,
    pub(crate) member_count: usize,
    /// The paths below which the array's files are.
    pub(crate) prefixes: &'a [Vec<u8>],
    /// The most parity chunks per stripe for which the array's journal has room, if it has one.
    pub(crate) parity_count_max: Option<usize>,
}

/// One rule.
pub(crate) struct TextRule {
    pub(crate) name: String,
    under: Vec<u8>,
    patterns: Vec<String>,
    pub(crate) shape: RuleShape,
    line: usize,
}

/// A text that was understood.
pub(crate) struct RulesText<'t> {
    text: &'t str,
    pub(crate) default: RuleShape,
    pub(crate) rules: Vec<TextRule>,
}

/// What is wrong in a text, and where: an offset in bytes.
struct Flaw {
    at: usize,
    what: String,
    todo: String,
}

type Found<T> = Result<T, Flaw>;

fn flaw<T>(at: usize, what: impl Into<String>, todo: impl Into<String>) -> Found<T> {
    Err(Flaw { at, what: what.into(), todo: todo.into() })
}

/// The line, counted from 1, of an offset.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

impl<'t> RulesText<'t> {
    /// The rules that a text of the file `path` says.
    ///
    /// # Errors
    /// The line, and what is wrong with it; with the exit status of a wrong command line.
    pub(crate) fn parse(path: &Path, text: &'t str, frame: &Frame<'_>) -> Result<Self, Failure> {
        let at = |line: usize| format!("{}:{line}", path.display());
        let refused =
            |Flaw { at: offset, what, todo }| Failure::new(at(line_of(text, offset)), what, todo).with_exit(Exit::Usage);
        let parsed = parse(text, frame).map_err(refused)?;
        let mut ready: Vec<(ReadyRule, &TextRule)> = Vec::new();
        for rule in &parsed.rules {
            let patterns = rule.patterns.iter().map(String::as_bytes);
            let one = ReadyRule::new(&rule.under, patterns, rule.shape).map_err(|(index, why)| {
                let what = format!("the pattern '{}' {why}", rule.patterns[index]);
                Failure::new(at(rule.line), what, "'man cxlraid-policy' says what patterns mean").with_exit(Exit::Usage)
            })?;
            if let Some((_, before)) = ready.iter().find(|(before, _)| before.leaves_nothing_for(&one)) {
                let what = format!(
                    "no file is left for this rule: rule '{}' in line {} comes before it and takes them all",
                    before.name, before.line
                );
                return Err(Failure::new(at(rule.line), what, "put it before that rule, or leave it out").with_exit(Exit::Usage));
            }
            ready.push((one, rule));
            if ready.iter().map(|(rule, _)| rule.weight()).sum::<usize>() > WEIGHT_MAX {
                let what = "with this rule the patterns are too many, every choice of braces written out";
                return Err(Failure::new(at(rule.line), what, "write fewer or shorter ones").with_exit(Exit::Usage));
            }
        }
        let whole = Self { text, default: parsed.default, rules: parsed.rules };
        if whole.encode(Uuid::NIL, 0).len() > RULES_BYTES_MAX {
            return Err(Failure::new(path.display(), "is longer than 1 MiB", "write fewer rules").with_exit(Exit::Usage));
        }
        Ok(whole)
    }

    /// The file of rules that members are given.
    pub(crate) fn encode(&self, array: Uuid, revision: u64) -> Vec<u8> {
        let rules: Vec<_> = self
            .rules
            .iter()
            .map(|rule| NewRule {
                name: rule.name.as_bytes(),
                under: &rule.under,
                shape: rule.shape,
                patterns: rule.patterns.iter().map(String::as_bytes),
            })
            .collect();
        encoded(array, revision, self.default, &rules, self.text)
    }
}

/// A file without rules.
pub(crate) fn no_rules(array: Uuid, revision: u64, own: RuleShape) -> Vec<u8> {
    encoded::<core::iter::Empty<&[u8]>>(array, revision, own, &[], "")
}

fn encoded<'r, Patterns: Iterator<Item = &'r [u8]> + Clone>(
    array: Uuid,
    revision: u64,
    default: RuleShape,
    rules: &[NewRule<'r, Patterns>],
    text: &str,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    RulesFile::encode((array, revision), default, rules, text.as_bytes(), &mut |part| bytes.extend_from_slice(part));
    let checksum = RulesFile::checksum_of(&bytes);
    bytes.extend(checksum);
    bytes
}

struct Parsed {
    default: RuleShape,
    rules: Vec<TextRule>,
}

fn parse(text: &str, frame: &Frame<'_>) -> Found<Parsed> {
    let table = DeTable::parse(text).map_err(|error| Flaw {
        at: error.span().map_or(0, |span| span.start),
        what: error.message().to_owned(),
        todo: "the text is TOML; 'cxlraid policy --help' has an example".into(),
    })?;
    let mut default = Given::default();
    let mut tables = Vec::new();
    for (key, value) in table.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("default", DeValue::Table(table)) => default = Given::read(table, value.span().start, true)?,
            ("rule", DeValue::Array(rules)) => {
                for rule in rules.iter() {
                    match rule.get_ref() {
                        DeValue::Table(table) => tables.push((rule.span().start, table)),
                        _ => return flaw(rule.span().start, "a rule is a table", "write [[rule]] before each"),
                    }
                }
            }
            ("rule", _) => return flaw(key.span().start, "rules are a list of tables", "write [[rule]] with two brackets"),
            ("default", _) => return flaw(key.span().start, "the default is a table", "write [default]"),
            (other, _) => {
                return flaw(key.span().start, format!("'{other}' is not known here"), "there are [[rule]] and [default]");
            }
        }
    }
    if tables.len() > RULE_COUNT_MAX {
        return flaw(tables[RULE_COUNT_MAX].0, format!("there are more than {RULE_COUNT_MAX} rules"), "write fewer");
    }
    let default = default.shape(frame.own, frame)?;
    let rules = tables.into_iter().enumerate().map(|(index, (at, table))| rule(text, index, at, table, default, frame));
    Ok(Parsed { default, rules: rules.collect::<Found<_>>()? })
}

fn rule(text: &str, index: usize, at: usize, table: &DeTable<'_>, default: RuleShape, frame: &Frame<'_>) -> Found<TextRule> {
    let given = Given::read(table, at, false)?;
    if given.level.is_none() && given.chunk.is_none() {
        return flaw(at, "the rule says neither 'level' nor 'chunk'", "say what its files get");
    }
    let shape = given.shape(default, frame)?;
    let under = given.under.map_or(Ok(Vec::new()), |(at, under)| below(at, &under, frame))?;
    Ok(TextRule {
        name: given.name.map_or_else(|| (index + 1).to_string(), |(_, name)| name),
        under,
        patterns: given.patterns,
        shape,
        line: line_of(text, at),
    })
}

/// The directory that `under` names.
fn below(at: usize, under: &str, frame: &Frame<'_>) -> Found<Vec<u8>> {
    let trimmed = if under.len() > 1 { under.trim_end_matches('/') } else { "" };
    if !under.starts_with('/') || normalise(trimmed.as_bytes()) != trimmed.as_bytes() {
        return flaw(
            at,
            format!("'{under}' is not an absolute path without '.', '..' or doubled slashes"),
            "say for example /data",
        );
    }
    if trimmed.len() > format::PATH_BYTES_MAX {
        return flaw(at, "the path is too long", "no file can lie below it");
    }
    let is_below =
        |path: &[u8], above: &[u8]| path.strip_prefix(above).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
    let under = trimmed.as_bytes();
    if !frame.prefixes.iter().any(|prefix| is_below(under, prefix) || is_below(prefix, under)) {
        let prefixes: Vec<_> = frame.prefixes.iter().map(|prefix| String::from_utf8_lossy(prefix)).collect();
        return flaw(
            at,
            format!("no file of the array lies below '{trimmed}', so the rule can never match"),
            format!("the array's files lie below {}", prefixes.join(", ")),
        );
    }
    Ok(under.to_vec())
}

/// What a table says, each with its offset.
#[derive(Default)]
struct Given {
    at: usize,
    name: Option<(usize, String)>,
    under: Option<(usize, String)>,
    patterns: Vec<String>,
    level: Option<(usize, Level)>,
    chunk: Option<(usize, ChunkBytes)>,
}

impl Given {
    fn read(table: &DeTable<'_>, at: usize, is_default: bool) -> Found<Self> {
        let mut given = Self { at, ..Self::default() };
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref().as_ref());
            match name {
                "level" => given.level = Some((at, level(value)?)),
                "chunk" => given.chunk = Some((at, chunk(value)?)),
                "name" if !is_default => given.name = Some((at, part(value)?)),
                "under" if !is_default => given.under = Some((at, string(value)?.to_owned())),
                "match" if !is_default => given.patterns = patterns(value)?,
                _ if NOT_YET.contains(&name) && !is_default => {
                    return flaw(
                        at,
                        format!("'{name}' is not supported yet"),
                        "a rule may say name, under, match, level and chunk",
                    );
                }
                _ if is_default => return flaw(at, format!("'{name}' is not known in [default]"), "it may say level and chunk"),
                _ => {
                    return flaw(
                        at,
                        format!("'{name}' is not known in a rule"),
                        "it may say name, under, match, level and chunk",
                    );
                }
            }
        }
        Ok(given)
    }

    /// The shape that is meant, where what is not said is as in `otherwise`.
    fn shape(&self, otherwise: RuleShape, frame: &Frame<'_>) -> Found<RuleShape> {
        let level = self.level.map_or(otherwise.level, |(_, level)| level);
        let chunk = self.chunk.map_or(otherwise.chunk, |(_, chunk)| chunk);
        let at = self.level.map_or(self.at, |(at, _)| at);
        if let (false, Some((at, _))) = (level.has_chunks(), self.chunk) {
            return flaw(
                at,
                format!("RAID {level} does not cut files into chunks"),
                "leave 'chunk' out, or choose another level",
            );
        }
        let shape = RuleShape { level, chunk };
        match frame.refusal(shape) {
            Some((what, todo)) => flaw(at, what, todo),
            None => Ok(shape),
        }
    }
}

impl Frame<'_> {
    /// Returns why no file of the array may have this shape, and what to do; None if files may.
    pub(crate) fn refusal(&self, RuleShape { level, chunk }: RuleShape) -> Option<(String, String)> {
        if let Err(error) = Geometry::new(level, self.member_count, chunk) {
            let text = format!("level {level} does not fit the array's members: {error}");
            let (what, todo) = text.split_once("; ").unwrap_or((&text, ""));
            return Some((what.to_owned(), todo.to_owned()));
        }
        if level != self.own.level && level.failures_max(self.member_count) < most_failures(self) {
            let what = format!("files of RAID {level} would not bear every loss that the array bears (RAID {})", self.own.level);
            return Some((what, "choose a level that does; less is not supported yet".to_owned()));
        }
        if self.parity_count_max.is_some_and(|most| level.parity_count() > most) {
            let what = format!("the array's journal has no room for the parity of RAID {level}");
            let todo = "set rules without that level, make the journal anew ('cxlraid journal'), then set these";
            return Some((what, todo.to_owned()));
        }
        None
    }
}

/// How many members the array's own level may do without where it is lucky in which these are.
fn most_failures(frame: &Frame<'_>) -> usize {
    match frame.own.level {
        Level::Raid01 | Level::Raid10 => frame.member_count / 2,
        level => level.failures_max(frame.member_count),
    }
}

fn string<'v>(value: &'v Spanned<DeValue<'_>>) -> Found<&'v str> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text),
        _ => flaw(value.span().start, "this is to be a text", "put it in quotes"),
    }
}

/// A text that is not too long for the file of rules.
fn part(value: &Spanned<DeValue<'_>>) -> Found<String> {
    let text = string(value)?;
    if text.is_empty() || text.len() > RULE_PART_MAX || text.chars().any(char::is_control) {
        return flaw(
            value.span().start,
            format!("this is to have 1 to {RULE_PART_MAX} bytes, and no control characters"),
            "shorten it",
        );
    }
    Ok(text.to_owned())
}

fn patterns(value: &Spanned<DeValue<'_>>) -> Found<Vec<String>> {
    let found = match value.get_ref() {
        DeValue::Array(patterns) => patterns.iter().map(part).collect::<Found<Vec<_>>>()?,
        _ => vec![part(value)?],
    };
    if found.is_empty() {
        return flaw(
            value.span().start,
            "a rule with an empty 'match' can never match",
            "leave 'match' out for all files below 'under'",
        );
    }
    if found.len() > RULE_PART_MAX {
        return flaw(value.span().start, format!("a rule has at most {RULE_PART_MAX} patterns"), "write several rules");
    }
    Ok(found)
}

/// The text of a number or a text.
fn word(value: &Spanned<DeValue<'_>>) -> Found<String> {
    match value.get_ref() {
        DeValue::Integer(number) => Ok(number.as_str().to_owned()),
        _ => string(value).map(str::to_owned),
    }
}

fn level(value: &Spanned<DeValue<'_>>) -> Found<Level> {
    let text = word(value)?;
    parse_level(&text).or_else(|error| {
        flaw(value.span().start, format!("'{text}' is not a level"), error.split_once("; ").map_or(&*error, |(_, todo)| todo))
    })
}

fn chunk(value: &Spanned<DeValue<'_>>) -> Found<ChunkBytes> {
    let text = word(value)?;
    if text == "whole" {
        return flaw(value.span().start, "chunk \"whole\" is not supported yet", "say for example \"1M\"");
    }
    parse_chunk(&text).or_else(|error| {
        let (what, todo) = error.split_once("; ").unwrap_or((&*error, ""));
        flaw(value.span().start, format!("'{text}' is not a chunk: {what}"), todo)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<(String, String, String)>, String> {
        let frame = Frame {
            own: RuleShape { level: Level::Raid5, chunk: ChunkBytes::DEFAULT },
            member_count: 3,
            prefixes: &[b"/data".to_vec(), b"/srv/x".to_vec()],
            parity_count_max: None,
        };
        let found = RulesText::parse(Path::new("f"), text, &frame).map_err(|failure| {
            assert_eq!(failure.exit, Exit::Usage);
            failure.to_string()
        })?;
        let bytes = found.encode(Uuid::NIL, 4);
        let file = RulesFile::decode(&bytes).unwrap();
        assert_eq!((file.text, file.revision), (text.as_bytes(), 4));
        let shown = |rule: format::Rule<'_>| {
            let patterns: Vec<_> = rule.patterns().map(String::from_utf8_lossy).collect();
            let [name, under] = [rule.name, rule.under].map(|text| String::from_utf8_lossy(text).into_owned());
            (format!("{name} {under}"), patterns.join(" "), format!("{} {}", rule.shape.level, rule.shape.chunk.bytes()))
        };
        Ok(file.rules().map(shown).collect())
    }

    #[test]
    fn a_text_is_understood() {
        let text = "\
# comment
[default]
chunk = \"4K\"
[[rule]]
name = \"media\"
under = \"/data/films/\"
match = [\"**/*.{avi,mpg}\", \"x\"]
level = 4
chunk = \"1M\"
[[rule]]
under = \"/\"
match = \"**/*.o\"
level = \"5\"
chunk = \"64\"
[[rule]]
level = 1
";
        let [media, objects, rest] = parsed(text).unwrap().try_into().unwrap();
        assert_eq!(media, ("media /data/films".into(), "**/*.{avi,mpg} x".into(), "4 1048576".into()));
        assert_eq!(objects, ("2 ".into(), "**/*.o".into(), "5 64".into()));
        assert_eq!(rest, ("3 ".into(), String::new(), "1 4096".into()));
        assert_eq!(parsed(""), Ok(vec![]));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            ("[[rule]]\nlevel = 7", "f:2: '7' is not a level"),
            ("[[rule]]\nlevel = 6", "f:2: level 6 does not fit the array's members"),
            ("[[rule]]\nlevel = 0", "f:2: files of RAID 0 would not bear every loss that the array bears (RAID 5)"),
            ("[[rule]]\nlevel = 10", "f:2: level 10 does not fit the array's members"),
            ("[default]\nlevel = 6", "f:2: level 6 does not fit the array's members"),
            ("[[rule]]\nlevel = 5\nmatch = 'a['", "f:1: the pattern 'a[' has a '['"),
            ("[[rule]]\nlevel = 5\nmatch = ['a', '/b']", "f:1: the pattern '/b' begins with a slash"),
            ("[[rule]]\nlevel = 5\n\n[[rule]]\nlevel = 1", "f:4: no file is left for this rule: rule '1' in line 1"),
            ("[[rule]]\nlevel = 5\nunder = '/home'", "f:3: no file of the array lies below '/home'"),
            ("[[rule]]\nlevel = 5\nunder = 'data'", "f:3: 'data' is not an absolute path"),
            ("[[rule]]\nlevel = 5\nunder = '/data/../x'", "f:3: '/data/../x' is not an absolute path"),
            ("[[rule]]\nlevel = 5\nmatch = []", "f:3: a rule with an empty 'match' can never match"),
            ("[[rule]]\nunder = '/data'", "f:1: the rule says neither"),
            ("[[rule]]\nlevel = 1\nchunk = '4K'", "f:3: RAID 1 does not cut"),
            ("[[rule]]\nlevel = 5\nchunk = '3K'", "f:3: '3K' is not a chunk"),
            ("[[rule]]\nlevel = 5\nchunk = 'whole'", "f:3: chunk \"whole\" is not supported yet"),
            ("[[rule]]\nlevel = 5\non = ['a']", "f:3: 'on' is not supported yet"),
            ("[[rule]]\nlevel = 5\nregex = 'a'", "f:3: 'regex' is not supported yet"),
            ("[[rule]]\nlevle = 5", "f:2: 'levle' is not known in a rule"),
            ("[default]\nunder = '/data'", "f:2: 'under' is not known in [default]"),
            ("[rule]\nlevel = 5", "f:1: rules are a list of tables"),
            ("x = 1", "f:1: 'x' is not known here"),
            ("[[rule]]\nlevel = 5\nlevel = 6", "f:3: "),
            ("[[rule]\n", "f:1: "),
            ("[[rule]]\nlevel = true", "f:2: this is to be a text"),
            ("[[rule]]\nlevel = 5\nname = ''", "f:3: this is to have 1 to 255 bytes"),
        ] {
            let said = parsed(text).unwrap_err();
            assert!(said.starts_with(&format!("cxlraid: {expected}")), "{text:?}: {said}");
        }
    }
}
