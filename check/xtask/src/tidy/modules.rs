//! Which modules of the library use each other.
//!
//! An arrow goes from a module of front/preload/src to each other one that it names as `crate::…`;
//! files below a module's folder count as that module. Tests and comments do not count. Two modules
//! with arrows in both directions can be understood only together. Those that there are stand in
//! [`MUTUAL`], and no new ones come.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

const SOURCES: &str = "front/preload/src";

/// The pairs that there are, each in alphabetical order. Which arrow of a pair is to go is for who
/// breaks it.
const MUTUAL: [(&str, &str); 24] = [
    ("arch", "signals"),
    ("array", "calls"),
    ("array", "process"),
    ("calls", "deputy"),
    ("calls", "exec"),
    ("calls", "guest"),
    ("calls", "mappings"),
    ("calls", "process"),
    ("calls", "report"),
    ("calls", "stored"),
    ("calls", "sud"),
    ("deputy", "exec"),
    ("deputy", "guest"),
    ("deputy", "program"),
    ("exec", "guest"),
    ("exec", "signals"),
    ("exec", "stored"),
    ("exec", "unreached"),
    ("loader", "patch"),
    ("needed", "stored"),
    ("patch", "sud"),
    ("process", "renewal"),
    ("process", "signals"),
    ("process", "stack"),
];

/// The arrows of the library: which modules each module names.
#[derive(Default)]
pub(super) struct Arrows {
    named: BTreeMap<String, BTreeSet<String>>,
}

impl Arrows {
    /// Adds the arrows of a file, if it is one of the library's.
    pub(super) fn add(&mut self, file: &Path, text: &str) {
        let Ok(within) = file.strip_prefix(SOURCES) else { return };
        let module = within.components().next().map(|first| first.as_os_str().to_string_lossy().into_owned());
        let Some(module) = module.filter(|_| within.extension().is_some_and(|extension| extension == "rs")) else { return };
        let module = module.trim_end_matches(".rs");
        if module != "lib" && module != "tests" {
            self.named.entry(module.to_owned()).or_default().extend(named(text));
        }
    }

    /// Pairs that are not on the list, and those on it that are none any more.
    pub(super) fn check(&self) -> Vec<String> {
        let names = |from: &str, to: &str| self.named.get(from).is_some_and(|named| named.contains(to));
        let found: BTreeSet<(&str, &str)> = self
            .named
            .iter()
            .flat_map(|(from, named)| named.iter().map(move |to| (from.as_str(), to.as_str())))
            .filter(|(from, to)| from < to && names(to, from))
            .collect();
        let known = BTreeSet::from(MUTUAL);
        let new = found.difference(&known).map(|(one, other)| {
            format!("{SOURCES}: {one} and {other} name each other; move what they share into a module below both")
        });
        let gone = known.difference(&found).map(|(one, other)| {
            format!("{SOURCES}: {one} and {other} do not name each other any more; take the pair off the list in check/xtask/src/tidy/modules.rs")
        });
        // Without sources there is nothing to compare: that is so in tests of the other rules.
        if self.named.is_empty() { Vec::new() } else { new.chain(gone).collect() }
    }
}

/// The modules that a file names: the words behind `crate::`, and those of a list in braces there.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split("//").next())
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` in a macro counts as well.
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(first_words(list)),
            None => found.extend(first_word(rest)),
        }
    }
    found
}

/// The first word of each entry of a list that ends with a brace.
fn first_words(list: &str) -> Vec<String> {
    let (mut words, mut depth, mut is_start) = (Vec::new(), 0, true);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && !character.is_whitespace() => {
                words.extend(first_word(&list[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    words
}

fn first_word(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_ascii_alphanumeric() && character != '_').unwrap_or(text.len());
    // A module's name, not a type's or a macro's constant.
    Some(text[..end].to_owned()).filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Arrows {
        let mut arrows = Arrows::default();
        files.iter().for_each(|(file, text)| arrows.add(Path::new(file), text));
        arrows
    }

    #[test]
    fn modules_are_found_wherever_they_are_named() {
        let text = "use crate::lock::Lock;\nuse crate::{array, table::{ROWS, Row}, thread};\nfn f() { crate::maps::g() } // crate::stack\n\
                    #[cfg(test)]\nmod tests { use crate::guest; }\n";
        assert_eq!(named(text), ["array", "lock", "maps", "table", "thread"].map(str::to_owned).into());
    }

    #[test]
    fn modules_that_name_each_other_are_complained_of() {
        let pair = [
            ("front/preload/src/one/part.rs", "use crate::other;"),
            ("front/preload/src/other.rs", "use crate::one::part;"),
            ("front/preload/src/lib.rs", "use crate::one;"),
            ("front/mount/src/one.rs", "use crate::third;"),
        ];
        let complaints = arrows(&pair).check();
        assert!(complaints.iter().any(|complaint| complaint.contains("one and other name each other")), "{complaints:?}");
        let complaints = arrows(&pair[..1]).check();
        assert!(!complaints.iter().any(|complaint| complaint.contains("name each other;")), "{complaints:?}");
    }

    #[test]
    fn a_pair_that_is_gone_leaves_the_list() {
        let complaints = arrows(&[("front/preload/src/one.rs", "")]).check();
        assert_eq!(complaints.len(), MUTUAL.len(), "{complaints:?}");
    }
}
