//! The log of events of named arrays: where it lies, what commands tell, and `events`, which shows
//! it.
//!
//! Each array has a file `UUID.events` of JSON objects, one a line (core/array/src/events.rs), in
//! `$XDG_STATE_HOME/cxlraid`, else in /var/lib/cxlraid for root and ~/.local/state/cxlraid for
//! other users. Commands make it when they have something to tell; `cxlraid run` names it to the
//! library. An array that has no name has a log if CXLRAID_EVENTS says where.

use crate::{
    failure::{Exit, Failure},
    registry::{self, Registry},
    spec::Source,
    view::shown,
};
use array::{
    Array, Member, Tell,
    events::{EventKind, LOG},
};
use format::Uuid;
use jiff::Timestamp;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{self, BufRead as _, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The variable that names the log to the library, and that of an array without a name.
pub(crate) const EVENTS: &str = "CXLRAID_EVENTS";
/// Where root has the logs.
const SYSTEM_STATE: &str = "/var/lib";
/// How often a log is looked at that is followed.
const PERIOD: Duration = Duration::from_millis(100);
/// A log is read so far back for the last scrub.
const TAIL_BYTES: u64 = 1 << 20;

/// How the end of a mismatch tells that it was mended.
const MENDED: [&str; 2] = ["; rewritten", "; recomputed"];

/// One line of a log.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Logged {
    pub(crate) ns: u64,
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) array: String,
    #[serde(default)]
    pub(crate) uuid: String,
    pub(crate) member: Option<String>,
    pub(crate) count: Option<u64>,
    pub(crate) file: Option<String>,
    pub(crate) offset: Option<u64>,
    #[serde(default)]
    pub(crate) what: String,
}

impl Logged {
    /// When it happened (RFC 3339).
    pub(crate) fn time(&self) -> String {
        Timestamp::from_nanosecond(i128::from(self.ns)).map_or_else(|_| self.ns.to_string(), |time| format!("{time:.0}"))
    }

    /// What the array is called: by its name, else by its UUID.
    pub(crate) fn thing(&self) -> &str {
        if self.array.is_empty() { &self.uuid } else { &self.array }
    }

    fn text(&self) -> String {
        let member = self.member.as_ref().map(|member| format!(" {}", shown(member))).unwrap_or_default();
        let count = self.count.map(|count| format!(" ({count})")).unwrap_or_default();
        format!("{} {} {}{member}: {}{count}", self.time(), shown(self.thing()), shown(&self.event), shown(&self.what))
    }
}

/// Where the log of an array lies, whether or not it is there. None: nobody has said where.
pub(crate) fn place(source: &Source, uuid: &str) -> Option<PathBuf> {
    match source {
        Source::Named(..) => Some(state_directory()?.join(format!("{uuid}.events"))),
        Source::Environment => env::var_os(EVENTS).map(PathBuf::from).filter(|given| given.is_absolute()),
    }
}

fn state_directory() -> Option<PathBuf> {
    let absolute = |variable| env::var_os(variable).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let state = match absolute("XDG_STATE_HOME") {
        Some(state) => state,
        None if sys::rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM_STATE),
        None => registry::home()?.join(".local/state"),
    };
    Some(state.join("cxlraid"))
}

/// Makes the log of an array if it is not there, and returns where it is. None if there is to be
/// none; with an error, that it cannot be made and why.
pub(crate) fn made(source: &Source, uuid: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = place(source, uuid) else { return Ok(None) };
    match make(&path) {
        Ok(()) => Ok(Some(path)),
        Err(error) => {
            let todo = "set XDG_STATE_HOME to a directory of yours";
            Err(Failure::new(path.display(), format!("warning: events are not logged: {error}"), todo))
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    match File::options().append(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// From now on this command tells of an array, and so does the core in this process.
pub(crate) fn begin(source: &Source, thing: &str, uuid: Uuid) -> Tell {
    match made(source, &uuid.to_string()) {
        Ok(Some(path)) => LOG.begin(path.as_os_str().as_bytes(), thing, uuid),
        Ok(None) => {}
        Err(warning) => say!("{warning}"),
    }
    Tell {
        loss: |member, _| {
            LOG.tell(EventKind::Fail, Some(&member.path), None, "member failed and is out of use; the array is degraded")
        },
        lost_name: |member, _| {
            LOG.tell(
                EventKind::Fail,
                Some(&member.path),
                None,
                "member lacks a name that the others have, and is out of use; the array is degraded",
            );
        },
        mend: |member| {
            LOG.tell(
                EventKind::Healed,
                Some(&member.path),
                None,
                "records of .cxlraid/inodes were damaged, or cut short by a crash",
            )
        },
        short: print_short,
        unrecorded: print_unrecorded,
        rot: tell_rot,
        ..Tell::NOTHING
    }
}

/// Tells that a read has met a block that does not fit its checksum.
fn tell_rot(member: &Member, path: &[u8], rot: &array::Rot, text: &str) {
    let kind = if rot.is_lost { EventKind::Unreadable } else { EventKind::Rotten };
    LOG.tell_of_file(kind, Some(&member.path), (path, rot.block.map_or(0, |block| block.offset)), text);
}

/// For so long it is not said again why a file is refused: a program or command tries
/// several times to open the file.
const SAID_FOR: Duration = Duration::from_secs(10);

/// Prints that a file is refused, since a backing file is too short and the members in use cannot
/// give what is missing.
fn print_short(_: &Member, host_path: &[u8]) {
    let what = "is shorter than its file, and the other members in use cannot give what is missing";
    print_refused(host_path, [what, "bring back the members that are out, or put the file back from a backup"]);
}

/// Prints that a file is refused, since a crash has taken its record.
fn print_unrecorded(path: &[u8]) {
    print_refused(path, array::why::UNRECORDED);
}

/// Prints why a file is refused and what to do, unless that was said a moment ago.
fn print_refused(path: &[u8], [what, todo]: [&'static str; 2]) {
    static SAID: Mutex<Vec<(Instant, Vec<u8>)>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.retain(|(when, _)| when.elapsed() < SAID_FOR);
    if said.iter().any(|(_, other)| other == path) {
        return;
    }
    said.push((Instant::now(), path.to_vec()));
    say!("{}", Failure::new(units::Shown(path), what, todo));
}

/// The array for a command that uses files as a program does. Prints which members it does without,
/// and why.
pub(crate) fn printing(array: Array) -> Array {
    for member in array.members() {
        let Some(state) = member.why_unused() else { continue };
        if array.fast().contains(member.slot) && array::backed::is_awaited(member) {
            continue;
        }
        match &member.refusal {
            Some(refusal) => say!("cxlraid: warning: {}; the array is degraded without this member", shown(refusal)),
            None => {
                let (remedy, member, state) = (member.remedy(), member.shown(), shown(&state));
                say!("cxlraid: {member}: warning: member {state}; the array is degraded; {remedy}");
            }
        }
    }
    let loss = |member: &Member, why: Option<&str>| {
        let (member, why) = (member.shown(), why.unwrap_or("no cause was seen"));
        say!("cxlraid: {member}: warning: member failed and is out of use; the array is degraded; {why}; see 'cxlraid status'");
    };
    let lost_name = |member: &Member, path: &[u8]| {
        let (member, path) = (member.shown(), units::Shown(path));
        say!(
            "cxlraid: {member}: warning: member has lost {path}, which the others have, and is out of use; the array is degraded; see 'cxlraid status'"
        );
    };
    let rot: fn(&Member, &[u8], &array::Rot, &str) = |_, _, _, text| say!("cxlraid: {text}");
    array.telling(Tell { loss, lost_name, short: print_short, unrecorded: print_unrecorded, rot, ..Tell::NOTHING })
}

/// Tells that something happened.
pub(crate) fn tell(kind: EventKind, member: Option<&[u8]>, count: Option<u64>, what: &str) {
    LOG.tell(kind, member, count, what);
}

/// Tells that something happened to bytes of a file.
pub(crate) fn tell_of_file(kind: EventKind, member: Option<&[u8]>, file: (&[u8], u64), what: &str) {
    LOG.tell_of_file(kind, member, file, what);
}

/// What the end of an array's log says of its bytes.
#[derive(Default)]
pub(crate) struct Told {
    /// The end of the last scrub of the whole array.
    pub(crate) last_scrub: Option<Logged>,
    /// By path, what was last told of files in which something is wrong: by reads since the last scrub
    /// of the whole array began, or by scrubs, and not mended since.
    pub(crate) wrong: BTreeMap<String, Logged>,
}

impl Told {
    fn hear(&mut self, logged: Logged) {
        let is = |kind: EventKind| logged.event == kind.name();
        if is(EventKind::ScrubStarted) {
            self.wrong.clear();
        } else if is(EventKind::ScrubFinished) {
            self.last_scrub = Some(logged);
        } else if is(EventKind::Mismatch) || is(EventKind::Rotten) || is(EventKind::Unreadable) {
            let Some(file) = logged.file.clone() else { return };
            let is_mended = is(EventKind::Mismatch) && MENDED.iter().any(|end| logged.what.ends_with(end));
            if is_mended {
                self.wrong.remove(&file);
            } else if !is(EventKind::Rotten) || !self.wrong.contains_key(&file) {
                self.wrong.insert(file, logged);
            }
        }
    }
}

/// What the log of an array says of its bytes.
pub(crate) fn told(source: &Source, uuid: &str) -> Told {
    let mut told = Told::default();
    let text = tail(source, uuid).unwrap_or_default();
    lines(&text).filter(|logged| logged.uuid == uuid).for_each(|logged| told.hear(logged));
    told
}

/// The end of an array's log.
fn tail(source: &Source, uuid: &str) -> Option<Vec<u8>> {
    let mut file = crate::inspect::open_regular(&place(source, uuid)?).ok()?;
    let bytes = file.metadata().ok()?.size();
    file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES))).ok()?;
    let mut text = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The lines of a log that say something. A first line that was cut says nothing.
fn lines(text: &[u8]) -> impl Iterator<Item = Logged> {
    text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// What a log tells so far.
pub(crate) fn before(path: &Path) -> impl Iterator<Item = Logged> {
    let file = crate::inspect::open_regular(path).ok();
    let bytes = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.size());
    let lines = file.into_iter().flat_map(move |file| io::BufReader::new(file.take(bytes)).split(b'\n').map_while(Result::ok));
    lines.filter_map(|line| serde_json::from_slice(&line).ok())
}

/// A log that is read as it grows.
pub(crate) struct Follower {
    path: PathBuf,
    file: Option<File>,
    /// What was read of a line that has not ended yet.
    rest: Vec<u8>,
}

impl Follower {
    /// From the beginning, or from the end of what is there.
    pub(crate) fn new(path: PathBuf, from_end: bool) -> Self {
        let mut file = crate::inspect::open_regular(&path).ok();
        if let Some(file) = file.as_mut().filter(|_| from_end) {
            let _ = file.seek(SeekFrom::End(0));
        }
        Self { path, file, rest: Vec::new() }
    }

    /// The lines that have come since, as they are.
    pub(crate) fn more(&mut self) -> Vec<Vec<u8>> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let named = fs::metadata(&self.path).ok().map(identity);
        let mut found = Vec::new();
        loop {
            let mut text = Vec::new();
            if let Some(file) = &mut self.file {
                let _ = file.read_to_end(&mut text);
            }
            self.rest.extend(text);
            while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                found.push(line[..end].to_vec());
            }
            let open = self.file.as_ref().and_then(|file| file.metadata().ok()).map(identity);
            if named.is_none() || open == named {
                return found;
            }
            // Another file has taken its place, or it was made just now.
            self.file = crate::inspect::open_regular(&self.path).ok();
            self.rest.clear();
            if self.file.is_none() {
                return found;
            }
        }
    }
}

/// The logs of the named array, or of all named arrays.
fn logs(source: Option<&Source>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(source) = source {
        let uuid = match source {
            Source::Named(_, _, uuid) => uuid.clone().unwrap_or_default(),
            Source::Environment => String::new(),
        };
        return place(source, &uuid).map(|path| vec![path]).ok_or_else(|| {
            Failure::new(
                "array",
                "it has no name, and CXLRAID_EVENTS does not say where its events are logged",
                "name one, or set the variable",
            )
        });
    }
    let registry = Registry::from_environment();
    let names = registry.names()?;
    let found = names.iter().filter_map(|name| registry.find(name).ok());
    Ok(found.filter_map(|array| place(&Source::Named(array.name, array.spec, Some(array.uuid.clone())), &array.uuid)).collect())
}

/// Shows what was logged, and with `follow` what is logged from then on, until a signal asks it to
/// end.
pub(crate) fn events(source: Option<&Source>, follow: bool, json: bool) -> Result<Exit, Failure> {
    let is_ended = crate::scrub::ending("events")?;
    let mut followers: Vec<Follower> = logs(source)?.into_iter().map(|path| Follower::new(path, false)).collect();
    loop {
        let mut found: Vec<(Logged, Vec<u8>)> = followers
            .iter_mut()
            .flat_map(Follower::more)
            .filter_map(|line| Some((serde_json::from_slice(&line).ok()?, line)))
            .collect();
        found.sort_by_key(|(logged, _)| logged.ns);
        let text: Vec<u8> = found
            .into_iter()
            .flat_map(|(logged, line)| [if json { line } else { logged.text().into_bytes() }, b"\n".to_vec()].concat())
            .collect();
        let mut out = io::stdout().lock();
        match out.write_all(&text).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Fine),
            written => written.map_err(|error| Failure::new("standard output", error, ""))?,
        }
        if !follow || wait(&is_ended, PERIOD) {
            return Ok(Exit::Fine);
        }
    }
}

/// Waits, or until a signal asks the command to end. Whether one has.
pub(crate) fn wait(is_ended: &AtomicBool, period: Duration) -> bool {
    // A signal ends the sleep of its thread alone, and may come just before it.
    let mut left = period;
    while !left.is_zero() && !is_ended.load(Ordering::Relaxed) {
        let step = left.min(Duration::from_millis(50));
        thread::sleep(step);
        left -= step;
    }
    is_ended.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"{"ns":1700000000000000000,"event":"Fail","array":"db","uuid":"u","member":"/mnt/a","what":"it failed"}"#;

    #[test]
    fn a_line_is_shown_with_its_time() {
        let logged: Logged = serde_json::from_str(LINE).unwrap();
        assert_eq!(logged.text(), "2023-11-14T22:13:20Z db Fail /mnt/a: it failed");
    }

    #[test]
    fn a_log_is_followed_over_half_lines_and_when_it_is_renamed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let mut follower = Follower::new(path.clone(), true);
        assert!(follower.more().is_empty());
        make(&path).unwrap();
        let append = |text: &str| File::options().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        append("one\ntw");
        assert_eq!(follower.more(), [b"one"]);
        append("o\n");
        assert_eq!(follower.more(), [b"two"]);
        fs::rename(&path, home.path().join("old")).unwrap();
        make(&path).unwrap();
        append("three\n");
        assert_eq!(follower.more(), [b"three"]);
    }
}
