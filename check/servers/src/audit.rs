//! What must hold for every array when no program uses it, whatever was done to it before.
//!
//! - All members hold the same names, types, modes and owners.
//! - Every file has the same content with any member away that may be: mirrors and parity are right
//!   everywhere, also where a killed program was writing. The first look has all members, so what a
//!   dead program left is made good before one is taken away.
//! - Nothing is in the host's directory of the prefix's name: every call was seen.

use crate::{Outcome, array::Array};
use std::{collections::BTreeMap, fs};

/// Names, types, modes, sizes, links and sums of what programs see in $D.
const CONTENT: &str = r#"
cd "$D" || exit 90
find . \( -type d -printf '%y %m %U %P\n' \) -o \( -type f -printf '%y %m %U %s links %n %P\n' \) -o -printf '%y %m %U %P -> %l\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// Names, types, modes and owners of what a member holds in $MEMBER.
const NAMES: &str = r#"
cd "$MEMBER" || exit 90
find . -printf '%y %m %U %P -> %l\n' | sort
"#;

/// Everything above, by programs under the library. Returns what programs see.
pub(crate) fn audit(array: &Array<'_>) -> Outcome<String> {
    let was_mounted = array.close_door()?;
    let looked = look(array);
    if was_mounted {
        array.open_door()?;
    }
    looked
}

fn look(array: &Array<'_>) -> Outcome<String> {
    let content = content(array)?;
    if array.members.is_empty() {
        return Ok(content);
    }
    let present = array.present();
    let mut expected: Option<String> = None;
    for &slot in &present {
        let names = array.outside("bash").args(["-c", NAMES]).env("MEMBER", array.on_member(slot)).text()?;
        match &expected {
            Some(expected) => same(&format!("names on member {slot}, compared with member {}", present[0]), expected, &names)?,
            None => expected = Some(names),
        }
    }
    if array.spare_failures() > 0 {
        for &slot in &present {
            array.lose(slot)?;
            let without = self::content(array);
            array.bring_back(slot)?;
            same(&format!("files without member {slot}"), &content, &without?)?;
        }
    }
    let leaked: Vec<String> = fs::read_dir(&array.data)
        .map_err(|error| format!("{}: {error}", array.data.display()))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    if leaked.is_empty() { Ok(content) } else { Err(format!("on the host, beside the array: {}", leaked.join(", "))) }
}

/// What programs see.
pub(crate) fn content(array: &Array<'_>) -> Outcome<String> {
    array.inside("bash").args(["-c", CONTENT]).text()
}

/// An error with the first lines that differ.
pub(crate) fn same(what: &str, expected: &str, found: &str) -> Outcome {
    if expected == found {
        return Ok(());
    }
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    expected.lines().for_each(|line| *counts.entry(line).or_default() += 1);
    found.lines().for_each(|line| *counts.entry(line).or_default() -= 1);
    let only = |sign: &str, lines: &mut dyn Iterator<Item = (&&str, &i64)>| {
        lines.take(8).map(|(line, _)| format!("{sign}{}\n", line.chars().take(200).collect::<String>())).collect::<String>()
    };
    let missing = only("-", &mut counts.iter().filter(|(_, count)| **count > 0));
    let extra = only("+", &mut counts.iter().filter(|(_, count)| **count < 0));
    let order = if missing.is_empty() && extra.is_empty() { "the same lines in another order" } else { "" };
    Err(format!("{what} differ (- expected, + found)\n{missing}{extra}{order}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_shown_by_line() {
        assert_eq!(same("x", "a\nb\n", "a\nb\n"), Ok(()));
        let message = same("x", "a\nb\n", "a\nc\n").unwrap_err();
        assert_eq!(message, "x differ (- expected, + found)\n-b\n+c\n");
        assert!(same("x", "a\nb\n", "b\na\n").unwrap_err().ends_with("another order"));
    }
}
