//! `rebuild` and `replace`: a member that was lost is made anew, and what it held is computed from the other members.
//!
//! First the member gets all names and tables, while no program uses the array (`namespace::fill`); that takes seconds. Then this process opens one file after the other for writing, which has the bytes of each computed, while programs
//! work. The inode tables say which files wait, so a command that was cut short is given again and goes on where it was.

use crate::{
    events,
    failure::Failure,
    files::ArrayFiles,
    inspect,
    registry::{NamedArray, Registry},
    spec::{ArraySpec, Source},
    view::bytes_text,
};
use array::{Array, Member, Standing, events::EventKind};
use file::Unbuilt;
use format::{INODE_RECORD_BYTES, InodeRecord, inode_record_offset};
use indicatif::{ProgressBar, ProgressStyle};
use namespace::FillError;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{IsTerminal as _, stderr},
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use sys::{
    OsError,
    rustix::fs::{SeekFrom, seek},
};
use units::{MemberSet, Shown, Slot};

/// Makes members that are out anew in their directories: `member`, or all of them. Returns what is to be printed.
pub(crate) fn rebuild(source: &Source, member: Option<&Path>, thing: &str) -> Result<String, Failure> {
    let config = inspect::config(source)?;
    let members = foreseen(source, thing)?;
    let is_wanted = |found: &&Member| member.is_none_or(|member| is_at(found, member));
    let wanted: Vec<&Member> = members.iter().filter(is_wanted).collect();
    if let (Some(member), []) = (member, &wanted[..]) {
        let todo = "'cxlraid status' lists its members; 'cxlraid replace' puts a new directory in the place of one of them";
        return Err(Failure::new(member.display(), "not a member of the array", todo));
    }
    let out: Vec<&&Member> = wanted.iter().filter(|member| member.standing != Standing::InSync).collect();
    if out.is_empty() && !wanted.iter().any(|member| member.is_rebuilding) {
        return match member {
            Some(member) => Err(Failure::new(member.display(), "is in sync", "there is nothing to rebuild")),
            None => Ok(format!("{thing}: every member is in sync; there is nothing to rebuild\n")),
        };
    }
    persist::fault::install_handlers().map_err(|error| inspect::refused(thing, &std::io::Error::from(error).to_string()))?;
    for member in out {
        namespace::fill(&config, member.slot).map_err(|error| not_filled(thing, error))?;
    }
    compute(source, thing)
}

/// Puts the directory `new` in the place of the member `old`, which is out. Returns what is to be printed.
pub(crate) fn replace(registry: &Registry, array: NamedArray, old: &Path, new: &Path) -> Result<String, Failure> {
    let thing = array.name.to_string();
    let [old, new] = [old, new].map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let [old, new]: [PathBuf; 2] = [old, new].map(|path| path.components().collect());
    let source = |spec: &ArraySpec| Source::Named(array.name.clone(), spec.clone(), Some(array.uuid.clone()));
    let mut spec = array.spec.clone();
    let Some(place) = spec.members.iter().position(|member| *member == old) else {
        // A replacement that was cut short behind its last step but one is named already.
        let todo = if spec.members.contains(&new) {
            "its place is taken already; 'cxlraid rebuild' goes on"
        } else {
            "'cxlraid status' lists its members"
        };
        return Err(Failure::new(old.display(), "not a member of the array", todo));
    };
    let works = |member: &Member| is_at(member, &old) && member.standing == Standing::InSync;
    if foreseen(&source(&spec), &thing)?.iter().any(works) {
        let todo = "only a member that is out can be replaced: unmount or move it first";
        return Err(Failure::new(old.display(), "is in sync", todo));
    }
    spec.members[place] = new.clone();
    spec.check()?;
    let changed = source(&spec);
    let members = foreseen(&changed, &thing)?;
    let Some(member) = members.iter().find(|member| is_at(member, &new)) else {
        return Err(Failure::new(new.display(), "has no place in the array", "'cxlraid status' lists its members"));
    };
    if member.standing != Standing::InSync {
        persist::fault::install_handlers().map_err(|error| inspect::refused(&thing, &std::io::Error::from(error).to_string()))?;
        namespace::fill(&inspect::config(&changed)?, member.slot).map_err(|error| not_filled(&thing, error))?;
    }
    registry.change(&NamedArray { spec, ..array })?;
    compute(&changed, &thing)
}

/// The members as a start would find them.
fn foreseen(source: &Source, thing: &str) -> Result<Vec<Member>, Failure> {
    let members = Array::foresee(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    if members.is_empty() {
        return Err(Failure::new(thing, "has no members yet", "'cxlraid create' makes an array"));
    }
    Ok(members)
}

fn is_at(member: &Member, path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.components().collect::<PathBuf>() == Path::new(OsStr::from_bytes(&member.path))
}

fn not_filled(thing: &str, error: FillError) -> Failure {
    match error {
        FillError::Os(error) => Failure::new(
            thing,
            format!("the member cannot be filled: {}", std::io::Error::from(error)),
            "see to it that its device works, and try again",
        ),
        error => inspect::refused(thing, &error.to_string()),
    }
}

/// Has the bytes of all files that wait computed, and says in the superblocks that the members are in sync.
fn compute(source: &Source, thing: &str) -> Result<String, Failure> {
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    let cannot = |error: OsError| inspect::refused(thing, &std::io::Error::from(error).to_string());
    let rebuilding: MemberSet = array.members().iter().filter(|member| member.is_rebuilding).map(|member| member.slot).collect();
    let tell = events::begin(source, thing, array.uuid());
    let files = ArrayFiles::open(array.telling(tell))?;
    let core = files.core();
    let waits =
        |files: Vec<Unbuilt>| -> BTreeMap<u64, u64> { files.iter().map(|file| (file.attribute.inode, file.bytes)).collect() };
    let mut left = waits(core.unbuilt().map_err(cannot)?);
    let (count, bytes, begun) = (left.len(), left.values().sum::<u64>(), Instant::now());
    let progress = progress(bytes);
    let tell_of = |kind, count: usize, what: &str| {
        for slot in rebuilding.iter() {
            events::tell(kind, Some(&core.array().members()[slot].path), Some(count as u64), what);
        }
    };
    tell_of(EventKind::RebuildStarted, count, "files wait to be computed");
    files.open_each_to_write(|inode| {
        if let Some(bytes) = left.remove(&inode) {
            progress.inc(bytes);
        }
        !left.is_empty()
    });
    progress.finish_and_clear();
    let left = core.unbuilt().map_err(cannot)?;
    if !left.is_empty() {
        let what = format!(
            "{} of {count} files still wait to be rebuilt ({})",
            left.len(),
            bytes_text(left.iter().map(|file| file.bytes).sum())
        );
        let todo = "run it as a user who may write to every file, with all other members in use";
        return Err(Failure::new(thing, what, todo));
    }
    core.array().end_rebuild(rebuilding).map_err(cannot)?;
    tell_of(EventKind::RebuildFinished, count, "the member is in sync");
    let (seconds, members) = (begun.elapsed().as_secs_f64(), core.array().members());
    let names: Vec<String> = rebuilding.iter().map(|slot| Shown(&members[slot].path).to_string()).collect();
    Ok(format!("{thing}: {} in sync; {count} files, {} computed in {seconds:.1} s\n", names.join(", "), bytes_text(bytes)))
}

/// A bar of bytes of files, on a terminal.
fn progress(bytes: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} to go");
    let bar = ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How many files wait for a member that is being rebuilt, and how many bytes they have, by the inode table under another member's `.cxlraid`. None if this user may not read it.
pub(crate) fn waiting(meta: &Path, slot: Slot) -> Option<(usize, u64)> {
    let table = inspect::open_regular(&meta.join("inodes")).ok()?;
    let (mut count, mut bytes) = (0, 0);
    let mut record = [0; INODE_RECORD_BYTES];
    let mut number = 1;
    // Only what the file has data for, whatever its length.
    while let Ok(data) = seek(table.as_fd(), SeekFrom::Data(inode_record_offset(number))) {
        let end = seek(table.as_fd(), SeekFrom::Hole(data)).ok()?;
        number = number.max((data.saturating_sub(inode_record_offset(1))) / INODE_RECORD_BYTES as u64 + 1);
        while inode_record_offset(number + 1) <= end {
            table.read_exact_at(&mut record, inode_record_offset(number)).ok()?;
            if let Ok(Some(found)) = InodeRecord::decode(number, &record)
                && found.resync.is_some_and(|resync| resync.lost.contains(slot))
            {
                count += 1;
                bytes += found.size;
            }
            number += 1;
        }
        // A record that the data end in the middle of.
        number += 1;
    }
    Some((count, bytes))
}
