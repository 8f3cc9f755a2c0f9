//! Panicking calls in the optimised library, counted by the crate whose function makes them. A
//! panic in the library ends a program that did nothing wrong, so no argument of a program may lead
//! to one; `cargo x differ` looks for such arguments, and this count keeps new ones out.
//!
//! What is counted is what the compiler has left of checks that it could not prove: calls and jumps
//! to the functions of core and alloc that panic. A bound that is checked by hand is none of them.
//! Running out of memory is counted apart: the private allocator takes its memory from the kernel,
//! and without any there is nothing to answer with.

use std::{collections::BTreeMap, path::Path, process::Command};

/// At most so many there may be, by crate: a tenth more than were counted, since each change moves
/// a few. When there are far fewer, the number is lowered. Functions of core and alloc that are not
/// inlined count as those crates'.
const REVIEWED: &[(&str, usize)] = &[
    ("core and alloc", 234),
    ("cxlraid-array", 386),
    ("cxlraid-dax", 31),
    ("cxlraid-file", 285),
    ("cxlraid-format", 6),
    ("cxlraid-intent", 13),
    ("cxlraid-layout", 5),
    ("cxlraid-namespace", 470),
    ("cxlraid-parity", 13),
    ("cxlraid-persist", 19),
    ("cxlraid-preload", 535),
    ("cxlraid-sys", 6),
    ("cxlraid-units", 8),
    ("iced-x86", 38),
    ("rustix", 75),
    ("spin", 5),
];

/// Calls that do not return because no memory is left, in all crates.
const WITHOUT_MEMORY: usize = 730;

const PANICKING: [&str; 9] = [
    "core::panicking::",
    "core::slice::index::slice_",
    "core::slice::copy_from_slice_impl::",
    "core::option::unwrap_failed",
    "core::option::expect_failed",
    "core::result::unwrap_failed",
    "core::str::slice_error_fail",
    "core::cell::panic_",
    "alloc::raw_vec::capacity_overflow",
];
const OUT_OF_MEMORY: [&str; 2] = ["alloc::alloc::handle_alloc_error", "alloc::raw_vec::handle_error"];

/// Counts them in a library and compares.
///
/// # Errors
/// More than there were, or no disassembler.
pub(crate) fn check(library: &Path) -> Result<(), String> {
    let output = Command::new("objdump").args(["-d", "-C", "--no-show-raw-insn"]).arg(library).output();
    let output = output.map_err(|error| format!("objdump: {error}; install binutils"))?;
    if !output.status.success() {
        return Err(format!("objdump {}: {}", library.display(), String::from_utf8_lossy(&output.stderr)));
    }
    let (found, without_memory) = count(&String::from_utf8_lossy(&output.stdout));
    let all: usize = found.values().sum();
    println!("{all} panicking calls in {}, and {without_memory} where no memory is left", library.display());
    let mut complaints = Vec::new();
    let mut compare = |name: &str, found: usize, reviewed: usize| {
        println!(
            "  {found:>5} {name}{}",
            if found * 5 < reviewed * 4 { format!(" (limit {reviewed}: lower it)") } else { String::new() }
        );
        if found > reviewed {
            complaints.push(format!("{name}: {found} panicking calls, at most {reviewed} are expected: look at the new ones (objdump -d -C), then raise the number"));
        }
    };
    for (name, &count) in &found {
        compare(name, count, REVIEWED.iter().find(|(reviewed, _)| reviewed == name).map_or(0, |&(_, count)| count));
    }
    compare("without memory", without_memory, WITHOUT_MEMORY);
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

/// How many panicking calls each crate's functions make, and how many calls there are for want of
/// memory.
fn count(disassembly: &str) -> (BTreeMap<String, usize>, usize) {
    let (mut found, mut without_memory, mut owner) = (BTreeMap::new(), 0, String::new());
    for line in disassembly.lines() {
        if let Some(function) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            owner = crate_of(function.1);
            continue;
        }
        let is_call = line.contains("\tcall ") || line.contains("\tjmp ");
        let Some((_, target)) = line.split_once(" <").filter(|_| is_call) else { continue };
        if PANICKING.iter().any(|name| target.starts_with(name)) {
            *found.entry(owner.clone()).or_insert(0) += 1;
        } else if OUT_OF_MEMORY.iter().any(|name| target.starts_with(name)) {
            without_memory += 1;
        }
    }
    (found, without_memory)
}

/// The crate of a function, by its name: `<a::B as c::D>::e` is `a`'s.
fn crate_of(function: &str) -> String {
    let start = function.trim_start_matches(['<', '&', '_', '[', '(', ' ']);
    let start = start.strip_prefix("mut ").unwrap_or(start);
    let end = start.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(start.len());
    match &start[..end] {
        // The library itself.
        "cxlraid" => "cxlraid-preload".to_owned(),
        name if name.starts_with("cxlraid_") || matches!(name, "iced_x86" | "rustix" | "spin" | "talc") => name.replace('_', "-"),
        _ => "core and alloc".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_crate() {
        let text = "0000000000001000 <cxlraid::calls::data::read>:\n    1000:\tcall   2000 <core::panicking::panic_bounds_check>\n    1005:\tjmp    1010 <cxlraid::calls::data::read+0x10>\n\
            0000000000001100 <<cxlraid_file::Inode as core::fmt::Debug>::fmt>:\n    1100:\tjmp    2000 <core::panicking::panic>\n    1105:\tcall   2100 <alloc::alloc::handle_alloc_error>\n";
        let (found, without_memory) = count(text);
        assert_eq!(found, BTreeMap::from([("cxlraid-preload".to_owned(), 1), ("cxlraid-file".to_owned(), 1)]));
        assert_eq!(without_memory, 1);
    }

    #[test]
    fn names_of_crates_are_found_in_names_of_functions() {
        for (function, owner) in [
            ("cxlraid_array::stripe::write", "cxlraid-array"),
            ("<&mut cxlraid_dax::Backing as core::fmt::Debug>::fmt", "cxlraid-dax"),
            ("<[u8] as alloc::slice::Concat>::concat", "core and alloc"),
            ("alloc::vec::Vec<T>::push", "core and alloc"),
        ] {
            assert_eq!(crate_of(function), owner, "{function}");
        }
    }
}
