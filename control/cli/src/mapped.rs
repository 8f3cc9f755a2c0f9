//! What programs have of an array's files in memory mappings, looked at from outside.

use crate::view::{MappingsView, UnitView};
use array::mapped::UNITS_BYTES;
use format::Uuid;
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// How many files are mapped, and the shared copies; None for nothing.
pub(crate) fn mappings(uuid: Uuid) -> Option<MappingsView> {
    let counts = array::runtime::count_mappings(uuid).unwrap_or_default();
    let in_use = UNITS_BYTES.into_iter().zip(counts.files_by_unit).filter(|&(_, files)| files != 0);
    let units = in_use.map(|(bytes, files)| UnitView { bytes, files }).collect();
    let mut view = MappingsView { processes: counts.processes, files: counts.files, units, ..MappingsView::default() };
    for copy in copies(Path::new(&array::runtime::segment_path(uuid))) {
        if let Ok(metadata) = fs::symlink_metadata(copy) {
            view.copies += 1;
            // Of 512 bytes (stat(2)): holes of the file are none of its memory.
            view.copy_bytes += metadata.blocks() * 512;
        }
    }
    (view != MappingsView::default()).then_some(view)
}

/// The shared copies of mapped files, beside the runtime segment.
pub(crate) fn copies(segment: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (segment.parent(), segment.file_name()) else { return Vec::new() };
    let prefix = format!("{}-map-", name.to_string_lossy());
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_one).collect()
}
