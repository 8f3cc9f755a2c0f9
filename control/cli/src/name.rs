//! The name of an array: what is typed, and what its TOML file is called.
//!
//! Invariant: an `ArrayName` is safe as a file name and on a command line; it never starts with '-'
//! or '.'.

use std::{fmt, str::FromStr};

/// What the superblock has room for.
const NAME_BYTES_MAX: usize = format::ARRAY_NAME_BYTES_MAX;

/// A valid name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ArrayName(String);

impl ArrayName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ArrayName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let first_fits = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let rest_fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if first_fits && rest_fits && text.len() <= NAME_BYTES_MAX {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', and starts with a letter or digit; \
             choose another"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_file_names() {
        for good in ["db", "a", "web-1.prod_x", "0", &"n".repeat(63)] {
            assert_eq!(good.parse::<ArrayName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-x", ".hidden", "a/b", "a b", "ä", "a\n", &"n".repeat(64)] {
            assert!(bad.parse::<ArrayName>().is_err(), "{bad:?}");
        }
    }
}
