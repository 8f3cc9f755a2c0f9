//! `cxlraid create`: an array of member directories, with a name.
//!
//! Invariants: a name is saved as a whole or not at all, for one array only; a creation that fails
//! leaves members, journal and names as they were, and takes away nothing that was there before it.

use crate::{
    access,
    args::{ChecksumName, Create},
    backed,
    commands::{called, journal_place},
    failure::Failure,
    inspect::{self, Found},
    journal,
    new_name::NewName,
    policy::Reads,
    registry::{NamedArray, Registry},
    run,
    spec::{ArraySpec, Source},
    taken::require_free,
    view::{self, ArrayView},
};
use array::{Array, Config, Creation, JournalPlace};
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Makes the array, and returns what `status` says of it.
pub(crate) fn create(arguments: &Create) -> Result<String, Failure> {
    let members = backed::Members::of(arguments)?;
    let spec = ArraySpec::from_arguments(arguments.level, arguments.chunk, &members.all, &arguments.paths)?;
    let reads = Reads::of(arguments, &members.backing, &spec)?;
    let registry = Registry::from_environment();
    registry.free_file(&arguments.name, arguments.system)?;
    let source = Source::Named(arguments.name.clone(), spec.clone(), None);
    let is_new = spec.members.iter().all(|member| is_unfinished(member));
    if !is_new {
        refuse_existing(&inspect::view(&source)?)?;
    }
    members.check(arguments.force)?;
    let mut config = inspect::config(&source)?;
    run::refuse_beside_library(&config, called(&source))?;
    config.creation = Creation::Asked;
    config.sums = arguments.checksum == Some(ChecksumName::Crc32c);
    if config.sums && spec.chunk.bytes() < array::sums::SUM_BLOCK_BYTES && spec.level.has_chunks() {
        let todo = "give a chunk of 4K or more, or leave --checksum out";
        return Err(Failure::new(&arguments.name, "a checksum is that of 4096 bytes, and the chunk has less", todo));
    }
    if config.sums && spec.level.failures_max(spec.members.len()) == 0 {
        let todo = "give it redundancy, or leave --checksum out";
        let what =
            format!("RAID {} of {} has no redundancy, and checksums are kept with that alone", spec.level, spec.members.len());
        return Err(Failure::new(&arguments.name, what, todo).with_exit(crate::failure::Exit::Usage));
    }
    config.access = access::wanted(&arguments.access)?;
    if let Some(place) = &arguments.journal {
        config = journal::with_place(&config, &journal_place(place)?)?;
    }
    // From here on nobody else makes an array of this name, and it is known that the name can be
    // saved.
    let name = registry.begin_name(&arguments.name, arguments.system)?;
    if is_new {
        require_free(&registry, None, &spec.members)?;
    }
    for warning in shared_devices(&spec.members) {
        say!("{warning}");
    }
    let uses = |array: &Array, thing: &str| reads.set(array, thing).and_then(|()| members.set(array, thing));
    make(&config, &source, name, with_spares(&registry, spec, &inspect::view(&source)?)?, &uses)?;
    Ok(inspect::view(&source)?.status_text())
}

/// Returns `spec`, which makes an array, with the spares that the array's other names list. A directory
/// that is a member by `spec` is left out.
fn with_spares(registry: &Registry, mut spec: ArraySpec, view: &ArrayView) -> Result<ArraySpec, Failure> {
    let others = registry.all()?.into_iter().map(|(_, array)| array).filter(|array| Some(&array.uuid) == view.uuid.as_ref());
    for spare in others.flat_map(|array| array.spec.spares) {
        let mut with = spec.clone();
        with.spares.push(spare);
        if with.check().is_ok() {
            spec = with;
        }
    }
    Ok(spec)
}

/// Makes the array and saves its name; `uses` says of the array how its members are used.
fn make(
    config: &Config,
    source: &Source,
    name: NewName,
    spec: ArraySpec,
    uses: &impl Fn(&Array, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let journal = config.journal.as_ref().and_then(journal_file);
    let had_journal = journal.as_ref().is_some_and(|file| fs::symlink_metadata(file).is_ok());
    // Nobody else comes in before the name is saved: what failed can be taken back.
    let array = Array::attach_holding(config).map_err(|error| inspect::refused(called(source), &error.to_string()))?;
    let uuid = array.uuid().to_string();
    let named = NamedArray { name: name.name().clone(), uuid: uuid.clone(), spec };
    if array.was_created() {
        let Err(failure) = uses(&array, called(source)).and_then(|()| name.save(&named)) else {
            array.let_in();
            return Ok(());
        };
        match array.unmake() {
            Ok(()) => {}
            Err((slot, error)) => {
                let member = String::from_utf8_lossy(&config.mounts[slot]).into_owned();
                let what =
                    format!("array {uuid} was made, and cannot be taken back ({}) after: {failure}", std::io::Error::from(error));
                return Err(Failure::new(member, what, "give it a name by creating it again"));
            }
        }
        if let Some(file) = journal.filter(|_| !had_journal) {
            let _ = fs::remove_file(file);
        }
        return Err(failure);
    }
    if config.access.is_some_and(|wanted| wanted != array.access()) {
        let what = format!(
            "the members are array {uuid}, which was made before and is open to {}",
            array::access::shown(array.access())
        );
        return Err(Failure::new(
            name.name(),
            what,
            "leave --owner, --group and --mode out, and use 'cxlraid access' afterwards",
        ));
    }
    say!("cxlraid: {}: the members are array {uuid}, which was made before; this is one more name for it", name.name());
    uses(&array, called(source))?;
    name.save(&named)?;
    // Making the paths needs the locks of the array that others may be waiting for.
    array.let_in();
    for prefix in &config.prefixes {
        let failed = |error: sys::OsError| {
            Failure::new(units::Shown(prefix), std::io::Error::from(error), "make the directory in the array")
        };
        array.make_directories(prefix).map_err(failed)?;
    }
    Ok(())
}

/// The file that a journal outside the members gets.
fn journal_file(place: &JournalPlace) -> Option<PathBuf> {
    let JournalPlace::File(path) = place else { return None };
    let path = Path::new(OsStr::from_bytes(path));
    Some(if path.is_dir() { path.join("cxlraid.journal") } else { path.to_owned() })
}

/// Tells whether a directory is blank, or holds what a creation left that was cut short before the
/// array was there: it is begun again.
fn is_unfinished(member: &Path) -> bool {
    match inspect::look(member) {
        Found::Blank => true,
        Found::Member(own) => own.event_count == 0,
        _ => false,
    }
}

/// A second name for an array that exists is refused unless it is complete: a typing mistake must
/// not degrade an array.
fn refuse_existing(view: &ArrayView) -> Result<(), Failure> {
    let blank = |state| matches!(state, view::MemberState::New | view::MemberState::InSync);
    match view.members.iter().find(|member| !blank(member.state)) {
        None => Ok(()),
        Some(member) => {
            let path = |member: &view::MemberView| PathBuf::from(&member.path);
            let is_empty = matches!(inspect::look(&path(member)), Found::Blank);
            let others = if is_empty { &view.members[..] } else { &[] };
            for other in others {
                if let Found::Member(own) = inspect::look(&path(other)) {
                    let called = own.array_name.as_str();
                    let called = if called.is_empty() { String::new() } else { format!(" ({called})") };
                    let what = format!("belongs to array {}{called}, and {} is empty", own.array_uuid, member.path);
                    let todo = "give empty directories, or every member of an existing array";
                    return Err(Failure::new(&other.path, what, todo));
                }
            }
            let note = member.note.as_deref().unwrap_or("cannot be used");
            Err(Failure::new(&member.path, note, "give empty directories, or every member of an existing array"))
        }
    }
}

/// A device that holds two members takes both with it.
pub(crate) fn shared_devices(members: &[PathBuf]) -> Vec<Failure> {
    use std::os::unix::fs::MetadataExt as _;
    let device = |member: &PathBuf| fs::metadata(member).ok().map(|metadata| metadata.dev());
    let devices: Vec<_> = members.iter().map(device).collect();
    let mut warnings = Vec::new();
    for (slot, member) in members.iter().enumerate() {
        if let Some(first) = devices[..slot].iter().position(|device| device.is_some() && *device == devices[slot]) {
            let what = format!("warning: is on one device with {}, and would be lost with it", members[first].display());
            warnings.push(Failure::new(member.display(), what, "use one device per member"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_whose_name_cannot_be_saved_in_the_end_is_taken_back() {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = |name: &str| home.path().join(name);
        ["a", "b", "j", "k"].iter().for_each(|name| fs::create_dir(path(name)).unwrap());
        fs::write(path("k/cxlraid.journal"), "").unwrap();
        let name: crate::name::ArrayName = "db".parse().unwrap();
        let members = [path("a"), path("b")];
        let spec =
            ArraySpec::from_arguments(layout::Level::Raid1, units::ChunkBytes::DEFAULT, &members, &["/data/x".into()]).unwrap();
        let source = Source::Named(name.clone(), spec.clone(), None);
        for journal in ["j", "k"] {
            let config = inspect::config(&source).unwrap();
            let config = journal::with_place(&config, &journal_place(path(journal).as_os_str()).unwrap()).unwrap();
            let new = NewName::begin(&name, path("config/arrays/db.toml"), false).unwrap();
            fs::remove_dir_all(path("config")).unwrap();
            let line = make(&config, &source, new, spec.clone(), &|_, _| Ok(())).unwrap_err().to_string();
            assert!(line.contains("db.toml: cannot be written: "), "{line}");
            members.iter().for_each(|member| assert_eq!(fs::read_dir(member).unwrap().count(), 0));
        }
        assert_eq!(fs::read_dir(path("j")).unwrap().count(), 0);
        assert_eq!(fs::read(path("k/cxlraid.journal")).unwrap(), b"");
    }

    #[test]
    fn members_on_one_device_are_warned_about() {
        let home = tempfile::tempdir().unwrap();
        let members: Vec<PathBuf> = ["a", "b", "none"].map(|name| home.path().join(name)).into();
        fs::create_dir(&members[0]).unwrap();
        fs::create_dir(&members[1]).unwrap();
        let warnings = shared_devices(&members);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].to_string().starts_with(&format!("cxlraid: {}: warning: is on one device", members[1].display())));
    }
}
