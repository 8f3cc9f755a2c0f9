//! Identifiers (UUIDs) of arrays, members and journals. An identifier never changes, and no two
//! things have the same.

use core::{fmt, str::FromStr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The identifier of one array, one member or one journal: 16 bytes, stored in the order in which
/// they are printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct Uuid(pub [u8; 16]);

/// The text is not 8-4-4-4-12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a UUID; write it as 8-4-4-4-12 hexadecimal digits")]
pub struct UuidError;

/// Indices of the bytes before which the printed form has a hyphen.
const BYTES_AFTER_HYPHENS: [usize; 4] = [4, 6, 8, 10];
/// Positions of the hyphens in the printed form: two digits for each byte before, and the hyphens
/// before.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
/// Length of the printed form.
const TEXT_BYTES: usize = 36;

impl Uuid {
    /// The UUID of all zeros. It stands where nothing is named; nothing has it as its identifier.
    pub const NIL: Self = Self([0; 16]);

    /// A version 4 UUID (RFC 9562) from 16 random bytes, of which six bits are overwritten.
    #[must_use]
    pub const fn from_random(mut random: [u8; 16]) -> Self {
        // Four bits say that the version is 4, two that the layout ("variant") is that of RFC 9562.
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        Self(random)
    }

    /// Reads the text that [`fmt::Display`] writes; the digits may be upper or lower case. None for
    /// any other text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let is_hyphen = |index: usize| HYPHENS.contains(&index);
        let places = text.iter().enumerate();
        if text.len() != TEXT_BYTES || places.clone().any(|(index, &byte)| (byte == b'-') != is_hyphen(index)) {
            return None;
        }
        let mut digits = places.filter(|&(index, _)| !is_hyphen(index)).map(|(_, &byte)| char::from(byte).to_digit(16));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            // The length is right, so there are 32 characters; None is one that is no hexadecimal
            // digit.
            *byte = (digits.next()?? << 4 | digits.next()??) as u8;
        }
        Some(Self(bytes))
    }

    /// Whether this is [`Self::NIL`].
    #[must_use]
    pub fn is_nil(&self) -> bool {
        *self == Self::NIL
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let hyphen = if BYTES_AFTER_HYPHENS.contains(&index) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        Self::parse(text.as_bytes()).ok_or(UuidError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let uuid = Uuid([0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(uuid.to_string(), "12345678-9abc-def0-0102-030405060708");
        assert_eq!(uuid.to_string().to_uppercase().parse(), Ok(uuid));
    }

    #[test]
    fn refuses_what_is_not_a_uuid() {
        for text in [
            "",
            "12345678-9abc-def0-0102-03040506070",
            "12345678-9abc-def0-0102-0304050607080",
            "12345678+9abc-def0-0102-030405060708",
            "12345678-9abc-def0-0102-03040506070g",
            // The right length, without hyphens.
            "123456789abcdef001020304050607080000",
            // 36 bytes, but not 36 characters.
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(UuidError), "{text:?}");
        }
    }

    #[test]
    fn from_random_makes_version_4() {
        let all_bits_set = Uuid::from_random([0xff; 16]);
        assert_eq!(all_bits_set.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(Uuid::from_random([0; 16]).to_string(), "00000000-0000-4000-8000-000000000000");
    }
}
