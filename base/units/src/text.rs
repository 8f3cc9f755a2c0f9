//! Text of other users on a terminal: a path or a name on a member may hold any bytes.
//!
//! Invariant: text that is shown has one line, moves no cursor and reads in the order in which it
//! is written. A backslash stays as it is, so that text that was shown once stays the same when it
//! is shown again.

use core::fmt::{self, Write};

/// Bytes of others, to be shown: control characters, characters that only direct how others are
/// shown, and what is not UTF-8 appear as escapes.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            ShownTo(&mut *f).write_str(chunk.valid())?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Passes on to the inner writer what is written, in the form in which [`Shown`] shows it.
#[derive(Debug)]
pub struct ShownTo<W>(pub W);

impl<W: Write> Write for ShownTo<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, character)) = rest.char_indices().find(|&(_, character)| is_escaped(character)) {
            self.0.write_str(&rest[..at])?;
            match character {
                '\n' => self.0.write_str("\\n")?,
                '\t' => self.0.write_str("\\t")?,
                '\0'..='\x7f' => write!(self.0, "\\x{:02x}", character as u32)?,
                _ => write!(self.0, "\\u{{{:x}}}", character as u32)?,
            }
            rest = &rest[at + character.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Tells whether a character is shown as an escape. These are control characters (Cc), those of format
/// (Cf: the directions of text among them), and the separators of lines and paragraphs (Zl, Zp), as
/// of Unicode 16.
fn is_escaped(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        Shown(bytes).to_string()
    }

    #[test]
    fn what_directs_a_terminal_is_escaped() {
        assert_eq!(shown(b"/mnt/a\x1b[2J\nx\t\x07\x7f"), "/mnt/a\\x1b[2J\\nx\\t\\x07\\x7f");
        assert_eq!(
            shown("a\u{202e}b\u{2066}c\u{200f}\u{9b}\u{2028}\u{feff}".as_bytes()),
            "a\\u{202e}b\\u{2066}c\\u{200f}\\u{9b}\\u{2028}\\u{feff}"
        );
        assert_eq!(shown(b"\xff/\xe2\x80"), "\\xff/\\xe2\\x80");
    }

    #[test]
    fn other_text_stays_and_so_does_what_was_shown() {
        for text in ["", "/mnt/ü \"x\" 'y' \\x41", "日本語", "u\u{308}", "नमस्ते"] {
            assert_eq!(shown(text.as_bytes()), text);
        }
        let once = shown(b"\x1b\xff\n");
        assert_eq!(shown(once.as_bytes()), once);
    }

    #[test]
    fn nothing_is_escaped_that_the_standard_library_takes_for_printable() {
        for character in ('\0'..=char::MAX).filter(|&character| is_escaped(character)) {
            assert!(character.escape_debug().len() > 1, "{:x}", character as u32);
        }
    }
}
