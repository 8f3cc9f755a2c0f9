//! An array as its members show it: superblocks are read, nothing is attached, locked or changed.
//!
//! So `status` works while programs run, for an array that cannot be started, and for users who may
//! only read. The standing of a member follows the same rules as core/array/assemble.

use crate::{
    failure::{Failure, without_numbers},
    spec::{NAME, Source},
    view::{self, ArrayView, MemberRole, MemberState, MemberView},
};
use array::{Array, AttachError, Config, Standing, why};
use format::{SUPERBLOCK_BYTES, SUPPORTED, Superblock, SuperblockError, Uuid};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::AsFd as _,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::OpenOptionsExt as _,
        },
    },
    path::{Path, PathBuf},
};
use sys::{OsError, rustix::fs::OFlags};

/// The configuration a command works with.
pub(crate) fn config(source: &Source) -> Result<Config, Failure> {
    let lookup = |name: &str| source.variable(name).map(std::ffi::OsString::into_vec);
    match Config::from_lookup(lookup) {
        Ok(Some(config)) => Ok(config),
        Ok(None) => Err(crate::run::no_array()),
        Err(error) => Err(refused("configuration", &error.to_string())),
    }
}

/// A core error, "what happened; what to do", in the shape of ours.
pub(crate) fn refused(thing: &str, text: &str) -> Failure {
    let (what, todo) = text.rsplit_once("; ").unwrap_or((text, ""));
    match what.split_once(": ") {
        Some((path, what)) if path.starts_with('/') || path.starts_with("CXLRAID_") => Failure::new(path, what, todo),
        _ => Failure::new(thing, what, todo),
    }
}

/// What lies at a member's path.
pub(crate) enum Found {
    /// No directory, or one that something other than cxlraid made.
    Nothing(&'static str),
    /// An empty directory.
    Blank,
    /// A superblock, and the index of the copy it came from.
    Member(Box<Superblock>),
    /// A superblock that cannot be used.
    Unusable(SuperblockError),
    /// It cannot be looked at.
    Failed(io::Error),
}

/// Looks at a member directory.
pub(crate) fn look(member: &Path) -> Found {
    match fs::metadata(member) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing(why::NO_DIRECTORY),
        Err(error) => return Found::Failed(error),
        Ok(metadata) if !metadata.is_dir() => return Found::Nothing("not a directory"),
        Ok(_) => {}
    }
    match read_superblock(member) {
        Ok(bytes) => match Superblock::choose(&bytes) {
            Ok((superblock, _)) => Found::Member(Box::new(superblock)),
            Err(error) => Found::Unusable(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => match is_blank(member) {
            Ok(true) => Found::Blank,
            Ok(false) => Found::Nothing(why::NO_SUPERBLOCK),
            Err(error) => Found::Failed(error),
        },
        Err(error) => Found::Failed(error),
    }
}

/// Whether a directory holds nothing but what mkfs, or a creation cut short, left there.
fn is_blank(member: &Path) -> io::Result<bool> {
    Ok(array::is_empty(File::open(member)?.as_fd())?)
}

/// The bytes of both copies, fewer if the file is shorter.
pub(crate) fn read_superblock(member: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(SUPERBLOCK_BYTES);
    open_regular(&superblock_file(member))?.take(SUPERBLOCK_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that a member has or names, to be read. What is no regular file is refused before
/// it is opened and, if it takes another's place meanwhile, without waiting for it: a pipe waits
/// for a writer, a device may act.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let require = |metadata: &fs::Metadata| match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_symlink() => Err(io::Error::other("it is a symbolic link")),
        _ => Err(io::Error::other("it is not a regular file")),
    };
    require(&fs::symlink_metadata(path)?)?;
    let careful = (OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY).bits() as i32;
    let file = File::options().read(true).custom_flags(careful).open(path)?;
    require(&file.metadata()?)?;
    Ok(file)
}

/// Where a member keeps it.
pub(crate) fn superblock_file(member: &Path) -> PathBuf {
    let name = |name: &std::ffi::CStr| OsStr::from_bytes(name.to_bytes()).to_owned();
    member.join(name(format::DIRECTORY)).join(name(format::SUPERBLOCK_FILE))
}

/// Refuses a user whom the array is not open to: what such a user could be shown would be wrong.
pub(crate) fn require_rights(config: &Config) -> Result<(), Failure> {
    array::check_all_rights(config).map_err(|error| refused("array", &error.to_string()))
}

/// The newest superblock of the array of `source`.
pub(crate) fn newest(source: &Source, thing: &str) -> Result<Superblock, Failure> {
    let config = config(source)?;
    require_rights(&config)?;
    let members = config.mounts;
    let found: Vec<Found> = members.iter().map(|path| look(Path::new(OsStr::from_bytes(path)))).collect();
    Superblock::newest(found.iter().filter_map(superblock))
        .cloned()
        .ok_or_else(|| Failure::new(thing, "no member has a superblock", "check that the members' devices are mounted"))
}

/// The array of `source`, as found now.
pub(crate) fn view(source: &Source) -> Result<ArrayView, Failure> {
    let config = config(source)?;
    require_rights(&config)?;
    let paths: Vec<PathBuf> = config.mounts.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
    let look_at_all = || -> Vec<Found> { paths.iter().map(|path| look(path)).collect() };
    let is_even = |found: &[Found]| {
        let counts = || found.iter().filter_map(superblock).map(|superblock| superblock.event_count);
        counts().all(|count| count + 1 >= counts().max().unwrap_or(0))
    };
    let mut found = look_at_all();
    if !is_even(&found) {
        // Programs may have changed them between two looks.
        found = look_at_all();
    }
    let is_meant = |superblock: &&Superblock| config.uuid.is_none_or(|uuid| superblock.array_uuid == uuid);
    let newest = Superblock::newest(found.iter().filter_map(superblock).filter(is_meant));
    let uuid = newest.map(|superblock| superblock.array_uuid);
    let name = source.variable(NAME).map(|name| name.to_string_lossy().into_owned());
    let mut members = members(&paths, &found, newest, config.uuid);
    let jobs = uuid.map(|uuid| crate::control::jobs(uuid, &members)).unwrap_or_default();
    note_rebuilds(&mut members, &jobs);
    let refused = foreseen(&config, &mut members);
    let told = uuid.map(|uuid| crate::events::told(source, &uuid.to_string())).unwrap_or_default();
    let wrong_files = told.wrong.into_iter().map(|(path, logged)| view::WrongFileView {
        path,
        offset: logged.offset.unwrap_or(0),
        member: logged.member,
        is_unreadable: logged.event == array::events::EventKind::Unreadable.name(),
    });
    let last_scrub = told.last_scrub.map(|logged| view::ScrubView {
        ns: logged.ns,
        time: logged.time(),
        wrong: logged.count.unwrap_or(0),
        result: logged.what,
    });
    Ok(ArrayView {
        refused,
        journal: newest.and_then(|superblock| crate::journal::summary(&config, superblock)),
        name: name.or_else(|| newest.map(|superblock| superblock.array_name.as_str().to_owned())).filter(|name| !name.is_empty()),
        uuid: uuid.map(|uuid| uuid.to_string()),
        level: newest.map_or(config.level, |superblock| superblock.level),
        chunk: newest.map_or(config.chunk.unwrap_or(units::ChunkBytes::DEFAULT), |superblock| superblock.chunk),
        read_policy: read_policy(config.level, newest),
        checksum: newest.is_some_and(Superblock::has_sums).then_some("crc32c"),
        verifies_reads: newest.is_some_and(Superblock::verifies_reads),
        members,
        paths: config.prefixes.iter().map(|prefix| String::from_utf8_lossy(prefix).into_owned()).collect(),
        processes: uuid.map(crate::runtime::attached).unwrap_or_default(),
        mappings: uuid.and_then(crate::mapped::mappings),
        spares: crate::spare::views(source),
        jobs,
        last_scrub,
        wrong_files: wrong_files.collect(),
        names_compared: true,
        mounted: Vec::new(),
        private: Vec::new(),
        format_version: SUPPORTED.to_string(),
    })
}

/// Which copies are read, where the level keeps copies.
fn read_policy(wanted: layout::Level, newest: Option<&Superblock>) -> Option<format::ReadPolicy> {
    let level = newest.map_or(wanted, |superblock| superblock.level);
    level.keeps_copies().then(|| newest.map(Superblock::read_policy).unwrap_or_default())
}

/// Notes how much is still to be computed for members that are being rebuilt, as another member has
/// it.
fn note_rebuilds(members: &mut [MemberView], jobs: &[view::JobView]) {
    let meta = |member: &MemberView| Path::new(&member.path).join(OsStr::from_bytes(format::DIRECTORY.to_bytes()));
    let Some(meta) = members.iter().find(|member| member.state == MemberState::InSync).map(meta) else { return };
    for member in members.iter_mut().filter(|member| member.state == MemberState::Rebuilding) {
        if let Some((files, bytes)) = crate::rebuild::waiting(&meta, member.slot) {
            let noun = if files == 1 { "file waits" } else { "files wait" };
            let is_at_work = jobs.iter().any(|job| job.kind != "scrub");
            let todo = if is_at_work { "" } else { "; 'cxlraid rebuild' goes on" };
            member.note = Some(format!("{files} {noun}, {}{todo}", view::bytes_text(bytes)));
        }
    }
}

/// Notes of members what a start would find besides their superblocks. Returns why a start would be
/// refused, unless the members are read-only where this command runs.
fn foreseen(config: &Config, members: &mut [MemberView]) -> Option<String> {
    match Array::foresee(config) {
        Ok(found) => {
            let found =
                found.iter().map(|found| (Path::new(OsStr::from_bytes(&found.path)), found.slot, found.standing, found.reason()));
            note_standings(&found.collect::<Vec<_>>(), members);
            None
        }
        Err(AttachError::Os { error: OsError::ROFS, .. }) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Notes of members in which slot a start would have them, and what it would find wrong. A member
/// is known by its directory: what lies there may have the superblock of another member, which a
/// start does not come to read.
fn note_standings(found: &[(&Path, usize, Standing, Option<&str>)], members: &mut [MemberView]) {
    for member in members.iter_mut().filter(|member| member.state.works()) {
        let Some(&(_, slot, standing, reason)) = found.iter().find(|(path, ..)| path.display().to_string() == member.path) else {
            continue;
        };
        member.slot = slot;
        if standing != Standing::InSync {
            let note = reason.unwrap_or("a start does without it");
            let state = if standing == Standing::Stale { MemberState::Stale } else { MemberState::Failed };
            (member.state, member.note) = (state, Some(note.to_owned()));
        }
    }
    members.sort_by_key(|member| member.slot);
}

fn superblock(found: &Found) -> Option<&Superblock> {
    match found {
        Found::Member(superblock) => Some(superblock),
        _ => None,
    }
}

/// One line per slot. A path without a superblock stands for the slots no superblock claims, in the
/// order given.
fn members(paths: &[PathBuf], found: &[Found], newest: Option<&Superblock>, expected: Option<Uuid>) -> Vec<MemberView> {
    // Another array's member claims no slot of this one.
    let own = |found| superblock(found).filter(|own| expected.is_none_or(|expected| own.array_uuid == expected));
    let claimed = |slot| found.iter().filter_map(own).any(|superblock| superblock.slot == slot);
    let mut free_slots = (0..paths.len()).filter(|&slot| newest.is_none() || !claimed(slot)).collect::<Vec<_>>().into_iter();
    let mut members: Vec<MemberView> = paths
        .iter()
        .zip(found)
        .map(|(path, found)| {
            let slot = own(found).map_or_else(|| free_slots.next().unwrap_or(0), |superblock| superblock.slot);
            member(slot, path, found, newest, expected)
        })
        .collect();
    let superblocks = || found.iter().filter_map(own);
    for member in &mut members {
        let this = superblocks().find(|superblock| superblock.slot == member.slot);
        let is_apart = |this: &Superblock| superblocks().any(|other| array::split::were_used_apart(this, other, superblocks));
        if this.is_some_and(is_apart) {
            let note = "used without others, which were used without it; choose with 'cxlraid assemble --prefer MEMBER'";
            (member.state, member.note) = (MemberState::Failed, Some(note.to_owned()));
        }
    }
    members.sort_by_key(|member| member.slot);
    // A start judges the same: a member that somebody has emptied has not what the others have.
    let is_emptied =
        |member: &MemberView| member.state == MemberState::InSync && is_blank(Path::new(&member.path)).unwrap_or(false);
    if members.iter().any(|member| member.state == MemberState::InSync && !is_emptied(member)) {
        for member in &mut members {
            if is_emptied(member) {
                (member.state, member.note) = (MemberState::Failed, Some(why::EMPTIED.to_owned()));
            }
        }
    }
    members
}

fn member(slot: usize, path: &Path, found: &Found, newest: Option<&Superblock>, expected: Option<Uuid>) -> MemberView {
    let (state, note) = match (found, newest) {
        (Found::Nothing(what), _) => (MemberState::Missing, Some((*what).to_owned())),
        (Found::Blank, None) if expected.is_none() => (MemberState::New, None),
        (Found::Blank, _) => (MemberState::Missing, Some(why::EMPTY.to_owned())),
        (Found::Member(own), _) if expected.is_some_and(|expected| own.array_uuid != expected) => {
            (MemberState::Failed, Some(why::of_array(own.array_uuid)))
        }
        (Found::Member(own), newest) => standing(own, newest.unwrap_or(own)),
        (Found::Unusable(error), _) => (MemberState::Failed, Some(error.to_string())),
        (Found::Failed(error), _) => (MemberState::Failed, Some(without_numbers(error.to_string()))),
    };
    let fast = newest.map(array::backed::fast).unwrap_or_default();
    let role = (!fast.is_empty()).then(|| if fast.contains(slot) { MemberRole::Fast } else { MemberRole::Backing });
    let holds_nothing = matches!(found, Found::Blank | Found::Nothing(why::NO_DIRECTORY));
    let is_blank = role == Some(MemberRole::Fast) && holds_nothing && state == MemberState::Missing;
    let note = if is_blank { Some("blank, as after a restart of the machine".to_owned()) } else { note };
    let (bytes_total, bytes_free) = crate::runtime::capacity(path).filter(|_| state != MemberState::Missing).unzip();
    MemberView {
        slot,
        path: path.display().to_string(),
        state,
        note,
        event_count: superblock(found).map(|superblock| superblock.event_count),
        persistence: crate::runtime::persistence(path).filter(|_| state != MemberState::Missing),
        write_mostly: newest.is_some_and(|newest| newest.members[slot].is_write_mostly()),
        role,
        is_blank,
        bytes_total,
        bytes_free,
        names_lost: 0,
    }
}

fn standing(own: &Superblock, newest: &Superblock) -> (MemberState, Option<String>) {
    if own.array_uuid != newest.array_uuid {
        return (MemberState::Failed, Some(why::of_array(own.array_uuid)));
    }
    let believed = newest.members[own.slot];
    let current = own.is_current(newest);
    match believed.state {
        format::MemberState::InSync if believed.uuid == own.member_uuid && current => (MemberState::InSync, None),
        format::MemberState::Rebuilding if believed.uuid == own.member_uuid && current => (MemberState::Rebuilding, None),
        format::MemberState::Failed if !why::is_begun(own, newest) => {
            (MemberState::Failed, Some(why::stale(own, newest).to_owned()))
        }
        _ => (MemberState::Stale, Some(why::stale(own, newest).to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_with_another_members_superblock_is_known_by_its_place() {
        let at = |slot, path: &str| MemberView {
            slot,
            path: path.to_owned(),
            state: MemberState::InSync,
            note: None,
            event_count: None,
            persistence: None,
            write_mostly: false,
            role: None,
            is_blank: false,
            bytes_total: None,
            bytes_free: None,
            names_lost: 0,
        };
        // The second directory holds a copy of the third's superblock, and its file system is
        // read-only.
        let mut members = [at(0, "/m0"), at(2, "/m1"), at(2, "/m2")];
        let found = [("/m0", 0, Standing::InSync), ("/m1", 1, Standing::Failed), ("/m2", 2, Standing::InSync)];
        note_standings(&found.map(|(path, slot, standing)| (Path::new(path), slot, standing, None)), &mut members);
        let told = members.each_ref().map(|member| (member.slot, member.path.as_str(), member.state.works()));
        assert_eq!(told, [(0, "/m0", true), (1, "/m1", false), (2, "/m2", true)]);
    }

    #[test]
    fn core_errors_keep_their_parts() {
        let line = |text| refused("db", text).to_string();
        assert_eq!(
            line("/mnt/a: not a directory; a member is a directory"),
            "cxlraid: /mnt/a: not a directory; a member is a directory"
        );
        assert_eq!(line("the members changed; try again"), "cxlraid: db: the members changed; try again");
        assert_eq!(line("odd"), "cxlraid: db: odd");
    }
}
