//! What users say: the environment, paths; and arithmetic on what files say of their shape.

use array::Config;
use array::config::{is_below, normalise};
use layout::{Geometry, Level};
use units::{ChunkBytes, Shown, parse_bytes};

const VARIABLES: [&str; 9] = [
    "CXLRAID_LEVEL",
    "CXLRAID_MOUNTS",
    "CXLRAID_PATHS",
    "CXLRAID_STRIPE_SIZE",
    "CXLRAID_JOURNAL",
    "CXLRAID_NAME",
    "CXLRAID_JOURNAL_LANES",
    "CXLRAID_MAP_UNIT",
    "CXLRAID_UUID",
];

/// The input has one line for each variable, in the order of this list.
pub(super) fn environment(input: &[u8]) {
    let mut lines = input.split(|&byte| byte == b'\n');
    let values: Vec<(&str, Vec<u8>)> = VARIABLES.iter().map_while(|name| Some((*name, lines.next()?.to_vec()))).collect();
    let get = |name: &str| values.iter().find(|(known, value)| *known == name && value != b"-").map(|(_, value)| value.clone());
    match Config::from_lookup(get) {
        Ok(Some(config)) => {
            assert!(!config.mounts.is_empty());
            for path in config.mounts.iter().chain(&config.prefixes) {
                // The root is the empty path, which no prefix is.
                assert!(path.is_empty() || path.starts_with(b"/"), "{}", Shown(path));
                assert_eq!(normalise(path), *path, "{}", Shown(path));
            }
            assert!(!config.prefixes.contains(&Vec::new()));
            let _ = config.owns(input);
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().contains(['\n', '\u{1b}']), "a line for people holds text of others raw"),
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = parse_bytes(text);
    }
}

/// The file of a named array: it is refused in one line, or reads back as it is written.
pub(super) fn named_array(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match cli::rewrite_named_array(text) {
        Ok(written) => assert_eq!(cli::rewrite_named_array(&written), Ok(written), "{text}"),
        Err(error) => assert!(!error.contains(['\n', '\u{1b}']), "a line for people holds text of others raw"),
    }
}

pub(super) fn paths(input: &[u8]) {
    let (one, two) = input.split_at(input.iter().position(|&byte| byte == 0).unwrap_or(input.len() / 2));
    let (one, two) = (normalise(one), normalise(two));
    assert_eq!(normalise(&one), one, "{}", Shown(&one));
    assert!(!one.split(|&byte| byte == b'/').any(|part| part == b".."));
    if is_below(&one, &two) {
        assert!(one.starts_with(&two));
    }
    assert!(!Shown(input).to_string().contains(|character: char| character.is_control()));
}

pub(super) fn geometry(input: &[u8]) {
    let &[level, members, chunk, ref rest @ ..] = input else { return };
    let mut offset = [0; 8];
    let count = rest.len().min(8);
    offset[..count].copy_from_slice(&rest[..count]);
    // Offsets of files are below 2^63.
    let offset = u64::from_le_bytes(offset) >> 1;
    let Some(level) = Level::from_code(level) else { return };
    let Some(chunk) = ChunkBytes::from_shift(6 + u32::from(chunk) % 21) else { return };
    let Ok(geometry) = Geometry::new(level, usize::from(members), chunk) else { return };
    let place = geometry.locate(offset);
    assert_eq!(geometry.offset_of(place), offset);
    assert!(place.column < geometry.data_columns());
    assert_eq!(geometry.lock_block_of(offset), offset / geometry.lock_block_bytes());
    let bytes = geometry.member_bytes(offset);
    assert!(geometry.file_bytes(bytes) >= offset);
    for copy in 0..geometry.copy_count() {
        assert!(geometry.data_slot(place.stripe, place.column, copy) < geometry.member_count());
    }
    for which in 0..level.parity_count() {
        assert!(geometry.parity_slot(place.stripe, which) < geometry.member_count());
    }
}
