//! What must hold for every array that no program uses: all members hold the same names, and every
//! file has the same content whichever members that the level bears to lose are missing.

use super::{digest, members::Members, programs::Program};
use crate::{Outcome, array::PREFIX};
use std::collections::BTreeSet;

/// Lines of a difference that are shown.
const SHOWN: usize = 8;

/// What programs see.
pub(super) fn contents(members: &Members) -> Outcome<String> {
    Program::inside("/init", members).words(&format!("{} contents {PREFIX}", digest::COMMAND)).text()
}

/// Which sets of members are left out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sets {
    /// Every one that can be borne.
    All,
    /// As few as need every copy and all parity.
    Covering,
}

/// All of it.
pub(super) fn audit(members: &Members, sets: Sets) -> Outcome<String> {
    let expected = contents(members)?;
    let present = members.present();
    // Errors are collected: one failure must not hide another.
    let mut failures = Vec::new();
    let names = |slot: usize| digest::lines(&members.data(slot), members.array.shape.level == 1).map(|lines| lines.join("\n"));
    let first = names(present[0])?;
    for &slot in &present[1..] {
        let what = format!("names on members {} and {slot}", present[0]);
        failures.extend(names(slot).and_then(|other| same(&what, &first, &other)).err());
    }
    let most = members.spare_failures();
    let shape = members.array.shape;
    let absences: Vec<_> = match sets {
        Sets::All => shape.absences_of(&present).filter(|absent| absent.len() <= most).collect(),
        Sets::Covering => shape.covering(&present, most),
    };
    for absent in &absences {
        let fewer = members.without(absent);
        let what = format!("files without members {absent:?}");
        failures.extend(contents(&fewer).and_then(|found| same(&what, &expected, &found)).err());
    }
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    Ok(format!("{} names, the same with each of {} sets of members missing", expected.lines().count(), absences.len()))
}

/// An error with the first lines that differ.
pub(super) fn same(what: &str, expected: &str, found: &str) -> Outcome {
    let sets = [expected, found].map(|text| text.lines().collect::<BTreeSet<_>>());
    let only = |sign: char, lines: Vec<&&str>| {
        let more = lines.len().saturating_sub(SHOWN);
        let shown = lines.iter().take(SHOWN).map(|line| format!("{sign} {line}\n")).collect::<String>();
        if more > 0 { format!("{shown}{sign} and {more} more\n") } else { shown }
    };
    if sets[0] == sets[1] {
        return Ok(());
    }
    let missing = only('-', sets[0].difference(&sets[1]).collect());
    let extra = only('+', sets[1].difference(&sets[0]).collect());
    Err(format!("{what} differ (- expected, + found)\n{missing}{extra}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown() {
        assert_eq!(same("x", "a\nb", "a\nb"), Ok(()));
        assert_eq!(same("x", "a\nb", "a\nc").unwrap_err(), "x differ (- expected, + found)\n- b\n+ c\n");
        let many: String = (0..20).map(|number| format!("{number}\n")).collect();
        assert!(same("x", &many, "").unwrap_err().contains("and 12 more"));
    }
}
