//! The frame of a command line: words and their values, the library under test, and what becomes of
//! the result.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

/// The words of a command line, one after the other.
pub struct Words {
    words: Box<dyn Iterator<Item = String>>,
    help: &'static str,
    current: String,
}

impl Words {
    /// Words that are explained by `help`.
    pub fn new(words: impl Iterator<Item = OsString> + 'static, help: &'static str) -> Self {
        let words = Box::new(words.map(|word| word.to_string_lossy().into_owned()));
        Self { words, help, current: String::new() }
    }

    /// The next word.
    pub fn next_word(&mut self) -> Option<String> {
        self.current = self.words.next()?;
        Some(self.current.clone())
    }

    /// The value of the option that was the last word.
    pub fn value(&mut self) -> Result<String, String> {
        self.words.next().ok_or_else(|| format!("{} needs a value\n\n{}", self.current, self.help))
    }

    /// The same, as a number.
    pub fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let option = self.current.clone();
        self.value()?.replace('_', "").parse().map_err(|_| format!("{option} needs a number"))
    }

    /// What a word that is not understood leads to.
    pub fn unknown(&self) -> String {
        format!("unknown option {}\n\n{}", self.current, self.help)
    }
}

/// Whether a word is an option.
#[must_use]
pub fn is_option(word: &str) -> bool {
    word.starts_with('-')
}

/// The library under test, unless the command line names another: `CXLRAID_LIB`, or the one beside
/// this program.
#[must_use]
pub fn library() -> PathBuf {
    env::var_os("CXLRAID_LIB").map_or_else(|| beside_us("libcxlraid.so"), PathBuf::from)
}

/// A file in the directory of this program.
#[must_use]
pub fn beside_us(name: &str) -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    own.parent().unwrap_or(Path::new(".")).join(name)
}

/// A seed that is another number each time, short enough to be typed.
#[must_use]
pub fn drawn() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_micros() as u64 % 1_000_000)
}

/// An error unless a file that cargo builds from `package` is there.
pub fn must_be_built(file: &Path, package: &str) -> Result<(), String> {
    if file.is_file() {
        return Ok(());
    }
    Err(format!("{}: not there; build it with 'cargo build --release -p {package}'", file.display()))
}

/// Copies `file` into `directory`, where programs of every user can read it and where it stays the
/// same while others build. Returns the path of the copy. A file that is not there is not copied:
/// runs on a plain directory need neither library nor command.
pub fn copied(file: &Path, directory: &Path) -> Result<PathBuf, String> {
    let copy = directory.join(file.file_name().unwrap_or_default());
    if file.is_file() {
        std::fs::copy(file, &copy).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(copy)
}

/// `main` of a program that checks: `options` (None: help was asked for), then the checks, which
/// say whether all passed. Exits with 0, with 1 if something failed, with 2 for a command line that
/// is not understood.
pub fn conclude<O>(
    program: &str,
    help: &str,
    options: Result<Option<O>, String>,
    checks: impl FnOnce(&O) -> Result<bool, String>,
) -> ExitCode {
    let options = match options {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{help}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match checks(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{program}: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_values_or_it_is_said() {
        let mut words = Words::new(["--jobs", "1_000", "git", "--lib"].into_iter().map(OsString::from), "HELP");
        assert_eq!(words.next_word().as_deref(), Some("--jobs"));
        assert_eq!(words.number(), Ok(1000));
        assert!(words.next_word().is_some_and(|word| !is_option(&word)));
        assert!(words.next_word().is_some_and(|word| is_option(&word)));
        assert_eq!(words.value(), Err("--lib needs a value\n\nHELP".to_owned()));
        assert_eq!(words.unknown(), "unknown option --lib\n\nHELP");
        assert_eq!(words.next_word(), None);
    }

    #[test]
    fn what_is_not_built_is_named() {
        assert!(must_be_built(Path::new("/none/such.so"), "some-crate").unwrap_err().contains("-p some-crate"));
    }
}
