//! What every text file of the repository keeps to: a purpose on top, a bounded length, no
//! leftovers, no machine's paths.

use std::path::Path;

/// Past this a file has more than one subject.
const LINES_MAX: usize = 900;

/// Comments and documents are read beside other text: a line of theirs has about 100 columns.
const COLUMNS_MAX: usize = 104;

/// Leftovers, and why they are none of the repository's. Written in pieces, so that this file may
/// be checked too.
const LEFTOVERS: [(&str, &str); 6] = [
    (concat!("TO", "DO"), "build it, or say under limits that it is not built"),
    (concat!("FIX", "ME"), "fix it"),
    (concat!("XX", "X"), "say what is meant"),
    (concat!("to", "do!("), "build it, or refuse with a message"),
    (concat!("unimplemented", "!("), "build it, or refuse with a message"),
    (concat!("dbg", "!("), "take it out"),
];

/// Directories that exist on some machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/", "t-")];
/// The default of CXLRAID_PATHS (thesis, table 1) is not a machine's path.
const PATHS_DEFAULT: &str = concat!("/home/:/ro", "ot/");

/// What is wrong with a file.
pub(super) fn check(file: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let shown = file.display();
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if extension == "rs" {
        if !text.trim_start().starts_with("//!") {
            complaints.push(format!("{shown}: does not open with its purpose; begin with a //! comment"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX {
            complaints.push(format!("{shown}: {lines} lines, at most {LINES_MAX}; split it by subject"));
        }
    }
    if matches!(extension, "lock" | "snap") || file.starts_with("LICENSE-APACHE") {
        return complaints;
    }
    for (index, line) in text.lines().enumerate() {
        let at = format!("{shown}:{}", index + 1);
        complaints.extend(line_complaints(&at, line));
        if is_too_wide(extension, line) {
            complaints.push(format!("{at}: more than {COLUMNS_MAX} columns; wrap it"));
        }
    }
    complaints
}

fn line_complaints(at: &str, line: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (word, remedy) in LEFTOVERS {
        if is_leftover(line, word) {
            complaints.push(format!("{at}: {word}; {remedy}"));
        }
    }
    let line = line.replace(PATHS_DEFAULT, "");
    for path in MACHINE_PATHS {
        if line.contains(path) {
            complaints.push(format!("{at}: {path} exists on one machine only; use a temporary directory or a variable"));
        }
    }
    complaints
}

/// Tells whether a line of prose is too wide: a comment of a source file, or a line of a document. A
/// row of a table is one line, however wide, and what is shown as it is (commands, pictures) too.
fn is_too_wide(extension: &str, line: &str) -> bool {
    let prose = match extension {
        "rs" => line.trim_start().strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!'])),
        "md" => Some(line),
        _ => None,
    };
    let is_shown = |text: &str| text.starts_with("    ") || text.trim_start().starts_with('|');
    line.chars().count() > COLUMNS_MAX && prose.is_some_and(|text| !is_shown(text))
}

/// A word in a file that explains rules is allowed when it is quoted as a rule: "no WORD".
fn is_leftover(line: &str, word: &str) -> bool {
    let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let part_of_longer = joined(before.chars().next_back()) || joined(after.chars().next()) && !word.ends_with('(');
        let is_rule = before.to_lowercase().ends_with("no ");
        !part_of_longer && !is_rule
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(file: &str, text: &str) -> usize {
        check(Path::new(file), text).len()
    }

    #[test]
    fn a_file_opens_with_its_purpose() {
        assert_eq!(complaints("a.rs", "//! Purpose.\nfn main() {}\n"), 0);
        assert_eq!(complaints("a.rs", "fn main() {}\n"), 1);
        assert_eq!(complaints("a.sh", "echo\n"), 0);
    }

    #[test]
    fn files_have_one_subject() {
        let long = |lines| format!("//! x\n{}", "\n".repeat(lines - 1));
        assert_eq!(complaints("a.rs", &long(LINES_MAX)), 0);
        assert_eq!(complaints("a.rs", &long(LINES_MAX + 1)), 1);
    }

    #[test]
    fn prose_is_wrapped() {
        let wide = "wide ".repeat(COLUMNS_MAX / 5 + 1);
        for start in ["// ", "    /// ", "//! "] {
            assert_eq!(complaints("a.rs", &format!("//! x\n{start}{wide}")), 1, "{start}");
            assert_eq!(complaints("a.rs", &format!("//! x\n{start}| {wide}|")), 0, "{start}");
        }
        assert_eq!(complaints("a.rs", &format!("//! x\nlet wide = \"{wide}\";")), 0);
        assert_eq!(complaints("a.md", &format!("- {wide}")), 1);
        assert_eq!(complaints("a.md", &wide[..COLUMNS_MAX]), 0);
        assert_eq!(complaints("a.md", &format!("    $ {wide}")), 0);
    }

    #[test]
    fn leftovers_are_found_and_rules_about_them_are_not() {
        for word in LEFTOVERS.map(|(word, _)| word) {
            assert_eq!(complaints("a.md", &format!("x {word} y")), 1, "{word}");
        }
        let todo = LEFTOVERS[0].0;
        assert_eq!(complaints("a.md", &format!("- No {todo} in the tree")), 0);
        assert_eq!(complaints("a.md", &format!("MA{todo}R")), 0);
        assert_eq!(complaints("a.sh", &format!("mktemp x.{}", "X".repeat(6))), 0);
        assert_eq!(complaints("Cargo.toml", "todo = \"deny\""), 0);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(complaints("a.md", &format!("see {path}x")), 1, "{path}");
        }
        assert_eq!(complaints("a.md", &format!("default {PATHS_DEFAULT}")), 0);
        assert_eq!(complaints("a.md", "the root directory is /root"), 0);
    }
}
