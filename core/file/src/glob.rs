//! Patterns of paths, as rules have them.
//!
//! `*` stands for any characters but a slash, `?` for one character but a slash, `[a-z]` for one of
//! some characters (`[!a-z]` for one of the others), `{a,b}` for either, and `**` as a whole
//! component for any number of directories, none included. `\` takes the meaning from the character
//! after it. A pattern is compared with a whole path without a slash in front.
//!
//! Invariants: a comparison allocates nothing, and takes at most as many steps as the pattern's
//! length times the path's times the path's directories. Only the last `*` of a component and the
//! last `**` are ever tried at another place: what comes before them fits already, and a later place
//! for it would leave less for the rest.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// The most patterns that the braces of one pattern stand for.
const ALTERNATIVE_COUNT_MAX: usize = 256;

/// Why a pattern is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadGlob(&'static str);

impl fmt::Display for BadGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for BadGlob {}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `[…]`: first and last byte of each range.
    Class {
        is_negated: bool,
        ranges: Vec<(u8, u8)>,
    },
    /// `*`
    Star,
    /// `**/`
    Directories,
    /// `**` at the end: at least one byte of anything.
    Rest,
}

/// One pattern without braces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    tokens: Vec<Token>,
    /// The bytes that a path must end with: what is compared first.
    end: Vec<u8>,
}

impl Glob {
    /// The patterns that `text` stands for: one, or one for each choice of what its braces offer.
    ///
    /// # Errors
    /// What is wrong with the text. A pattern that no path can fit is an error, too.
    pub fn parse(text: &[u8]) -> Result<Vec<Self>, BadGlob> {
        let expanded = expand(text)?;
        expanded.iter().map(|one| Self::parse_one(one)).collect()
    }

    /// Tells whether every path fits.
    #[must_use]
    pub fn fits_everything(&self) -> bool {
        matches!(self.tokens[..], [Token::Rest] | [Token::Directories, Token::Star])
    }

    /// Tells whether no path fits `other`, which is compared with the path below the same directory or
    /// one further down, that does not fit this pattern as well. False where that is not easily
    /// told.
    #[must_use]
    pub fn covers(&self, other: &Self, is_same_directory: bool) -> bool {
        if self.fits_everything() || is_same_directory && self.tokens == other.tokens {
            return true;
        }
        let [Token::Directories, name @ ..] = &self.tokens[..] else { return false };
        let is_name = !name.iter().any(|token| matches!(token, Token::Directories | Token::Rest | Token::Byte(b'/')));
        let Some(before) = other.tokens.strip_suffix(name) else { return false };
        is_name && matches!(before.last(), None | Some(Token::Byte(b'/') | Token::Directories))
    }

    fn parse_one(text: &[u8]) -> Result<Self, BadGlob> {
        let mut tokens = Vec::new();
        let components: Vec<&[u8]> = split_components(text);
        let last = components.len() - 1;
        for (index, component) in components.into_iter().enumerate() {
            match component {
                b"**" if index == last => tokens.push(Token::Rest),
                b"**" if tokens.last() == Some(&Token::Directories) => {}
                b"**" => tokens.push(Token::Directories),
                b"" if index == 0 => {
                    return Err(BadGlob(
                        "begins with a slash; patterns are compared with the path below 'under', without a slash in front",
                    ));
                }
                b"" if index == last => return Err(BadGlob("ends with a slash; no file's path does")),
                b"" => return Err(BadGlob("has two slashes beside each other; no path has")),
                b"." | b".." => return Err(BadGlob("has '.' or '..' for a component; no path has")),
                component => {
                    parse_component(component, &mut tokens)?;
                    if index != last {
                        tokens.push(Token::Byte(b'/'));
                    }
                }
            }
        }
        let start = tokens.iter().rposition(|token| !matches!(token, Token::Byte(_))).map_or(0, |at| at + 1);
        let byte = |token: &Token| if let Token::Byte(byte) = token { Some(*byte) } else { None };
        let end = tokens[start..].iter().filter_map(byte).collect();
        Ok(Self { tokens, end })
    }

    /// How many tokens and bytes the pattern has.
    #[must_use]
    pub const fn weight(&self) -> usize {
        self.tokens.len() + self.end.len()
    }

    /// Tells whether a path fits.
    #[must_use]
    pub fn fits(&self, path: &[u8]) -> bool {
        path.ends_with(&self.end) && self.fits_slowly(path)
    }

    fn fits_slowly(&self, path: &[u8]) -> bool {
        let (mut token, mut at) = (0, 0);
        // Where to go on if it does not fit: behind the last `*`, or `**/`, with one byte, or
        // directory, more for it.
        let (mut star, mut directories) = (None::<(usize, usize)>, None::<(usize, usize)>);
        loop {
            let rest = &path[at..];
            let next = match self.tokens.get(token) {
                None if rest.is_empty() => return true,
                None => None,
                Some(Token::Rest) => return !rest.is_empty(),
                Some(Token::Star) => {
                    star = Some((token + 1, at));
                    Some(0)
                }
                Some(Token::Directories) => {
                    (star, directories) = (None, Some((token + 1, at)));
                    Some(0)
                }
                Some(Token::Byte(byte)) => (rest.first() == Some(byte)).then_some(1),
                Some(Token::One) => character(rest),
                Some(Token::Class { is_negated, ranges }) => character(rest).filter(|_| {
                    let is_in = |&(first, last): &(u8, u8)| (first..=last).contains(&rest[0]);
                    ranges.iter().any(is_in) != *is_negated
                }),
            };
            if let Some(bytes) = next {
                (token, at) = (token + 1, at + bytes);
            } else if let Some((after, from)) = star.filter(|&(_, from)| path.get(from).is_some_and(|&byte| byte != b'/')) {
                star = Some((after, from + 1));
                (token, at) = (after, from + 1);
            } else {
                let behind = |from: usize| path[from..].iter().position(|&byte| byte == b'/').map(|slash| from + slash + 1);
                let Some((after, from)) = directories.and_then(|(after, from)| Some((after, behind(from)?))) else {
                    return false;
                };
                (star, directories) = (None, Some((after, from)));
                (token, at) = (after, from);
            }
        }
    }
}

/// The bytes of the first character, which is no slash; what is no UTF-8 counts byte by byte.
fn character(text: &[u8]) -> Option<usize> {
    let (&first, rest) = text.split_first()?;
    let more = match first {
        b'/' => return None,
        0xc0..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf7 => 3,
        _ => 0,
    };
    Some(1 + rest.iter().take(more).take_while(|&&byte| byte & 0xc0 == 0x80).count())
}

/// The parts of a pattern between its slashes; in a class there may be one.
fn split_components(text: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, &byte) in text.iter().enumerate() {
        if byte == b'/' && !is_escaped {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    parts.push(&text[start..]);
    parts
}

fn parse_component(text: &[u8], tokens: &mut Vec<Token>) -> Result<(), BadGlob> {
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        tokens.push(match byte {
            b'*' if after.first() == Some(&b'*') => {
                return Err(BadGlob("has '**' beside other characters; it stands for directories, as a component of its own"));
            }
            b'*' => Token::Star,
            b'?' => Token::One,
            b'[' => {
                let (class, after) = parse_class(after)?;
                rest = after;
                class
            }
            b'\\' => {
                let (&escaped, after) = after.split_first().ok_or(BadGlob("ends with a single '\\'"))?;
                rest = after;
                Token::Byte(escaped)
            }
            b']' => return Err(BadGlob("has a ']' without a '[' before it; write '\\]' for the character")),
            0 => return Err(BadGlob("has a NUL; no path has")),
            byte => Token::Byte(byte),
        });
    }
    Ok(())
}

/// A class behind its `[`, and what comes after it.
fn parse_class(text: &[u8]) -> Result<(Token, &[u8]), BadGlob> {
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = &text[usize::from(is_negated)..];
    let mut ranges = Vec::new();
    loop {
        let (&first, after) = rest.split_first().ok_or(BadGlob("has a '[' without a ']' in the same component"))?;
        // A ']' that comes first is one of the characters.
        if first == b']' && !ranges.is_empty() {
            return Ok((Token::Class { is_negated, ranges }, after));
        }
        let (last, after) = match after {
            [b'-', last, after @ ..] if *last != b']' => (*last, after),
            _ => (first, after),
        };
        if first >= 0x80 || last >= 0x80 {
            return Err(BadGlob("has a character beyond ASCII between '[' and ']'; use braces: {ä,ö}"));
        }
        if first > last {
            return Err(BadGlob("has a range between '[' and ']' whose end comes before its beginning"));
        }
        ranges.push((first, last));
        rest = after;
    }
}

/// The texts that one with braces stands for.
fn expand(text: &[u8]) -> Result<Vec<Vec<u8>>, BadGlob> {
    let mut done: Vec<Vec<u8>> = Vec::new();
    let mut waiting: Vec<Vec<u8>> = vec![text.to_vec()];
    while let Some(text) = waiting.pop() {
        let Some((start, choices, end)) = first_braces(&text)? else {
            done.push(text);
            if done.len() + waiting.len() > ALTERNATIVE_COUNT_MAX {
                return Err(BadGlob("stands for more than 256 patterns by its braces; write several rules"));
            }
            continue;
        };
        // The first choice is popped first.
        for (from, to) in choices.into_iter().rev() {
            waiting.push([&text[..start], &text[from..to], &text[end..]].concat());
        }
        if done.len() + waiting.len() > ALTERNATIVE_COUNT_MAX {
            return Err(BadGlob("stands for more than 256 patterns by its braces; write several rules"));
        }
    }
    Ok(done)
}

/// Where the first braces begin, where each of their choices begins and ends, and what lies behind
/// the braces.
type Braces = (usize, Vec<(usize, usize)>, usize);

fn first_braces(text: &[u8]) -> Result<Option<Braces>, BadGlob> {
    let (mut depth, mut start, mut from, mut choices) = (0usize, 0, 0, Vec::new());
    let (mut is_escaped, mut is_in_class) = (false, false);
    for (at, &byte) in text.iter().enumerate() {
        if core::mem::take(&mut is_escaped) {
            continue;
        }
        match byte {
            b'\\' if !is_in_class => is_escaped = true,
            b'[' => is_in_class = true,
            b']' => is_in_class = false,
            _ if is_in_class => {}
            b'{' => {
                depth += 1;
                if depth == 1 {
                    (start, from) = (at, at + 1);
                }
            }
            b',' if depth == 1 => {
                choices.push((from, at));
                from = at + 1;
            }
            b'}' if depth == 0 => return Err(BadGlob("has a '}' without a '{' before it; write '\\}' for the character")),
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    choices.push((from, at));
                    return Ok(Some((start, choices, at + 1)));
                }
            }
            _ => {}
        }
    }
    if depth > 0 { Err(BadGlob("has a '{' without a '}'; write '\\{' for the character")) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, path: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().iter().any(|glob| glob.fits(path.as_bytes()))
    }

    #[test]
    fn patterns_fit_what_they_say() {
        for (pattern, fitting, others) in [
            ("*.avi", &["a.avi", ".avi"][..], &["a/b.avi", "a.avi2", "a.mpg", ""][..]),
            ("**/*.avi", &["a.avi", "x/a.avi", "x/y/z/.avi"], &["a.avi/b", "avi"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb", "a/bx", "a/b/c"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "a/", "b/a"]),
            ("**", &["a", "a/b"], &[""]),
            ("**/a*b/*c", &["axb/c", "x/ab/abc", "ab/x/ab/c"], &["ab/x/c", "a/b/c"]),
            ("?x", &["ax", "äx", "€x", "😀x"], &["x", "/x", "aax"]),
            ("[a-c]?", &["az", "cä"], &["dz", "a"]),
            ("[!a-c].x", &["d.x", "ä.x"], &["a.x", "/.x"]),
            ("[]x]", &["]", "x"], &["a"]),
            ("{a,b{c,d}}.{x,y}", &["a.x", "bc.y", "bd.x"], &["b.x", "a.z"]),
            ("{,x/}f", &["f", "x/f"], &["y/f"]),
            ("a\\*\\{b", &["a*{b"], &["ax{b"]),
            ("**/**/x", &["x", "a/x", "a/b/x"], &["ax"]),
            ("*a*b*c", &["abc", "xaybzc", "aabbcc"], &["ab", "ac/b/c"]),
            ("**/x/**/y/*", &["x/y/z", "a/x/b/y/c", "x/x/y/y/z"], &["x/y", "y/x/z"]),
        ] {
            for path in fitting {
                assert!(fits(pattern, path), "{pattern} {path}");
            }
            for path in others {
                assert!(!fits(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "/a",
            "a/",
            "a//b",
            "a/../b",
            "./a",
            "a**",
            "**b/c",
            "[a",
            "a]",
            "[z-a]",
            "[ä]",
            "{a",
            "a}",
            "a\\",
            "a\0",
            "",
            "{a,b,c,d}{a,b,c,d}{a,b,c,d}{a,b,c,d}{a,b}",
        ] {
            assert!(Glob::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_that_leaves_nothing_for_another_one_is_known() {
        let covers = |first: &str, second: &str, is_same: bool| {
            let [first, second] = [first, second].map(|text| Glob::parse(text.as_bytes()).unwrap().remove(0));
            first.covers(&second, is_same)
        };
        for (first, second, is_same, expected) in [
            ("**", "*.x", false, true),
            ("**/*", "a/b", false, true),
            ("*.x", "*.x", true, true),
            ("*.x", "*.x", false, false),
            ("**/*.x", "*.x", false, true),
            ("**/*.x", "a/**/*.x", false, true),
            ("**/*.x", "a*.x", false, false),
            ("**/x", "ax", true, false),
            ("a/*.x", "a/b.x", true, false),
        ] {
            assert_eq!(covers(first, second, is_same), expected, "{first} {second}");
        }
    }

    /// Compares with a matcher that tries everything.
    #[test]
    fn fits_as_a_simple_matcher_does() {
        fn simple(tokens: &[Token], path: &[u8]) -> bool {
            match tokens.split_first() {
                None => path.is_empty(),
                Some((Token::Byte(byte), rest)) => path.first() == Some(byte) && simple(rest, &path[1..]),
                Some((Token::One, rest)) => character(path).is_some_and(|bytes| simple(rest, &path[bytes..])),
                Some((Token::Star, rest)) => {
                    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
                    (0..=end).any(|at| simple(rest, &path[at..]))
                }
                Some((Token::Directories, rest)) => {
                    let behind = (0..path.len()).filter(|&at| path[at] == b'/').map(|at| at + 1);
                    core::iter::once(0).chain(behind).any(|at| simple(rest, &path[at..]))
                }
                Some((Token::Rest, _)) => !path.is_empty(),
                Some((Token::Class { .. }, _)) => unreachable!("not drawn"),
            }
        }
        let mut state = 7u64;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let (mut fitting, parts) = (0, ["a", "b", "/", "*", "?", "**/", "a", "/"]);
        for _ in 0..200_000 {
            let text: alloc::string::String = (0..=below(7)).map(|_| parts[below(8) as usize]).collect();
            let Ok(globs) = Glob::parse(text.as_bytes()) else { continue };
            let path: Vec<u8> = (0..=below(9)).map(|_| b"ab/"[below(3) as usize]).collect();
            let expected = simple(&globs[0].tokens, &path);
            fitting += u32::from(expected);
            assert_eq!(globs[0].fits(&path), expected, "{text} {}", path.escape_ascii());
        }
        assert!(fitting > 1000, "{fitting}");
    }
}
