//! `replace` of a member in use: the new directory gets what the old one holds while the array goes
//! on with the old one, and takes its place when it is the same.
//!
//! A pass makes the copy ([`crate::mirror`]), while programs may use the array. A pass counts if
//! nothing has happened on the array from before it until the exchange ([`fingerprint_of`]); else
//! another is made. Only for the exchange itself the array is held (`namespace::Held`), and
//! programs that start wait. What the old member cannot give is noted as lost, and computed after
//! the exchange.
//!
//! Invariants: until the array's file names the new directory the old one is the member, and
//! afterwards the new one, whatever ends this process in between ([`array::Array::swap_member`]).

use crate::{
    compute::{compute, step_back},
    events,
    failure::Failure,
    inspect, job,
    mirror::{Copied, Haste, Mirror, Stop, extent, set_length},
    names_lock::NamesLocks,
    rebuild::{Begin, cancelled_before_it_is_in, foreseen, is_at, not_filled},
    registry::{NamedArray, Registry},
    repairing::{self, Repairing},
    runtime::{attached, users},
    spec::Source,
    view::bytes_text,
};
use array::{Array, Config, Standing, Successor, Swapped, Twins, events::EventKind, note_replaced, runtime::JobKind};
use namespace::{FillError, Held, beside};
use std::{
    ffi::{CStr, OsStr},
    fs::File,
    hash::{DefaultHasher, Hasher as _},
    io::Read as _,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use sys::OsError;
use units::{MemberSet, Shown, Slot};

/// How long a command that waits for programs to end sleeps before it looks again.
const PERIOD: Duration = Duration::from_millis(200);
/// How many passes are made beside programs. If programs have changed the array during each of them,
/// the next one is made with the array held.
const PASSES: u32 = 2;
/// How long the array is held for a pass at most. Programs that start meanwhile wait, and would give
/// up after two minutes.
const HELD_FOR: Duration = Duration::from_secs(60);

/// A replacement under way.
pub(crate) struct Replacement<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) array: &'a NamedArray,
    /// The array with its old directory.
    pub(crate) before: &'a Source,
    /// The array with its new directory.
    pub(crate) after: &'a Source,
    pub(crate) slot: Slot,
    pub(crate) old: &'a Path,
    pub(crate) new: &'a Path,
    pub(crate) begin: &'a Begin,
    /// Has the array's file name the new directory.
    pub(crate) name: &'a mut dyn FnMut(&NamesLocks) -> Result<(), Failure>,
}

/// What a pass came to.
struct Pass {
    files: Vec<Copied>,
    bytes: u64,
    /// When the first pass of the replacement began.
    begun: Instant,
}

impl Replacement<'_> {
    /// Puts the new directory in the place of the old one, which is in use. Returns what is to be
    /// printed; None if the old one has gone out of use, so that it is to be replaced as one that is
    /// out.
    pub(crate) fn run(mut self) -> Result<Option<String>, Failure> {
        let config = inspect::config(self.before)?;
        let repairing = self.begin_job()?;
        step_back();
        let (successor, mut fingerprint) = self.prepare(&config)?;
        let thing = self.thing();
        let _ = events::begin(self.before, thing, inspect::newest(self.before, thing)?.array_uuid);
        let path = Some(self.new.as_os_str().as_bytes());
        let (count, bytes) = extent(self.old);
        let what = format!("a copy of {} is made, to take its place", Shown(self.old.as_os_str().as_bytes()));
        events::tell(EventKind::RebuildStarted, path, Some(count), &what);
        repairing.works();
        job::set_totals(count, bytes);
        let begun = Instant::now();
        let mut pass = self.pass(&config, &successor, Haste::Paced, begun)?;
        let mut passes = 1;
        let (names, held) = loop {
            let (names, held) = self.hold(&config)?;
            if !works(held.array(), self.slot) {
                held.end();
                return Ok(None);
            }
            let found = fingerprint_of(held.array());
            if found.is_some() && found == fingerprint {
                break (names, held);
            }
            if passes >= PASSES {
                match self.pass(&config, &successor, Haste::Until(Instant::now() + HELD_FOR), begun) {
                    Ok(last) => {
                        pass = last;
                        break (names, held);
                    }
                    Err(failure) => {
                        held.end();
                        return Err(failure);
                    }
                }
            }
            fingerprint = found;
            held.end();
            drop(names);
            passes += 1;
            let (count, bytes) = extent(self.old);
            job::set_totals(count, bytes);
            pass = self.pass(&config, &successor, Haste::Paced, begun)?;
        };
        let lost = self.exchange(held, &names, &successor, &pass)?;
        drop(names);
        let seconds = pass.begun.elapsed().as_secs_f64();
        let (files, bytes) = (pass.files.len(), bytes_text(pass.bytes));
        if lost > 0 {
            return compute(self.after, self.thing(), JobKind::Replace, self.begin, &repairing).map(Some);
        }
        let what = format!("the member is in sync in the place of {}", Shown(self.old.as_os_str().as_bytes()));
        events::tell(EventKind::RebuildFinished, path, Some(files as u64), &what);
        let (new, old) = (self.new.display(), self.old.display());
        let thing = self.thing();
        Ok(Some(format!("{thing}: {new} in sync in the place of {old}; {files} files, {bytes} copied in {seconds:.1} s\n")))
    }

    fn thing(&self) -> &str {
        self.array.name.as_str()
    }

    fn begin_job(&self) -> Result<Repairing, Failure> {
        let (thing, slots) = (self.thing(), MemberSet::EMPTY.with(self.slot));
        loop {
            match Repairing::begin(self.before, thing, JobKind::Replace, slots, self.begin.pace)? {
                Ok(repairing) => return Ok(repairing),
                Err(holder) if self.begin.is_over() => {
                    return Err(repairing::refused(thing, &holder, "; --wait SECONDS waits for it"));
                }
                Err(_) => thread::sleep(PERIOD),
            }
        }
    }

    /// Makes the new directory one that may take the old one's place. Returns it, and what the array
    /// was then if no program uses it.
    fn prepare(&self, config: &Config) -> Result<(Successor, Option<u64>), Failure> {
        let new = self.new.as_os_str().as_bytes();
        let begun = match Held::begin(config) {
            Ok(held) => {
                let begun = held.array().begin_successor(self.slot, new);
                let found = fingerprint_of(held.array());
                held.end();
                begun.map(|successor| (successor, found))
            }
            Err(FillError::InUse) => {
                let begun = beside(config, |array| array.begin_successor(self.slot, new));
                begun.map_err(|error| not_filled(self.thing(), error))?.map(|successor| (successor, None))
            }
            Err(error) => return Err(not_filled(self.thing(), error)),
        };
        begun.map_err(|error| inspect::refused(self.thing(), &error.to_string()))
    }

    /// Makes what the new directory holds of the array's files that of the old one.
    fn pass(&self, config: &Config, successor: &Successor, haste: Haste, begun: Instant) -> Result<Pass, Failure> {
        let unread = |error: std::io::Error| Failure::new(self.old.display(), format!("cannot be read: {error}"), UNREAD);
        let root = OwnedFd::from(File::open(self.old).map_err(unread)?);
        let (files, bytes) =
            Mirror::new(&root, successor.root(), haste).copy(&config.prefixes).map_err(|stop| self.stopped(stop))?;
        // What is durable now need not be made durable later, while the array is held for the
        // exchange and programs that start wait.
        let synced = sys::rustix::fs::syncfs(successor.root());
        synced.map_err(|error| self.stopped(Stop::Unmade("".into(), error)))?;
        Ok(Pass { files, bytes, begun })
    }

    fn stopped(&self, stop: Stop) -> Failure {
        let of = |error: OsError| std::io::Error::from(error);
        match stop {
            Stop::Cancelled => cancelled_before_it_is_in(self.thing()),
            Stop::Late => {
                let what = "programs keep changing the array, and to compare it takes longer than others may wait for";
                Failure::new(self.thing(), what, "give the command again while no program changes it")
            }
            Stop::Unread(path, error) => {
                Failure::new(self.old.join(path).display(), format!("cannot be read: {}", of(error)), UNREAD)
            }
            Stop::Unmade(path, error @ (OsError::NOSPC | OsError::DQUOT)) => {
                let todo = "make room on its device and give the command again, or give a directory on a larger one";
                Failure::new(self.new.join(path).display(), format!("cannot be made: {}", of(error)), todo)
            }
            Stop::Unmade(path, error @ (OsError::PERM | OsError::ACCESS)) => {
                let todo = "run it as a user who may give files away, as root may";
                Failure::new(self.new.join(path).display(), format!("cannot be made: {}", of(error)), todo)
            }
            Stop::Unmade(path, error) => {
                let todo = "see to it that its device works, and give the command again; the array is as it was";
                Failure::new(self.new.join(path).display(), format!("cannot be made: {}", of(error)), todo)
            }
        }
    }

    /// Holds the array, which lets no program start, as soon as its programs have ended.
    fn hold(&self, config: &Config) -> Result<(NamesLocks, Held), Failure> {
        loop {
            if job::is_ended() {
                return Err(cancelled_before_it_is_in(self.thing()));
            }
            // Before the array: whoever makes or changes a name of it holds this lock and waits for the
            // array.
            let names = self.registry.lock(&self.array.name)?;
            match Held::begin(config) {
                Ok(held) => return Ok((names, held)),
                Err(FillError::InUse) if self.begin.is_over() => return Err(self.in_use()),
                Err(FillError::InUse) => {
                    drop(names);
                    thread::sleep(PERIOD);
                }
                Err(error) => return Err(not_filled(self.thing(), error)),
            }
        }
    }

    fn in_use(&self) -> Failure {
        let uuid = inspect::newest(self.before, self.thing()).map(|superblock| superblock.array_uuid);
        let pids = uuid.map_or_else(|_| Vec::new(), attached);
        let what =
            format!("{} has a copy, and cannot take the member's place: {} use the array", self.new.display(), users(&pids));
        let todo = "end these and give the command again, which copies what has changed; --wait SECONDS waits for that";
        Failure::new(self.thing(), what, todo)
    }

    /// Puts the new directory, which holds what the old one holds, in its place. Returns how many
    /// files have bytes that the old one could not give.
    fn exchange(&mut self, held: Held, names: &NamesLocks, successor: &Successor, pass: &Pass) -> Result<usize, Failure> {
        match self.exchange_held(&held, names, successor, pass) {
            Ok((lost, swapped)) => {
                held.end_at_once();
                if !swapped.is_noted {
                    let what = "could not be told that another directory has its place";
                    say!("{}", Failure::new(self.old.display(), what, "do not use it as a member of the array again"));
                }
                Ok(lost)
            }
            Err(failure) => {
                held.end();
                Err(failure)
            }
        }
    }

    fn exchange_held(
        &mut self,
        held: &Held,
        names: &NamesLocks,
        successor: &Successor,
        pass: &Pass,
    ) -> Result<(usize, Swapped), Failure> {
        let (array, files, slot) = (held.array(), held.files(), self.slot);
        let mut lost = Vec::new();
        for file in &pass.files {
            // A backing file whose attribute names no file of the array is copied as it is.
            let Ok(wanted) = files.backing_bytes(file.attribute) else { continue };
            if file.is_whole && file.bytes >= wanted || files.lost_by(file.attribute).contains(slot) {
                continue;
            }
            if file.bytes < wanted {
                let made = set_length(successor.root(), &file.path, wanted);
                made.map_err(|error| self.stopped(Stop::Unmade(file.path.clone(), error)))?;
            }
            lost.push(file.attribute);
        }
        files.note_all_lost(slot, &lost).map_err(|(file, error)| {
            let Some(found) = pass.files.iter().find(|copied| Some(copied.attribute) == file) else {
                return self.failed(error);
            };
            let todo = "remove that file from the array, or bring back what is out, and give the command again";
            Failure::new(self.old.join(&found.path).display(), "cannot be read, nor computed from the other members", todo)
        })?;
        // Members that are away and not on record as out miss the exchange.
        array.put_losses_on_record().map_err(|error| self.failed(error))?;
        let twins = |file: &Copied| Twins { attribute: file.attribute, old: file.old, new: file.new };
        let twins: Vec<Twins> = pass.files.iter().map(twins).collect();
        array.fill_successor(slot, successor, &twins).map_err(|error| self.stopped(Stop::Unmade("".into(), error)))?;
        let commit = || {
            let (registry, name, new) = (self.registry, &self.array.name, self.new);
            // The step that failed may be the last one, which makes the name durable. The array's
            // file names the new directory all the same then.
            let is_named = |_: &Failure| registry.find(name).is_ok_and(|array| array.spec.members.iter().any(|path| path == new));
            (self.name)(names).or_else(|failure| if is_named(&failure) { Ok(()) } else { Err(failure) })
        };
        let swapped = array.swap_member(slot, successor, !lost.is_empty(), commit);
        Ok((lost.len(), swapped.map_err(|error| self.failed(error))??))
    }

    fn failed(&self, error: OsError) -> Failure {
        let what = format!("the exchange failed: {}", std::io::Error::from(error));
        Failure::new(self.thing(), what, "see to it that all members work, and give the command again; the array is as it was")
    }
}

const UNREAD: &str = "'cxlraid fail' takes the member out, and 'cxlraid replace' then computes it from the others";

/// Whether a member is in use and lacks nothing.
fn works(array: &Array, slot: Slot) -> bool {
    let is_whole = |member: &array::Member| member.standing == Standing::InSync && !member.is_rebuilding;
    array.in_use().contains(slot) && array.members().get(slot).is_some_and(is_whole)
}

/// Returns a number that changes with an array: it is made of the bytes of the members' superblocks,
/// tables, lanes and logs of names, and whoever changes anything of the array changes some of these.
/// Nobody uses the array meanwhile. None if the files cannot be read.
fn fingerprint_of(array: &Array) -> Option<u64> {
    const FILES: [&CStr; 5] =
        [format::SUPERBLOCK_FILE, format::INODES_FILE, format::LANES_FILE, format::NAMES_FILE, format::CHANGED_FILE];
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    for slot in array.in_use().iter() {
        let member = Path::new(OsStr::from_bytes(&array.members().get(slot)?.path));
        hasher.write_usize(slot);
        for name in FILES {
            let path = member.join(OsStr::from_bytes(format::DIRECTORY.to_bytes())).join(OsStr::from_bytes(name.to_bytes()));
            let mut file = match inspect::open_regular(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                file => file.ok()?,
            };
            loop {
                match file.read(&mut buffer).ok()? {
                    0 => break,
                    count => hasher.write(buffer.get(..count)?),
                }
            }
        }
    }
    Some(hasher.finish())
}

/// Finishes a replacement that ended behind the exchange: `new` is the member. Returns what is to be
/// printed; None if `old` was not its predecessor.
pub(crate) fn finish(source: &Source, thing: &str, old: &Path, new: &Path) -> Result<Option<String>, Failure> {
    let is_in_sync = |member: &array::Member| is_at(member, new) && member.standing == Standing::InSync && !member.is_rebuilding;
    if !foreseen(source, thing)?.iter().any(is_in_sync) {
        return Ok(None);
    }
    let newest = inspect::newest(source, thing)?;
    let is_noted = note_replaced(old.as_os_str().as_bytes(), &newest);
    match is_noted.map_err(|error| inspect::refused(thing, &error.to_string()))? {
        true => Ok(Some(format!("{thing}: {} in sync in the place of {}\n", new.display(), old.display()))),
        false => Ok(None),
    }
}
