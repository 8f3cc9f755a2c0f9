//! A member that was away as the machine crashed, and comes back with what it had: only marked
//! files may be wrong on it, and no other.

use crate::case::Shape;
use crate::image::member_directory;
use crate::model::World;
use crate::recovery::{Return, recover};
use file::Files;
use format::{CHANGED_RECORD_BYTES, KEPT_BYTES, Kept, Leave, changed_record_offset};
use namespace::Content;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// The clock of the kernel has gone on after this.
const TICK: Duration = Duration::from_millis(12);

/// Brings the member back, as the first program does after the crash, and returns what there is
/// then. `is_proven`: it must be found to be the one that left, and, if `keeps`, keep some file.
///
/// # Errors
/// What no member that came back may show: members that differ, redundancy that does not fit.
pub(crate) fn re_add(shape: &Shape, home: &Path, (slot, is_proven, keeps): (usize, bool, bool)) -> Result<World, String> {
    leave_as_it_was(shape, home, slot).map_err(|error| format!("laying out: {error}"))?;
    let config = shape.config(home)?;
    let proven = namespace::prove(&config, slot).map_err(|error| error.to_string())?;
    if let (true, Err(unproven)) = (is_proven, proven) {
        return Err(format!("all of it would be made anew: {unproven}"));
    }
    namespace::fill(&config, slot, Content::Kept).map_err(|error| error.to_string())?;
    let lost = lost(shape, home)?;
    let found = recover(shape, home, Return::default())?;
    if found.out != 0 {
        return Err("a member is out".to_owned());
    }
    if is_proven && keeps && lost >= found.world.files.len() {
        return Err("it keeps no file".to_owned());
    }
    Ok(found.world)
}

/// Returns how many files are to be computed.
fn lost(shape: &Shape, home: &Path) -> Result<usize, String> {
    let array = array::Array::attach(&shape.config(home)?).map_err(|error| error.to_string())?;
    let segment = array::runtime::segment_path(array.uuid());
    let files = Files::new(array).map_err(|error| error.to_string())?;
    let unbuilt = files.unbuilt().map_err(|error| error.to_string());
    files.detach();
    files.array().abandon();
    let _ = fs::remove_file(segment);
    Ok(unbuilt?.len())
}

/// A state that is laid out has files with other inode numbers and other times than those that the
/// crash left. What the engine compares is made to fit: the member's table of backing files names
/// itself, and the member left after its files were laid out. A table that names another file is
/// that of a copy, and stays so.
fn leave_as_it_was(shape: &Shape, home: &Path, slot: usize) -> std::io::Result<()> {
    let meta = |slot: usize| member_directory(home, slot).join(".cxlraid");
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let backings = open(&meta(slot).join("backings"))?;
    let mut record = [0; format::BACKING_RECORD_BYTES];
    let at = format::backing_record_offset(0);
    if backings.read_exact_at(&mut record, at).is_ok() && format::is_sound_backing(0, &record) {
        let generation = record[format::BACKING_GENERATION_OFFSET..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let own = backings.metadata()?.ino();
        record[format::BACKING_FILE_OFFSET..][..8].copy_from_slice(&own.to_le_bytes());
        record[format::BACKING_CHECK_OFFSET..][..8].copy_from_slice(&format::backing_check(0, own, generation).to_le_bytes());
        backings.write_all_at(&record, at)?;
    }
    sleep(TICK);
    let left_ns = sys::clock::realtime_coarse_ns();
    for other in (0..shape.member_count).filter(|&other| other != slot) {
        let Ok(table) = open(&meta(other).join("changed")) else { continue };
        let mut record = [0; CHANGED_RECORD_BYTES];
        table.read_exact_at(&mut record, changed_record_offset(slot))?;
        if let Some(leave) = Leave::decode(slot, &record) {
            table.write_all_at(&Leave { left_ns, ..leave }.encode(slot), changed_record_offset(slot))?;
        }
    }
    let Ok(kept) = open(&meta(slot).join("kept")) else { return Ok(()) };
    let mut bytes = [0; KEPT_BYTES];
    if let (Ok(()), Some(found)) = (kept.read_exact_at(&mut bytes, 0), Kept::decode(&bytes)) {
        kept.write_all_at(&Kept { left_ns, ..found }.encode(), 0)?;
    }
    Ok(())
}
