//! Mistakes, and how they are taken back.

use crate::mounts;
use oracle::Rng;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, lchown, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};
use units::PAGE_BYTES;

/// What can be done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFile {
    Deleted,
    CutToNothing,
    CutInHalf,
    Grown,
    Zeroed,
    Random,
    BitFlipped,
    OfAnotherMember,
    OfAnotherArray,
    Older,
    MadeDirectory,
    MadePipe,
    MadeSymlink,
    /// Another file lies there, as an editor or rsync leaves it: with the same bytes and nothing
    /// else,
    ReplacedByPlain,
    /// an older copy of it, with its attributes,
    ReplacedByOlder,
    /// or the file of another array that has its path.
    ReplacedByOther,
    /// It has the name of another file of the same member, and that has its name.
    Exchanged,
    /// chmod 000.
    Locked,
}

/// What can be done to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnMember {
    Gone,
    EmptyDirectory,
    OnlyMeta,
    PrefixEmptied,
    MetaRemoved,
    Older,
    CopyOfAnother,
    OfAnotherArray,
    Swapped,
    Copied,
    /// chmod 000.
    Locked,
    /// Its file system is read-only.
    ReadOnly,
    /// Its file system is not mounted: the mount point is left.
    Unmounted,
    /// Its file system has no room left, or a few pages.
    Full,
}

/// Files of `.cxlraid`, on which everything can be done.
const TABLES: [&str; 7] = ["superblock", "inodes", "lanes", "names", "backings", "changed", "journal"];
const ON_TABLES: [OnFile; 14] = [
    OnFile::Deleted,
    OnFile::CutToNothing,
    OnFile::CutInHalf,
    OnFile::Grown,
    OnFile::Zeroed,
    OnFile::Random,
    OnFile::BitFlipped,
    OnFile::OfAnotherMember,
    OnFile::OfAnotherArray,
    OnFile::Older,
    OnFile::MadeDirectory,
    OnFile::MadePipe,
    OnFile::MadeSymlink,
    OnFile::Locked,
];
/// What can be known of a backing file without checksums of its content.
const ON_BACKING_FILES: [OnFile; 12] = [
    OnFile::Deleted,
    OnFile::CutToNothing,
    OnFile::CutInHalf,
    OnFile::Grown,
    OnFile::MadeDirectory,
    OnFile::MadePipe,
    OnFile::MadeSymlink,
    OnFile::ReplacedByPlain,
    OnFile::ReplacedByOlder,
    OnFile::ReplacedByOther,
    OnFile::Exchanged,
    OnFile::Locked,
];
const ON_MEMBERS: [OnMember; 11] = [
    OnMember::Gone,
    OnMember::EmptyDirectory,
    OnMember::OnlyMeta,
    OnMember::PrefixEmptied,
    OnMember::MetaRemoved,
    OnMember::Older,
    OnMember::CopyOfAnother,
    OnMember::OfAnotherArray,
    OnMember::Swapped,
    OnMember::Copied,
    OnMember::Locked,
];
/// What can be done to a member that is a file system of its own. Its files are changed in place
/// only.
const ON_MOUNTED: [OnMember; 3] = [OnMember::ReadOnly, OnMember::Unmounted, OnMember::Full];
/// What can be done to a file of a member that is a file system of its own: nothing that a file
/// leaves it for.
const IN_PLACE: [OnFile; 11] = [
    OnFile::CutToNothing,
    OnFile::CutInHalf,
    OnFile::Grown,
    OnFile::Zeroed,
    OnFile::Random,
    OnFile::BitFlipped,
    OnFile::OfAnotherMember,
    OnFile::OfAnotherArray,
    OnFile::Older,
    OnFile::Exchanged,
    OnFile::Locked,
];
/// What can be done to a journal that is a file beside the members.
const ON_JOURNALS: [OnFile; 10] = [
    OnFile::Deleted,
    OnFile::CutToNothing,
    OnFile::CutInHalf,
    OnFile::Grown,
    OnFile::Zeroed,
    OnFile::Random,
    OnFile::BitFlipped,
    OnFile::MadeDirectory,
    OnFile::MadePipe,
    OnFile::MadeSymlink,
];
/// The name of the damage that puts the journal of another array on a member.
const FOREIGN_JOURNAL: &str = "journal OfAnotherArray";
/// How damages of such a journal are named.
const JOURNAL_FILE: &str = "journal-file";
/// The name of the damage that puts a copy in a member's place which was made while programs used
/// the array.
pub(crate) const COPIED_IN_USE: &str = "member CopiedInUse";
/// The name of the damage that closes a file, or the directory that it is in, to its owner.
const FILE_LOCKED: &str = "file Locked";
/// The name of the damage that exchanges two files of a member.
const EXCHANGED: &str = "file Exchanged";
/// The name of the damage that closes a backing file to its owner.
pub(crate) const CLOSED: &str = "file Locked";
/// The name of the damage that lets programs fail with ENOSPC.
const FULL: &str = "member Full";
/// At most so many pages less one are left on a full file system.
const PAGES_LEFT_MAX: u64 = 4;
/// What can happen while programs use the array and is more than the death of one that they notice.
const IN_USE: [&str; 12] = [
    "member Gone",
    "member EmptyDirectory",
    "member OnlyMeta",
    "member PrefixEmptied",
    "file Deleted",
    "file CutToNothing",
    "file CutInHalf",
    "file MadeDirectory",
    "file MadePipe",
    "file MadeSymlink",
    "member Unmounted",
    FULL,
];

/// The tables that are damaged while programs use them, and how.
const TABLES_IN_USE: [&str; 5] = ["inodes", "lanes", "names", "backings", "changed"];
const ON_TABLES_IN_USE: [&str; 5] = ["Deleted", "CutToNothing", "CutInHalf", "Zeroed", "Random"];

/// Whether a damage is also done while programs use the array.
fn is_for_use(what: &str) -> bool {
    let of_table = |(name, how): (&str, &str)| TABLES_IN_USE.contains(&name) && ON_TABLES_IN_USE.contains(&how);
    IN_USE.contains(&what) || what.split_once(' ').is_some_and(of_table)
}

/// Where what a damage needs can be found.
pub(crate) struct Sources<'a> {
    pub(crate) members: &'a [PathBuf],
    /// How many members may be damaged.
    pub(crate) bears: usize,
    /// So many members at least are not damaged.
    pub(crate) whole_min: usize,
    /// Whether a program uses the array.
    pub(crate) in_use: bool,
    /// Whether programs run as root, whom chmod does not keep out.
    pub(crate) as_root: bool,
    /// Members as they were before the last use of the array.
    pub(crate) older: &'a [PathBuf],
    /// Members of another array.
    pub(crate) others: &'a [PathBuf],
    /// Where things are kept until the damage is taken back.
    pub(crate) aside: &'a Path,
    /// The directory of the prefix, below a member.
    pub(crate) prefix: &'a Path,
    /// Whether each member is a file system of its own.
    pub(crate) mounted: bool,
    /// The journal, if it is a file beside the members.
    pub(crate) journal: Option<&'a Path>,
}

/// A damage that was done.
pub(crate) struct Damage {
    /// The number of members for what is on no member.
    pub(crate) slot: usize,
    /// Such as `inodes Zeroed`.
    pub(crate) what: String,
    undo: Vec<Undo>,
}

enum Undo {
    /// What lies at the first path is removed, and what lies at the second is moved there.
    Back(PathBuf, PathBuf),
    /// The file's content.
    Content(PathBuf, Vec<u8>),
    /// Two paths are exchanged.
    Exchange(PathBuf, PathBuf),
    /// A directory gets this mode.
    Mode(PathBuf, u32),
    /// A file system can be written to again.
    Writable(PathBuf),
    /// What is kept at the second path is mounted at the first.
    Mounted(PathBuf, PathBuf),
    /// A file system has room again.
    Room(PathBuf),
}

/// A damage and its name.
fn drawn(rng: &mut Rng, sources: &Sources<'_>, slot: usize) -> io::Result<(String, Target)> {
    if let Some(journal) = sources.journal.filter(|_| rng.one_in(8)) {
        let how = ON_JOURNALS[rng.below(ON_JOURNALS.len() as u64) as usize];
        return Ok((format!("{JOURNAL_FILE} {how:?}"), Target::File(journal.to_owned(), how)));
    }
    let target = match rng.below(if sources.mounted { 16 } else { 8 }) {
        0..4 => {
            let name = TABLES[rng.below(TABLES.len() as u64) as usize];
            let how = ON_TABLES[rng.below(ON_TABLES.len() as u64) as usize];
            (format!("{name} {how:?}"), Target::File(Path::new(".cxlraid").join(name), how))
        }
        4 | 5 => {
            let how = ON_BACKING_FILES[rng.below(ON_BACKING_FILES.len() as u64) as usize];
            let files = files_below(&sources.members[slot].join(sources.prefix))?;
            let Some(path) = files.get(rng.below(files.len().max(1) as u64) as usize) else {
                return Ok(("no file".to_owned(), Target::Nothing));
            };
            let path = path.strip_prefix(&sources.members[slot]).unwrap_or(path).to_owned();
            (format!("file {how:?}"), Target::File(path, how))
        }
        _ => {
            let ways: &[OnMember] = if sources.mounted { &ON_MOUNTED } else { &ON_MEMBERS };
            let how = ways[rng.below(ways.len() as u64) as usize];
            (format!("member {how:?}"), Target::Member(how))
        }
    };
    Ok(target)
}

enum Target {
    Nothing,
    File(PathBuf, OnFile),
    Member(OnMember),
}

fn files_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut waiting) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => waiting.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// `cp -a`, which keeps owners, times and attributes.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").arg("-aT").args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("cp -aT {} {}: {status}", from.display(), to.display()))) }
}

/// Draws a damage and does it. None if it would not be one, or none of `only`. `is_whole`: every
/// member is in use so far.
pub(crate) fn damage(
    rng: &mut Rng,
    sources: &Sources<'_>,
    slot: usize,
    only: &[String],
    is_whole: bool,
) -> io::Result<Option<Damage>> {
    let (what, target) = drawn(rng, sources, slot)?;
    // A name of exchanged files answers EIO where no two members agree whose it is, and where a
    // user without rights may have made the difference (docs/names.md, Names that the lowest member
    // has lost). A second damage could leave no two that agree.
    if what == EXCHANGED && (sources.whole_min < 2 || !is_whole || !sources.as_root) {
        return Ok(None);
    }
    // The modes of the lowest member decide who may use a file.
    if what == FILE_LOCKED && (slot == 0 || !is_whole || sources.bears > 1) {
        return Ok(None);
    }
    // A closed file is opened to its owner only if the tables of backing files prove it
    // (docs/names.md, Modes that later members have of their own). Another damage could leave a
    // table that proves nothing.
    if what == CLOSED && !is_whole {
        return Ok(None);
    }
    // What another member lacks is computed from mappings, and a tmpfs without room has no page for
    // a hole that is loaded from (README, Limits).
    if what == FULL && !is_whole {
        return Ok(None);
    }
    if sources.in_use && !is_for_use(&what) || sources.as_root && what.ends_with(" Locked") {
        return Ok(None);
    }
    let is_of_journal = what.starts_with(JOURNAL_FILE);
    if sources.mounted && !is_of_journal && matches!(target, Target::File(_, how) if !IN_PLACE.contains(&how)) {
        return Ok(None);
    }
    if !only.is_empty() && !only.iter().any(|word| what.starts_with(word)) {
        return Ok(None);
    }
    if sources.mounted && matches!(target, Target::Member(_)) {
        let Target::Member(how) = target else { return Ok(None) };
        return Ok(Some(Damage { slot, what, undo: on_mounted(rng, sources, slot, how)? }));
    }
    let place = match &target {
        Target::File(path, _) => sources.members[slot].join(path),
        _ => sources.members[slot].clone(),
    };
    let owner = fs::symlink_metadata(&place).map(|metadata| (metadata.uid(), metadata.gid()));
    let undo = match target {
        Target::Nothing => return Ok(None),
        Target::File(path, how) => on_file(rng, sources, slot, &path, how)?,
        Target::Member(how) => Some(on_member(rng, sources, slot, how)?),
    };
    if let Ok((uid, gid)) = owner
        && fs::symlink_metadata(&place).is_ok()
    {
        // Who damages is the user whose members they are.
        lchown(&place, Some(uid), Some(gid))?;
    }
    let slot = if is_of_journal { sources.members.len() } else { slot };
    Ok(undo.map(|undo| Damage { slot, what, undo }))
}

/// A name that nothing has yet, to keep something.
fn kept(sources: &Sources<'_>, rng: &mut Rng) -> PathBuf {
    sources.aside.join(format!("{:016x}", rng.word()))
}

fn on_file(rng: &mut Rng, sources: &Sources<'_>, slot: usize, path: &Path, how: OnFile) -> io::Result<Option<Vec<Undo>>> {
    let file = sources.members[slot].join(path);
    if !fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    if how == OnFile::Locked {
        let is_of_tree = path.starts_with(sources.prefix) && path.parent() != Some(sources.prefix);
        let directory = file.parent().filter(|_| is_of_tree && rng.one_in(2));
        let file = directory.map_or(file.clone(), Path::to_owned);
        let mode = fs::metadata(&file)?.permissions().mode();
        fs::set_permissions(&file, Permissions::from_mode(0o0))?;
        return Ok(Some(vec![Undo::Mode(file, mode)]));
    }
    if how == OnFile::Exchanged {
        return exchanged(rng, sources, slot, &file);
    }
    let content = fs::read(&file)?;
    let was_cut = || {
        sources.members.iter().any(|member| fs::metadata(member.join(path)).is_ok_and(|other| other.len() > content.len() as u64))
    };
    if how == OnFile::Grown && was_cut() {
        // A file that is cut and then made as long as before holds other bytes, and nothing shows
        // it.
        return Ok(None);
    }
    let mut changed = content.clone();
    let taken = |from: &Path| fs::read(from.join(path)).ok();
    match how {
        OnFile::Deleted | OnFile::MadeDirectory | OnFile::MadePipe | OnFile::MadeSymlink => {
            let aside = kept(sources, rng);
            fs::rename(&file, &aside)?;
            match how {
                OnFile::MadeDirectory => fs::create_dir(&file)?,
                OnFile::MadePipe => mknodat(CWD, file.as_os_str().as_bytes(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                    .map_err(|error| io::Error::from_raw_os_error(error.raw_os_error()))?,
                OnFile::MadeSymlink => symlink(&aside, &file)?,
                _ => {}
            }
            return Ok(Some(vec![Undo::Back(file, aside)]));
        }
        OnFile::ReplacedByPlain | OnFile::ReplacedByOlder | OnFile::ReplacedByOther => {
            let source = match how {
                OnFile::ReplacedByOlder => sources.older[slot].join(path),
                _ => sources.others[slot].join(path),
            };
            let aside = kept(sources, rng);
            if how != OnFile::ReplacedByPlain && !fs::symlink_metadata(&source).is_ok_and(|metadata| metadata.is_file()) {
                return Ok(None);
            }
            fs::rename(&file, &aside)?;
            if how == OnFile::ReplacedByPlain {
                fs::write(&file, &content)?
            } else {
                copy(&source, &file)?
            }
            return Ok(Some(vec![Undo::Back(file, aside)]));
        }
        // Done above.
        OnFile::Locked | OnFile::Exchanged => return Ok(None),
        OnFile::CutToNothing => changed.clear(),
        // A program that has the file open does not notice a cut within a page: the bytes between
        // the cut and the end of the page read as zeros (README, limits).
        OnFile::CutInHalf => {
            let half = content.len() / 2;
            changed.truncate(if sources.in_use { half - half % PAGE_BYTES } else { half });
        }
        OnFile::Grown => changed.resize(content.len() + 4096, 0x5a),
        OnFile::Zeroed => changed.fill(0),
        OnFile::Random => rng.fill(&mut changed),
        OnFile::BitFlipped => {
            // Where something is: most of a table is zeros.
            let places: Vec<usize> = (0..content.len()).filter(|&place| content[place] != 0).collect();
            if places.is_empty() {
                return Ok(None);
            }
            changed[places[rng.below(places.len() as u64) as usize]] ^= 1 << rng.below(8);
        }
        OnFile::OfAnotherMember => {
            let other = (slot + 1) % sources.members.len();
            let Some(bytes) = taken(&sources.members[other]) else { return Ok(None) };
            changed = bytes;
        }
        OnFile::OfAnotherArray => {
            let Some(bytes) = taken(&sources.others[slot]) else { return Ok(None) };
            changed = bytes;
        }
        OnFile::Older => {
            let Some(bytes) = taken(&sources.older[slot]) else { return Ok(None) };
            changed = bytes;
        }
    }
    if changed == content {
        return Ok(None);
    }
    put(&file, &changed)?;
    Ok(Some(vec![Undo::Content(file, content)]))
}

/// Exchanges a backing file and another one of its member that is another file.
fn exchanged(rng: &mut Rng, sources: &Sources<'_>, slot: usize, file: &Path) -> io::Result<Option<Vec<Undo>>> {
    let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| metadata.ino());
    let mut others = files_below(&sources.members[slot].join(sources.prefix))?;
    others.retain(|other| inode(other) != inode(file));
    let Some(other) = others.get(rng.below(others.len().max(1) as u64) as usize) else { return Ok(None) };
    exchange(file, other)?;
    Ok(Some(vec![Undo::Exchange(file.to_owned(), other.clone())]))
}

/// Gives a file that there is another content.
fn put(file: &Path, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(file)?;
    file.set_len(content.len() as u64)?;
    file.write_all_at(content, 0)
}

fn on_member(rng: &mut Rng, sources: &Sources<'_>, slot: usize, how: OnMember) -> io::Result<Vec<Undo>> {
    let member = &sources.members[slot];
    let aside = kept(sources, rng);
    let whole = |make: &dyn Fn(&Path) -> io::Result<()>| {
        fs::rename(member, &aside)?;
        make(&aside)?;
        Ok(vec![Undo::Back(member.clone(), aside.clone())])
    };
    let all_but = |kept: &str, of: &Path| -> io::Result<Vec<Undo>> {
        fs::create_dir(&aside)?;
        let mut undo = Vec::new();
        for entry in fs::read_dir(of)? {
            let entry = entry?;
            if entry.file_name() != kept {
                fs::rename(entry.path(), aside.join(entry.file_name()))?;
                undo.push(Undo::Back(entry.path(), aside.join(entry.file_name())));
            }
        }
        Ok(undo)
    };
    match how {
        OnMember::Gone => whole(&|_| Ok(())),
        OnMember::EmptyDirectory => whole(&|_| fs::create_dir(member)),
        OnMember::OnlyMeta => all_but(".cxlraid", member),
        OnMember::PrefixEmptied => all_but("", &member.join(sources.prefix)),
        OnMember::MetaRemoved => {
            fs::rename(member.join(".cxlraid"), &aside)?;
            Ok(vec![Undo::Back(member.join(".cxlraid"), aside)])
        }
        OnMember::Older => whole(&|_| copy(&sources.older[slot], member)),
        OnMember::CopyOfAnother => whole(&|_| copy(&sources.members[(slot + 1) % sources.members.len()], member)),
        OnMember::OfAnotherArray => whole(&|_| copy(&sources.others[slot], member)),
        OnMember::Copied => whole(&|aside| copy(aside, member)),
        OnMember::Locked => {
            let mode = fs::metadata(member)?.permissions().mode();
            fs::set_permissions(member, Permissions::from_mode(0o0))?;
            Ok(vec![Undo::Mode(member.clone(), mode)])
        }
        // Done by `on_mounted`.
        OnMember::ReadOnly | OnMember::Unmounted | OnMember::Full => Ok(Vec::new()),
        OnMember::Swapped => {
            let other = &sources.members[(slot + 1) % sources.members.len()];
            exchange(member, other)?;
            Ok(vec![Undo::Exchange(member.clone(), other.clone())])
        }
    }
}

fn on_mounted(rng: &mut Rng, sources: &Sources<'_>, slot: usize, how: OnMember) -> io::Result<Vec<Undo>> {
    let member = sources.members[slot].clone();
    let undo = match how {
        OnMember::ReadOnly => {
            mounts::make_read_only(&member, true)?;
            Undo::Writable(member)
        }
        OnMember::Unmounted => {
            let aside = kept(sources, rng);
            mounts::take_away(&member, &aside)?;
            Undo::Mounted(member, aside)
        }
        _ => {
            mounts::fill(&member, rng.below(PAGES_LEFT_MAX))?;
            Undo::Room(member)
        }
    };
    Ok(vec![undo])
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let between = one.with_added_extension("between");
    fs::rename(one, &between)?;
    fs::rename(other, one)?;
    fs::rename(between, other)
}

impl Damage {
    /// Whether nobody but the operator can say what is right, so that a start may refuse.
    /// `knows_uuid`: the start is told the array's UUID, as the file of a named array tells it.
    pub(crate) fn may_be_refused(&self, knows_uuid: bool) -> bool {
        // Two members of the same slot.
        ["member CopyOfAnother", "superblock OfAnotherMember"].contains(&self.what.as_str())
            // Without the array's UUID, which member is of another array is not known.
            || !knows_uuid && ["member OfAnotherArray", "superblock OfAnotherArray"].contains(&self.what.as_str())
            // A journal that is another array's was put there by somebody.
            || self.what == FOREIGN_JOURNAL
            // What waits in a journal that is lost is not given up without being asked.
            || self.what.starts_with(JOURNAL_FILE)
    }

    /// A copy of a member, made while programs used the array, takes the member's place.
    pub(crate) fn of_copy(member: &Path, copy: &Path, aside: &Path, slot: usize) -> io::Result<Self> {
        fs::rename(member, aside)?;
        fs::rename(copy, member)?;
        let undo = vec![Undo::Back(member.to_owned(), aside.to_owned())];
        Ok(Self { slot, what: COPIED_IN_USE.to_owned(), undo })
    }

    /// Whether a copy of a member was put in its place that lacks what programs changed afterwards.
    pub(crate) fn is_copied_in_use(&self) -> bool {
        self.what == COPIED_IN_USE
    }

    /// The loss of a whole member; `mounted`: it is a file system of its own.
    pub(crate) fn of_lost(member: &Path, aside: &Path, slot: usize, mounted: bool) -> io::Result<Self> {
        let (member, aside) = (member.to_owned(), aside.to_owned());
        if mounted {
            mounts::take_away(&member, &aside)?;
            return Ok(Self { slot, what: "member Unmounted".to_owned(), undo: vec![Undo::Mounted(member, aside)] });
        }
        fs::rename(&member, &aside)?;
        Ok(Self { slot, what: "member Gone".to_owned(), undo: vec![Undo::Back(member, aside)] })
    }

    /// Whether programs may fail because there is no room.
    pub(crate) fn is_full(&self) -> bool {
        self.what == FULL
    }

    /// Whether single names of a member were taken away or replaced: who uses them finds that out,
    /// and no start looks at all names.
    pub(crate) fn is_of_a_name(&self) -> bool {
        self.what == "file Deleted"
            || self.is_exchange()
            || self.what.starts_with("file Made")
            || self.what.starts_with("file Replaced")
    }

    /// Tells whether a file was closed to its owner.
    pub(crate) fn is_closed(&self) -> bool {
        self.what == FILE_LOCKED
    }

    /// Whether two files of a member were exchanged.
    pub(crate) fn is_exchange(&self) -> bool {
        self.what == EXCHANGED
    }

    /// Whether a name on a member may be another than the others' until somebody uses it: nothing
    /// reads all names yet.
    pub(crate) fn leaves_names_apart(&self) -> bool {
        self.what == "member PrefixEmptied" || self.is_of_a_name()
    }

    /// Tells whether a table of `.cxlraid` was damaged that is not the superblock.
    pub(crate) fn is_of_table(&self) -> bool {
        TABLES[1..].iter().any(|name| self.what.split(' ').next() == Some(name))
    }

    /// Tells whether `cxlraid rebuild` can make what was damaged anew from the other members, and
    /// must: it is a member of the array whose own files are left, or an empty directory that is no
    /// mount point.
    pub(crate) fn can_be_rebuilt(&self) -> bool {
        let of_member = ["member EmptyDirectory", "member OnlyMeta", "member PrefixEmptied", "member Older", COPIED_IN_USE];
        of_member.contains(&self.what.as_str())
            || self.is_of_superblock()
                && ![" Locked", "OfAnotherArray", "OfAnotherMember"].iter().any(|how| self.what.ends_with(how))
            || self.is_of_table() && !self.what.ends_with(" Locked") && self.what != FOREIGN_JOURNAL
            || ["file Cut", "file Grown"].iter().any(|what| self.what.starts_with(what))
    }

    /// Tells whether a superblock was damaged.
    pub(crate) fn is_of_superblock(&self) -> bool {
        self.what.starts_with("superblock ")
    }

    /// Tells whether a start does without the member after this damage, whichever files programs
    /// use.
    pub(crate) fn costs_the_member(&self) -> bool {
        ["member Gone", "member EmptyDirectory", "member OnlyMeta", "member Unmounted", COPIED_IN_USE]
            .contains(&self.what.as_str())
    }

    /// Tells whether there is still a file by the name, which only who opens it finds to be
    /// another.
    pub(crate) fn keeps_the_name(&self) -> bool {
        self.is_exchange() || self.what.starts_with("file Replaced")
    }

    /// Tells whether the damage changed the next member besides its own.
    pub(crate) fn is_of_two(&self) -> bool {
        self.what == "member Swapped"
    }

    /// Whether it was done to a backing file.
    pub(crate) fn is_of_backing_file(&self) -> bool {
        self.what.starts_with("file ")
    }

    /// Whether it was done to a whole member.
    pub(crate) fn is_of_member(&self) -> bool {
        self.what.starts_with("member")
    }

    /// Takes it back.
    pub(crate) fn take_back(&self) -> io::Result<()> {
        for undo in self.undo.iter().rev() {
            match undo {
                Undo::Back(path, aside) => {
                    match fs::symlink_metadata(path) {
                        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path)?,
                        Ok(_) => fs::remove_file(path)?,
                        Err(_) => {}
                    }
                    fs::rename(aside, path)?;
                }
                Undo::Content(path, content) => put(path, content)?,
                Undo::Exchange(one, other) => exchange(one, other)?,
                Undo::Writable(path) => mounts::make_read_only(path, false)?,
                Undo::Mounted(path, aside) => mounts::bring_back(path, aside)?,
                Undo::Room(path) => mounts::empty(path)?,
                // The array's programs may have opened or removed it by then.
                Undo::Mode(path, mode) if fs::symlink_metadata(path).is_ok_and(|found| found.mode() & 0o7777 == 0) => {
                    fs::set_permissions(path, Permissions::from_mode(*mode))?;
                }
                Undo::Mode(..) => {}
            }
        }
        Ok(())
    }
}
