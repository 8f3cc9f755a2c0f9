//! `monitor`: a program is told what happens to arrays, as by mdadm --monitor.
//!
//! What programs and commands log is passed on as it comes. Besides, the members are looked at
//! every now and then: one that nobody uses fails without anybody who could log it. What is seen so
//! is logged here, and passed on from the log like everything else, so each event is told once.
//!
//! What is seen is told to Prometheus as well, by a file ([`crate::prometheus`]).
//!
//! Where a member is out and a spare is ready, or a rebuild was cut short, a process of this
//! command does what 'cxlraid rebuild --spares' does.

use crate::{
    control,
    events::{self, Follower, Logged},
    failure::{Exit, Failure},
    inspect,
    name::ArrayName,
    prometheus::{Kept, Sample},
    registry::{NamedArray, Registry},
    spec::Source,
    view::{ArrayView, MemberRole, MemberState, MemberView},
};
use array::{
    events::{Event, EventKind, append},
    runtime::counters::{AllCounted, counted},
};
use format::Uuid;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use sys::OsError;

/// How often logs are looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// How soon a loss is logged by who has seen it, at the latest.
const LOGGED: Duration = Duration::from_millis(500);

/// How long a rebuild that has failed is not run again: longer each time.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The kind of a job that gives redundancy to nothing ([`crate::view::JobView::kind`]).
const SCRUB: &str = "scrub";

/// An array that is watched.
struct Watched {
    source: Source,
    name: String,
    uuid: Uuid,
    log: PathBuf,
    follower: Follower,
    /// Lines of the log that were read and not passed on yet.
    pending: Vec<Vec<u8>>,
    /// The members that are out, as far as the log or an earlier look says.
    out: BTreeSet<String>,
    /// The log says that a member has failed: the members are looked at now.
    is_due: bool,
    repair: Repair,
    /// What the last look has shown; None if it showed nothing.
    view: Option<ArrayView>,
    /// What programs had counted then.
    counted: Option<AllCounted>,
    /// How many events of each kind its log has.
    events: BTreeMap<String, u64>,
}

/// The rebuild that is run for an array.
struct Repair {
    child: Option<Child>,
    /// It is not run again before.
    not_before: Instant,
    /// How long it is not run after it has failed.
    pause: Duration,
}

impl Repair {
    fn new() -> Self {
        Self { child: None, not_before: Instant::now(), pause: PAUSE_MIN }
    }

    /// Runs it if the array needs it and it does not run already. A scrub ends for it: redundancy
    /// that is gone comes before one that is looked at.
    fn attend(&mut self, source: &Source, name: &str, view: &ArrayView) {
        if let Some(child) = &mut self.child {
            let Ok(Some(status)) = child.try_wait() else { return };
            self.child = None;
            self.pause = if status.success() { PAUSE_MIN } else { (2 * self.pause).min(PAUSE_MAX) };
            self.not_before = Instant::now() + if status.success() { Duration::ZERO } else { self.pause };
        }
        let can_take =
            view.spares.iter().any(|spare| spare.state.works()) && view.members.iter().any(|member| is_out(member.state));
        let was_cut_short = view.members.iter().any(|member| member.state == MemberState::Rebuilding);
        let is_awaited = |member: &MemberView| member.is_blank || member.role == Some(MemberRole::Fast) && is_begun(member);
        let is_blank = view.members.iter().any(is_awaited);
        if !(can_take || was_cut_short || is_blank) || Instant::now() < self.not_before {
            return;
        }
        // An operator's own rebuild, replacement or re-add: what it leaves is seen at a later look.
        if view.jobs.iter().any(|job| job.kind != SCRUB) {
            return;
        }
        control::end_scrub(source, name);
        // The same program, also if its file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.args(["rebuild", name, "--spares", "--wait", "31536000"]).stdin(Stdio::null()).stdout(Stdio::null());
        match command.spawn() {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                say!("{}", Failure::new(name, format!("a rebuild cannot be started: {error}"), "run 'cxlraid rebuild'"));
                self.not_before = Instant::now() + PAUSE_MAX;
            }
        }
    }
}

impl Drop for Repair {
    /// What it was in the middle of goes on when it is run again.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a member in this state is out of use.
const fn is_out(state: MemberState) -> bool {
    !matches!(state, MemberState::InSync | MemberState::Rebuilding | MemberState::New)
}

/// Tells whether a member is begun and has not come into use.
fn is_begun(member: &MemberView) -> bool {
    member.note.as_deref() == Some(array::why::BEGUN)
}

/// Watches arrays until a signal asks it to end.
pub(crate) fn monitor(
    names: &[ArrayName],
    program: Option<&Path>,
    prometheus: Option<PathBuf>,
    delay: Duration,
) -> Result<Exit, Failure> {
    let is_ended = crate::scrub::ending("monitor")?;
    program.map_or(Ok(()), require_program)?;
    let registry = Registry::from_environment();
    let names = if names.is_empty() { described(&registry)? } else { names.to_vec() };
    if names.is_empty() {
        return Err(Failure::new("monitor", "there are no arrays to be watched", "'cxlraid create' makes one"));
    }
    let mut watched = Vec::<Watched>::new();
    for name in &names {
        let found = registry.find(name)?;
        // An array with several names is watched once.
        if !watched.iter().any(|watched| watched.is_of(&found.uuid)) {
            watched.push(Watched::new(name, found)?);
        }
    }
    let teller = program.map(|program| Teller::new(program, &is_ended)).transpose()?;
    watched.iter_mut().for_each(|watched| watched.look(EventKind::DegradedArray));
    let mut kept = prometheus.map(|path| Kept::new(path, &samples(&watched))).transpose()?;
    notify("READY=1");
    let (mut looked, mut looked_ns) = (Instant::now(), sys::clock::realtime_coarse_ns());
    let mut is_new = false;
    loop {
        for watched in &mut watched {
            watched.read();
            for line in std::mem::take(&mut watched.pending) {
                let Ok(logged) = serde_json::from_slice::<Logged>(&line) else { continue };
                is_new = true;
                if let Some(teller) = &teller {
                    teller.tell(logged);
                }
            }
        }
        if std::mem::take(&mut is_new)
            && let Some(kept) = &mut kept
        {
            watched.iter_mut().for_each(Watched::look_again);
            kept.renew(&samples(&watched));
        }
        if events::wait(&is_ended, PERIOD) {
            notify("STOPPING=1");
            teller.into_iter().for_each(Teller::end);
            return Ok(Exit::Fine);
        }
        let all = looked.elapsed() >= delay;
        if all {
            looked = Instant::now();
            let since_ns = std::mem::replace(&mut looked_ns, sys::clock::realtime_coarse_ns());
            follow_names(&registry, &names, &mut watched, since_ns);
        }
        is_new = all || watched.iter().any(|watched| watched.is_due);
        watched.iter_mut().filter(|watched| all || watched.is_due).for_each(|watched| watched.look(EventKind::Fail));
    }
}

/// The names of the arrays whose files describe them. What is wrong with the file of another is
/// told, and keeps no array from being watched.
fn described(registry: &Registry) -> Result<Vec<ArrayName>, Failure> {
    let mut names = registry.names()?;
    names.retain(|name| registry.find(name).map_err(|failure| say!("{failure}")).is_ok());
    Ok(names)
}

/// Goes on as the files of the names say by now: a replacement changes which directories are members,
/// an array may be forgotten and another one made under its name. An array none of whose names is
/// there any more is watched as it was. `since_ns` is when this was done last.
fn follow_names(registry: &Registry, names: &[ArrayName], watched: &mut Vec<Watched>, since_ns: u64) {
    let found: Vec<(&ArrayName, NamedArray)> =
        names.iter().filter_map(|name| registry.find(name).ok().map(|found| (name, found))).collect();
    for one in watched.iter_mut() {
        if let Some((name, found)) = found.iter().find(|(_, found)| one.is_of(&found.uuid)) {
            one.name = name.to_string();
            one.source = Source::Named((*name).clone(), found.spec.clone(), Some(found.uuid.clone()));
        }
    }
    let is_given_up = |one: &Watched| {
        let is_its = |(name, _): &&(&ArrayName, NamedArray)| name.as_str() == one.name;
        found.iter().find(is_its).is_some_and(|(_, found)| !one.is_of(&found.uuid))
    };
    // What the logs of these say was read before.
    watched.retain(|one| !is_given_up(one));
    for (name, found) in found {
        if watched.iter().any(|one| one.is_of(&found.uuid)) {
            continue;
        }
        match Watched::new(name, found) {
            Ok(one) => watched.push(one.since(since_ns)),
            Err(failure) => say!("{failure}"),
        }
    }
}

fn samples(watched: &[Watched]) -> Vec<Sample<'_>> {
    watched.iter().map(sample).collect()
}

fn sample(one: &Watched) -> Sample<'_> {
    Sample { name: &one.name, view: one.view.as_ref(), counted: one.counted.as_ref(), events: &one.events }
}

impl Watched {
    fn new(name: &ArrayName, found: NamedArray) -> Result<Self, Failure> {
        // A file with another text in its place is not read.
        let uuid = Uuid::parse(found.uuid.as_bytes()).unwrap_or(Uuid::NIL);
        let source = Source::Named(name.clone(), found.spec, Some(found.uuid.clone()));
        let no_place = || Failure::new(name, "there is no place for its log of events", "set XDG_STATE_HOME");
        let log = events::made(&source, &found.uuid)?.ok_or_else(no_place)?;
        let follower = Follower::new(log.clone(), true);
        let mut counts = BTreeMap::new();
        events::before(&log).for_each(|logged| *counts.entry(logged.event).or_default() += 1);
        let (pending, out, repair) = (Vec::new(), BTreeSet::new(), Repair::new());
        Ok(Self {
            source,
            name: name.to_string(),
            uuid,
            log,
            follower,
            pending,
            out,
            is_due: false,
            repair,
            view: None,
            counted: None,
            events: counts,
        })
    }

    /// Passes on what was logged since then: the array got its name meanwhile.
    fn since(mut self, ns: u64) -> Self {
        self.follower = Follower::new(self.log.clone(), false);
        self.events.clear();
        self.read();
        self.pending.retain(|line| serde_json::from_slice::<Logged>(line).is_ok_and(|logged| logged.ns >= ns));
        self
    }

    /// Tells whether it is the array with this UUID.
    fn is_of(&self, uuid: &str) -> bool {
        matches!(&self.source, Source::Named(_, _, Some(own)) if own == uuid)
    }

    /// Reads the log on, and takes note of what it says of members.
    fn read(&mut self) {
        for line in self.follower.more() {
            if let Ok(Logged { event, member, .. }) = serde_json::from_slice(&line) {
                match (event.as_str(), member) {
                    ("Fail", Some(member)) => {
                        self.is_due = true;
                        self.out.insert(member);
                    }
                    ("RebuildFinished", Some(member)) => drop(self.out.remove(&member)),
                    _ => {}
                }
                *self.events.entry(event).or_default() += 1;
            }
            self.pending.push(line);
        }
    }

    /// Looks at the members, and logs those that are out and were not before. What cannot be looked
    /// at is looked at again later.
    fn look(&mut self, kind: EventKind) {
        self.is_due = false;
        // A replacement changes which directories are the members.
        if let (Source::Named(name, ..), registry) = (&self.source, Registry::from_environment())
            && let Ok(found) = registry.find(name)
            && self.is_of(&found.uuid)
        {
            self.source = Source::Named(name.clone(), found.spec, Some(found.uuid));
        }
        self.look_again();
        let Some(view) = &self.view else { return };
        let out: BTreeSet<String> = view
            .members
            .iter()
            .filter(|member| is_out(member.state) && !member.is_blank)
            .map(|member| member.path.clone())
            .collect();
        // One that is only begun has not failed: it comes into use later.
        let begun: BTreeSet<String> =
            view.members.iter().filter(|member| is_begun(member)).map(|member| member.path.clone()).collect();
        if kind == EventKind::Fail && !out.is_subset(&self.out) {
            // Whoever has taken the member out is about to log it.
            std::thread::sleep(LOGGED);
            self.read();
        }
        let is_told = |member: &&String| kind != EventKind::Fail || !begun.contains(*member);
        let fresh: Vec<String> = out.difference(&self.out).filter(is_told).cloned().collect();
        for member in &fresh {
            self.log_or_keep(kind, member);
        }
        self.out = out;
        if let Some(view) = &self.view {
            self.repair.attend(&self.source, &self.name, view);
        }
    }

    /// Logs that a member is out. If the log is not there any more, it is made anew. An event that
    /// cannot be logged is said, and told and counted as if it stood in the log.
    fn log_or_keep(&mut self, kind: EventKind, member: &str) {
        let what = if kind == EventKind::Fail { "a member works no more" } else { "the array is without this member" };
        let (array, uuid, log) = (&*self.name, self.uuid, self.log.as_os_str().as_bytes());
        let event = Event { kind, array, uuid, member: Some(member.as_bytes()), what, count: None, file: None };
        let Err(error) = append(log, &event) else { return };
        let is_made = || error == OsError::NOENT && events::made(&self.source, &uuid.to_string()).is_ok();
        if is_made() && append(log, &event).is_ok() {
            return;
        }
        say!("{}", Failure::new(self.log.display(), io::Error::from(error), "see to it that events can be logged there"));
        let line = event.line(sys::clock::realtime_coarse_ns());
        *self.events.entry(kind.name().to_owned()).or_default() += 1;
        self.pending.push(line.into_bytes());
    }

    /// Looks at the array, for what is told of it.
    fn look_again(&mut self) {
        self.view = inspect::view(&self.source).ok();
        self.counted = counted(self.uuid);
    }
}

/// Refuses what cannot be executed: nobody would notice before something has happened.
fn require_program(program: &Path) -> Result<(), Failure> {
    let refused = |what: &str| Err(Failure::new(program.display(), what, "name a program with its path"));
    match fs::metadata(program) {
        Err(error) => Err(Failure::new(program.display(), error, "name a program with its path")),
        Ok(metadata) if !metadata.is_file() => refused("not a program"),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => refused("may not be executed"),
        Ok(_) => Ok(()),
    }
}

/// Runs the program for one event after the other, in a thread of its own: a program that does not end
/// keeps later events waiting, and nothing else.
struct Teller {
    events: Sender<Logged>,
    thread: JoinHandle<()>,
}

impl Teller {
    fn new(program: &Path, is_ended: &Arc<AtomicBool>) -> Result<Self, Failure> {
        let (events, waiting) = channel::<Logged>();
        let (program, is_ended) = (program.to_owned(), Arc::clone(is_ended));
        let run = move || waiting.iter().for_each(|logged| tell(&program, &logged, &is_ended));
        let thread = std::thread::Builder::new().spawn(run);
        let thread = thread.map_err(|error| Failure::new("monitor", format!("a thread cannot be made: {error}"), "try again"))?;
        Ok(Self { events, thread })
    }

    /// Has the program run with an event, after those before it.
    fn tell(&self, logged: Logged) {
        let _ = self.events.send(logged);
    }

    /// Has the program started for what waits, and does not wait for it any more.
    fn end(self) {
        drop(self.events);
        let _ = self.thread.join();
    }
}

/// Runs the program with the event, the array and, if it is about one, the member as its arguments,
/// and waits for it.
fn tell(program: &Path, logged: &Logged, is_ended: &AtomicBool) {
    let mut command = Command::new(program);
    command.arg(&logged.event).arg(logged.thing()).args(&logged.member).stdin(Stdio::null());
    match command.spawn() {
        Ok(mut child) => {
            while matches!(child.try_wait(), Ok(None)) && !is_ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Err(error) => say!("{}", Failure::new(program.display(), format!("cannot be started: {error}"), "")),
    }
}

/// Tells the service manager that started this command, if one did (`sd_notify(3)`).
pub(crate) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    // Nobody else is to be told.
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
