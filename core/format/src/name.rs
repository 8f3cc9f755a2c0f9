//! The name an operator gives an array.

use core::{fmt, str::FromStr};

/// The most bytes of an array's name; one more is always NUL on media.
pub const ARRAY_NAME_BYTES_MAX: usize = 63;

/// The name of an array: 1 to 63 bytes of UTF-8 that can also name a file: no control character, no
/// '/', not "." or "..".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArrayName([u8; ARRAY_NAME_BYTES_MAX + 1]);

/// The text cannot name an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a name for an array; use 1 to 63 bytes without '/' or control characters, other than \".\" and \"..\"")]
pub struct NameError;

impl ArrayName {
    /// `name`, if it can name an array.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let too_long = name.len() > ARRAY_NAME_BYTES_MAX;
        let reserved = matches!(name, "" | "." | "..");
        if too_long || reserved || name.chars().any(|c| c == '/' || c.is_control()) {
            return Err(NameError);
        }
        let mut bytes = [0; ARRAY_NAME_BYTES_MAX + 1];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(ARRAY_NAME_BYTES_MAX);
        core::str::from_utf8(&self.0[..length]).unwrap_or_default()
    }

    /// The 64 bytes on media: the name, then NULs.
    pub(crate) const fn to_media(self) -> [u8; ARRAY_NAME_BYTES_MAX + 1] {
        self.0
    }

    pub(crate) fn from_media(bytes: [u8; ARRAY_NAME_BYTES_MAX + 1]) -> Result<Self, NameError> {
        let length = bytes.iter().position(|&byte| byte == 0).ok_or(NameError)?;
        let name = Self::new(core::str::from_utf8(&bytes[..length]).map_err(|_| NameError)?)?;
        if name.0 == bytes { Ok(name) } else { Err(NameError) }
    }
}

impl FromStr for ArrayName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl fmt::Display for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_accepted_and_refused() {
        let longest = "x".repeat(ARRAY_NAME_BYTES_MAX);
        for name in ["a", "data pool", "…", ".hidden", &longest] {
            assert_eq!(ArrayName::new(name).unwrap().as_str(), name);
        }
        let too_long = "x".repeat(ARRAY_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "a/b", "a\0b", "a\n", &too_long] {
            assert_eq!(ArrayName::new(name), Err(NameError), "{name:?}");
        }
    }

    #[test]
    fn media_form_has_nuls_after_the_name_only() {
        let mut bytes = ArrayName::new("pool").unwrap().to_media();
        assert_eq!(ArrayName::from_media(bytes).unwrap().as_str(), "pool");
        bytes[63] = b'x';
        assert_eq!(ArrayName::from_media(bytes), Err(NameError));
        assert_eq!(ArrayName::from_media([b'x'; 64]), Err(NameError));
        assert_eq!(ArrayName::from_media([0xff; 64]), Err(NameError));
    }
}
