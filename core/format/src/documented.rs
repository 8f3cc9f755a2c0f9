//! Compares a structure with its table in docs/format.

use std::{fs, path::Path};

/// Offset, size and name of one field.
pub(crate) type Field = (usize, usize, String);

/// The rows of the table under "## `heading`" of a page; of its first table if `heading` is empty.
pub(crate) fn rows(page: &str, heading: &str) -> Vec<Field> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format").join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let start = if heading.is_empty() { 0 } else { text.find(&format!("## {heading}\n")).expect("the heading") + 3 };
    let section = text[start..].split("\n## ").next().unwrap_or_default();
    section.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Field> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let (offset, size) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    Some((offset, size, name.to_owned()))
}

/// The size of what the closure borrows.
pub(crate) fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Asserts that the table under a heading lists exactly these fields, and that they fill the
/// structure.
macro_rules! assert_documented {
    ($page:literal, $heading:literal, $bytes:ty, [$($field:ident),+ $(,)?]) => {{
        use $crate::documented::{rows, size_of_field};
        let fields = [$((
            core::mem::offset_of!($bytes, $field),
            size_of_field(|bytes: &$bytes| &bytes.$field),
            stringify!($field).to_owned(),
        )),+];
        assert_eq!(rows($page, $heading), fields);
        let end = fields.iter().fold(0, |end, (offset, size, name)| {
            assert_eq!(*offset, end, "{name}");
            end + size
        });
        assert_eq!(end, size_of::<$bytes>());
    }};
}

pub(crate) use assert_documented;
