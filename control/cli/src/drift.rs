//! What rules say of the files that are there: which have another level or chunk than a new file at
//! their path would get (`cxlraid policy ARRAY drift`), and what members would hold if none had
//! (`cxlraid policy ARRAY plan FILE`). Nothing is changed here: a file keeps the level that it has.

use crate::{files::ArrayFiles, rules::shown, view::bytes_text};
use file::ReadyRule;
use format::{RuleShape, RulesFile};
use layout::Geometry;
use namespace::Namespace;
use std::{collections::HashSet, fmt::Write as _};
use units::Shown;

/// Rules that can be asked.
pub(crate) struct Ruling {
    /// Each rule with its name for messages and with what it gives a new file.
    rules: Vec<(String, ReadyRule, RuleShape)>,
    default: RuleShape,
    /// Who decides where no rule holds.
    otherwise: &'static str,
}

impl Ruling {
    /// Reads the rules of a file of rules, as it lies on members. `own` is the array's own level and
    /// chunk.
    pub(crate) fn of(file: Option<&[u8]>, own: RuleShape) -> Self {
        let Some(file) = file.and_then(|file| RulesFile::decode(file).ok()).filter(|file| !file.text.is_empty()) else {
            return Self { rules: Vec::new(), default: own, otherwise: "there are no rules, the array" };
        };
        let ready = |rule: format::Rule<'_>| {
            let ready = ReadyRule::new(rule.under, rule.patterns(), rule.shape).ok()?;
            Some((format!("rule '{}'", String::from_utf8_lossy(rule.name)), ready, rule.shape))
        };
        let rules = file.rules().filter_map(ready).collect();
        Self { rules, default: file.default, otherwise: "no rule holds, the default" }
    }

    /// Returns who decides what a new file gets at a logical path, and what it gets.
    pub(crate) fn decide(&self, logical: &[u8]) -> (&str, RuleShape) {
        let holding = self.rules.iter().find(|(_, ready, _)| ready.holds(logical));
        holding.map_or((self.otherwise, self.default), |(name, _, shape)| (name, *shape))
    }
}

/// Lists the files that have another level or chunk than a new file at their path would get, by each
/// of their names.
pub(crate) fn drift(names: &Namespace, rules: Option<&[u8]>, own: RuleShape) -> String {
    let ruling = Ruling::of(rules, own);
    let mut lines = Vec::new();
    drifting(names, &ruling, |path, has| {
        let (by, wanted) = ruling.decide(path);
        lines.push(format!("{}: has {}; {by}: a new file gets {}\n", Shown(path), shown(has), shown(wanted)));
    });
    lines.sort();
    lines.concat()
}

/// Calls `found` with the path of each file that has another level or chunk than a new file at that
/// path would get, by each of its names, and with what it has.
pub(crate) fn drifting(names: &Namespace, ruling: &Ruling, mut found: impl FnMut(&[u8], RuleShape)) {
    names.search(|path, attribute| {
        if let Ok(shape) = names.files().shape_of(attribute) {
            let has = RuleShape::of(&shape.geometry());
            if !is_same(has, ruling.decide(path).1) {
                found(path, has);
            }
        }
        true
    });
}

/// Says what each member would hold if all files had what rules give, beside what it holds now. A file
/// with several names counts once, by the first that is found.
pub(crate) fn plan(files: &ArrayFiles, rules: &[u8], own: RuleShape) -> String {
    let ruling = Ruling::of(Some(rules), own);
    let (mut seen, mut others, mut now, mut then) = (HashSet::new(), 0_u64, 0_u64, 0_u64);
    files.names().search(|path, attribute| {
        let core = files.core();
        let (Ok(shape), Ok(size)) = (core.shape_of(attribute), core.size_of(attribute)) else { return true };
        if !seen.insert(attribute.encode()) {
            return true;
        }
        let (has, wanted) = (shape.geometry(), ruling.decide(path).1);
        let planned = Geometry::new(wanted.level, has.member_count(), wanted.chunk);
        now = now.saturating_add(has.member_bytes(size));
        then = then.saturating_add(planned.map_or_else(|_| has.member_bytes(size), |planned| planned.member_bytes(size)));
        others += u64::from(!is_same(RuleShape::of(&has), wanted));
        true
    });
    let mut text = format!("{others} of {} files have another level or chunk than these rules give\n", seen.len());
    let _ = writeln!(
        text,
        "  each member holds {} of data and redundancy now, and would hold {} (holes of files counted in)",
        bytes_text(now),
        bytes_text(then)
    );
    text
}

/// Tells whether two files of these shapes lie alike. The chunk of a level without chunks does not
/// matter.
pub(crate) fn is_same(one: RuleShape, other: RuleShape) -> bool {
    one.level == other.level && (!one.level.has_chunks() || one.chunk == other.chunk)
}
