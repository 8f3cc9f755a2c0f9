//! `monitor`: a program is told what happens to arrays, as by mdadm --monitor.
//!
//! What programs and commands log is passed on as it comes. Besides, the members are looked at every now and then: one that nobody uses fails without anybody who could log it. What is seen so is logged here, and passed on from the log like
//! everything else, so each event is told once.

use crate::{
    events::{self, Follower, Logged},
    failure::{Exit, Failure},
    inspect,
    name::ArrayName,
    registry::Registry,
    spec::Source,
    view::MemberState,
};
use array::events::{Event, EventKind, append};
use format::Uuid;
use std::{
    collections::BTreeSet,
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
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How often logs are looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// How soon a loss is logged by who has seen it, at the latest.
const LOGGED: Duration = Duration::from_millis(500);

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
}

/// Watches arrays until a signal asks it to end.
pub(crate) fn monitor(names: &[ArrayName], program: &Path, delay: Duration) -> Result<Exit, Failure> {
    let is_ended = crate::scrub::ending("monitor")?;
    require_program(program)?;
    let registry = Registry::from_environment();
    let names = if names.is_empty() { registry.names()? } else { names.to_vec() };
    if names.is_empty() {
        return Err(Failure::new("monitor", "there are no arrays to be watched", "'cxlraid create' makes one"));
    }
    let mut watched = names.iter().map(|name| Watched::new(&registry, name)).collect::<Result<Vec<_>, _>>()?;
    watched.iter_mut().for_each(|watched| watched.look(EventKind::DegradedArray));
    notify("READY=1");
    let mut looked = Instant::now();
    loop {
        for watched in &mut watched {
            watched.read();
            for line in std::mem::take(&mut watched.pending) {
                let Ok(logged) = serde_json::from_slice::<Logged>(&line) else { continue };
                tell(program, &logged, &is_ended);
            }
        }
        if events::wait(&is_ended, PERIOD) {
            notify("STOPPING=1");
            return Ok(Exit::Fine);
        }
        if looked.elapsed() >= delay {
            looked = Instant::now();
            watched.iter_mut().for_each(|watched| watched.look(EventKind::Fail));
        }
    }
}

impl Watched {
    fn new(registry: &Registry, name: &ArrayName) -> Result<Self, Failure> {
        let found = registry.find(name)?;
        let unknown =
            || Failure::new(name, "its file has no UUID that is one", "forget the array and create it again under this name");
        let uuid = Uuid::parse(found.uuid.as_bytes()).ok_or_else(unknown)?;
        let source = Source::Named(name.clone(), found.spec, Some(found.uuid.clone()));
        let no_place = || Failure::new(name, "there is no place for its log of events", "set XDG_STATE_HOME");
        let log = events::made(&source, &found.uuid)?.ok_or_else(no_place)?;
        let follower = Follower::new(log.clone(), true);
        Ok(Self { source, name: name.to_string(), uuid, log, follower, pending: Vec::new(), out: BTreeSet::new() })
    }

    /// Reads the log on, and takes note of what it says of members.
    fn read(&mut self) {
        for line in self.follower.more() {
            if let Ok(Logged { event, member: Some(member), .. }) = serde_json::from_slice(&line) {
                match event.as_str() {
                    "Fail" => drop(self.out.insert(member)),
                    "RebuildFinished" => drop(self.out.remove(&member)),
                    _ => {}
                }
            }
            self.pending.push(line);
        }
    }

    /// Looks at the members, and logs those that are out and were not before. What cannot be looked at is looked at again later.
    fn look(&mut self, kind: EventKind) {
        let Ok(view) = inspect::view(&self.source) else { return };
        let is_out = |state| !matches!(state, MemberState::InSync | MemberState::Rebuilding | MemberState::New);
        let out: BTreeSet<String> =
            view.members.iter().filter(|member| is_out(member.state)).map(|member| member.path.clone()).collect();
        if kind == EventKind::Fail && !out.is_subset(&self.out) {
            // Whoever has taken the member out is about to log it.
            std::thread::sleep(LOGGED);
            self.read();
        }
        for member in out.difference(&self.out) {
            let what = if kind == EventKind::Fail { "a member works no more" } else { "the array is without this member" };
            let event = Event { kind, array: &self.name, uuid: self.uuid, member: Some(member.as_bytes()), what, count: None };
            if let Err(error) = append(self.log.as_os_str().as_bytes(), &event) {
                eprintln!(
                    "{}",
                    Failure::new(self.log.display(), io::Error::from(error), "see to it that events can be logged there")
                );
                return;
            }
        }
        self.out = out;
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

/// Runs the program with the event, the array and, if it is about one, the member as its arguments, and waits for it.
fn tell(program: &Path, logged: &Logged, is_ended: &AtomicBool) {
    let mut command = Command::new(program);
    command.arg(&logged.event).arg(logged.thing()).args(&logged.member).stdin(Stdio::null());
    match command.spawn() {
        Ok(mut child) => {
            while matches!(child.try_wait(), Ok(None)) && !is_ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Err(error) => eprintln!("{}", Failure::new(program.display(), format!("cannot be started: {error}"), "")),
    }
}

/// Tells the service manager that started this command, if one did (`sd_notify(3)`).
fn notify(state: &str) {
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
