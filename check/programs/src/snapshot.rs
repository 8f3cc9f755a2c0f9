//! What a directory holds: names, types, modes, sizes, link targets and SHA-256 sums, as ordinary
//! programs see it.

use crate::{
    array::Array,
    place::Place,
    process::{Output, Run},
};
use std::path::Path;

/// Lists the directory in $1, then the sums of its files. Sizes of directories are their file
/// system's own business.
const SCRIPT: &str = r#"
cd "$1" || exit 90
find . \( -type d -printf '%y %m %P\n' \) -o \( -type f -printf '%y %m %s links %n %P\n' \) -o -printf '%y %m %s %P -> %l\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// Names, types and modes only: what members must agree on.
const NAMES_SCRIPT: &str = r#"
cd "$1" || exit 90
find . -printf '%y %m %P -> %l\n' | sort
"#;

/// Everything, times and attributes of the array included: what a refused start must leave as it
/// was.
const STATE_SCRIPT: &str = r#"
for directory; do
    find "$directory" -printf '%y %m %s %U %T@ %C@ %p -> %l\n' | sort
    find "$directory" -type f -print0 | sort -z | xargs -0 -r sha256sum
done
"#;

/// Without the sums of files whose path contains one of `varies`.
pub(crate) fn without(snapshot: &Output, varies: &[&str]) -> Output {
    let is_sum_of = |line: &str| {
        let path = line.split_once("  ").filter(|(sum, _)| sum.len() == 64).map(|(_, path)| path);
        path.is_some_and(|path| varies.iter().any(|part| path.contains(part)))
    };
    let text = snapshot.stdout_text();
    let stdout = text.split_inclusive('\n').filter(|line| !is_sum_of(line)).collect::<String>().into_bytes();
    Output { stdout, ..snapshot.clone() }
}

/// Without the number of names of each file.
pub(crate) fn without_links(snapshot: &Output) -> Output {
    let text = snapshot.stdout_text();
    let without = |line: &str| match line.split_once(" links ") {
        Some((head, tail)) => format!("{head}{}\n", tail.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => format!("{line}\n"),
    };
    let mut lines: Vec<String> = text.lines().map(without).collect();
    lines.sort();
    Output { stdout: lines.concat().into_bytes(), ..snapshot.clone() }
}

fn script(run: Run<'_>, script: &str, directories: &[&Path]) -> Output {
    run.args(["-c", script, "snapshot"]).args(directories).output()
}

/// The directory under test of a plain run.
pub(crate) fn plain(place: &Place<'_>) -> Output {
    script(place.run("bash"), SCRIPT, &[&place.data])
}

/// The directory under test, read through the library.
pub(crate) fn array(array: &Array<'_>) -> Output {
    script(array.run("bash"), SCRIPT, &[&array.place.data])
}

/// Any directory of the host.
pub(crate) fn directory(place: &Place<'_>, directory: &Path) -> Output {
    script(place.run("bash"), SCRIPT, &[directory])
}

/// The names a member holds.
pub(crate) fn names(place: &Place<'_>, directory: &Path) -> Output {
    script(place.run("bash"), NAMES_SCRIPT, &[directory])
}

/// The state of directories of the host to the last bit.
pub(crate) fn state(place: &Place<'_>, directories: &[&Path]) -> Output {
    script(place.run("bash"), STATE_SCRIPT, directories)
}
