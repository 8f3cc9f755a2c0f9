//! Fuzzing with coverage (libFuzzer): bytes that others may have written are read, and what was
//! read is judged.
//!
//! One program; `CXLRAID_FUZZ_TARGET` names the target, its arguments are libFuzzer's. A target
//! fails by a panic: overflows and out-of-range indices are such, and so are the assertions that
//! what was accepted is written as it was read.
//!
//! Checksums would keep mutated bytes from everything behind them. So where the first byte of an
//! input is odd the checksum is made right before the bytes are read.
#![no_main]

mod resolution;
mod segment;
mod settings;
mod tables;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

type Target = fn(&[u8]);

/// Every target by name; `cargo x fuzz` runs them in this order.
const TARGETS: [(&str, Target); 14] = [
    ("superblock", tables::superblock),
    ("table", tables::table),
    ("inode", tables::inode),
    ("lane", tables::lane),
    ("changed", tables::changed),
    ("names", tables::names),
    ("journal", tables::journal),
    ("attribute", tables::attribute),
    ("environment", settings::environment),
    ("named-array", settings::named_array),
    ("paths", settings::paths),
    ("geometry", settings::geometry),
    ("resolution", resolution::resolution),
    ("segment", segment::segment),
];

fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("CXLRAID_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let known = TARGETS.map(|(name, _)| name).join(", ");
        found.unwrap_or_else(|| panic!("CXLRAID_FUZZ_TARGET={name}: no such target; there are {known}")).1
    })
}

fuzz_target!(|input: &[u8]| target()(input));
