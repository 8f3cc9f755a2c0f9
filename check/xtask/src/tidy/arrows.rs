//! Which crate may depend on which: down the path of a request, never up, never sideways between
//! fronts.
//!
//! The rule is data: a layer per folder, a rank per crate within its layer. An arrow is allowed if
//! it goes to a lower layer, or to a lower rank within the layer. Crates that run inside programs
//! may use only the outside crates listed here.

use serde_json::Value;

/// Folders, lowest first. `control` stands beside `front`: neither may use the other, but for
/// [`BESIDE`].
const LAYERS: [(&str, usize); 6] = [("base", 0), ("media", 1), ("core", 2), ("front", 3), ("control", 3), ("check", 4)];

/// The one arrow between them: the mount has a process of its own, and the operator's command
/// starts it.
const BESIDE: (&str, &str) = ("control/cli", "front/mount");

/// Ranks within a layer. Crates that are not listed have no arrows within their layer.
const RANKS: [(&str, usize); 13] = [
    ("base/units", 0),
    ("base/sys", 1),
    ("base/persist", 2),
    ("base/sync", 2),
    ("media/medium", 0),
    ("media/dax", 1),
    ("core/layout", 0),
    ("core/parity", 0),
    ("core/format", 1),
    ("core/intent", 2),
    ("core/array", 3),
    ("core/file", 4),
    ("core/namespace", 5),
];

/// No I/O, clock, allocation or randomness, so nothing that offers them.
const PURE: [&str; 3] = ["core/layout", "core/parity", "core/format"];
const PURE_MAY_USE: [&str; 4] = ["base/units", "core/layout", "core/parity", "core/format"];

/// Outside crates that may run inside a program (ARCHITECTURE.md): without std, libc or hidden
/// threads.
const INSIDE_PROGRAMS: [&str; 10] =
    ["bitflags", "crc", "hashbrown", "iced-x86", "linux-raw-sys", "once_cell", "rustix", "talc", "thiserror", "zerocopy"];

/// A crate of the workspace.
#[derive(Debug)]
pub(super) struct Crate {
    /// Its folder relative to the root, such as "core/array".
    folder: String,
    manifest: String,
    /// Crates of the workspace it uses, by folder; those of its tests too.
    uses: Vec<String>,
    /// Outside crates it uses, without those of its tests.
    outside: Vec<String>,
}

/// The workspace as `cargo metadata` tells it.
pub(super) fn crates(metadata: &[u8]) -> Result<Vec<Crate>, String> {
    let metadata: Value = serde_json::from_slice(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let root = metadata["workspace_root"].as_str().ok_or("cargo metadata names no workspace root")?;
    let folder = |path: &str| path.strip_prefix(root).unwrap_or(path).trim_matches('/').to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let describe = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let (inside, outside): (Vec<Value>, Vec<Value>) =
            list(&package["dependencies"]).into_iter().partition(|dependency| dependency["path"].is_string());
        Crate {
            folder: folder(manifest.trim_end_matches("Cargo.toml")),
            uses: inside.iter().map(|dependency| folder(&text(&dependency["path"]))).collect(),
            outside: outside
                .iter()
                .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
                .map(|dependency| text(&dependency["name"]))
                .collect(),
            manifest,
        }
    };
    Ok(list(&metadata["packages"]).iter().map(describe).collect())
}

/// Arrows and manifests that break the rules.
pub(super) fn check(crates: &[Crate]) -> Vec<String> {
    let mut complaints = Vec::new();
    for this in crates {
        let from = &this.folder;
        complaints.extend(this.uses.iter().filter_map(|to| arrow(from, to)));
        for outside in &this.outside {
            if runs_inside_programs(from) && !INSIDE_PROGRAMS.contains(&outside.as_str()) {
                complaints
                    .push(format!("{from}/Cargo.toml: {outside} may not run inside programs (allowed: {INSIDE_PROGRAMS:?})"));
            }
        }
        let manifest = std::fs::read_to_string(&this.manifest).unwrap_or_default();
        if !inherits_lints(&manifest) {
            complaints.push(format!("{from}/Cargo.toml: does not inherit the workspace lints; add [lints] workspace = true"));
        }
    }
    complaints
}

/// What is wrong with one arrow.
fn arrow(from: &str, to: &str) -> Option<String> {
    let complaint = |why: &str| Some(format!("{from}/Cargo.toml: must not depend on {to}: {why}"));
    if PURE.contains(&from) && !PURE_MAY_USE.contains(&to) {
        return complaint("pure crates use units and each other only");
    }
    let (Some(from_layer), Some(to_layer)) = (layer(from), layer(to)) else {
        return complaint("one of them is in no known layer");
    };
    if to_layer < from_layer || (from, to) == BESIDE {
        return None;
    }
    if to_layer > from_layer {
        return complaint("arrows go down only");
    }
    match (rank(from), rank(to)) {
        (Some(from_rank), Some(to_rank)) if to_rank < from_rank => None,
        // Checks may share what describes right behaviour, and what runs them.
        _ if to == "check/model" || to == "check/stage" => None,
        _ => complaint("not an arrow within its layer"),
    }
}

fn layer(folder: &str) -> Option<usize> {
    let (top, _) = folder.split_once('/')?;
    LAYERS.iter().find(|(name, _)| *name == top).map(|&(_, layer)| layer)
}

fn rank(folder: &str) -> Option<usize> {
    RANKS.iter().find(|(name, _)| *name == folder).map(|&(_, rank)| rank)
}

fn runs_inside_programs(folder: &str) -> bool {
    folder == "front/preload" || layer(folder).is_some_and(|layer| layer <= 2)
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]");
    lines.next().is_some() && lines.take_while(|line| !line.starts_with('[')).any(|line| line == "workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_go_down() {
        let allowed = [
            ("core/array", "media/dax"),
            ("core/array", "core/intent"),
            ("core/array", "base/units"),
            ("core/format", "core/layout"),
            ("core/namespace", "core/file"),
            ("front/preload", "core/namespace"),
            ("control/cli", "core/array"),
            ("control/cli", "front/mount"),
            ("front/mount", "core/namespace"),
            ("check/bench", "core/file"),
            ("check/programs", "check/model"),
            ("media/dax", "media/medium"),
            ("base/persist", "base/sys"),
        ];
        for (from, to) in allowed {
            assert_eq!(arrow(from, to), None);
        }
    }

    #[test]
    fn every_other_arrow_is_found() {
        let forbidden = [
            ("base/units", "core/layout"),
            ("media/dax", "core/array"),
            ("media/medium", "media/dax"),
            ("core/file", "core/namespace"),
            ("core/array", "core/file"),
            ("core/parity", "core/layout2"),
            ("core/layout", "base/sys"),
            ("core/format", "media/medium"),
            ("core/namespace", "front/preload"),
            ("front/mount", "front/preload"),
            ("front/mount", "control/cli"),
            ("control/cli", "front/preload"),
            ("front/preload", "control/cli"),
            ("front/preload", "check/model"),
            ("check/bench", "check/programs"),
            ("core/array", "elsewhere"),
        ];
        for (from, to) in forbidden {
            assert!(arrow(from, to).is_some(), "{from} -> {to}");
        }
    }

    #[test]
    fn metadata_is_understood() {
        let metadata = br#"{
            "workspace_root": "/repo",
            "packages": [{
                "manifest_path": "/repo/core/layout/Cargo.toml",
                "dependencies": [
                    {"name": "cxlraid-sys", "kind": null, "path": "/repo/base/sys"},
                    {"name": "libc", "kind": null},
                    {"name": "proptest", "kind": "dev"}
                ]
            }]
        }"#;
        let crates = crates(metadata).unwrap();
        assert_eq!(crates[0].folder, "core/layout");
        let complaints = check(&crates);
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(complaints[0].starts_with("core/layout/Cargo.toml: must not depend on base/sys: pure"));
        assert!(complaints[1].starts_with("core/layout/Cargo.toml: libc may not run inside programs"));
        assert!(complaints[2].contains("does not inherit the workspace lints"));
    }

    #[test]
    fn lints_are_inherited_in_their_own_section() {
        assert!(inherits_lints("[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n"));
        assert!(!inherits_lints("[package]\nname = \"x\"\n"));
        assert!(!inherits_lints("[lints]\n[other]\nworkspace = true\n"));
    }
}
