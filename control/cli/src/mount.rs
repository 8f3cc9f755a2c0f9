//! `cxlraid mount` and `cxlraid unmount`: the array's directories through the kernel, for programs
//! that the library cannot reach.
//!
//! A mount is looked at from all sides before anything is done, and either all directories of an
//! array are mounted or none. In the background the command starts itself once more as the process
//! that serves the mount, and waits until that has mounted, or has said why not.

use crate::{
    args::{Mount, Unmount},
    backed,
    commands::{absolute, called},
    events,
    failure::{Exit, Failure},
    files::ArrayFiles,
    helper::Flags,
    inspect,
    monitor::notify,
    name::ArrayName,
    private, runtime,
    spec::Source,
};
use array::{Array, Config};
use mount::{Manner, Mounted, Session};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use sys::{
    AsRawFd as _, BorrowedFd, OsError, OwnedFd,
    rustix::{
        fs::{FlockOperation, OFlags, StatVfsMountFlags, flock, fstatvfs},
        mount::MountFlags,
        process::{Resource, Rlimit, getrlimit, setrlimit},
    },
};

/// How often a process that serves a mount looks whether it is asked to end.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// Those who use a mount whose process is asked to end have so long to end, too.
const GRACE: Duration = Duration::from_secs(3);
/// How long a command waits for another one that mounts on the same directory.
const HOLD_TIME: Duration = Duration::from_secs(30);
/// The process that serves a mount holds a descriptor for each file that the kernel remembers, up
/// to a half of these.
const DESCRIPTOR_COUNT: u64 = 1 << 20;

/// A directory of the array, and where it is mounted.
pub(crate) struct Place {
    pub(crate) prefix: Vec<u8>,
    pub(crate) directory: PathBuf,
    /// The kernel's number for a mount there whose process has ended.
    pub(crate) dead: Option<u64>,
}

/// Mounts an array.
pub(crate) fn mount(source: &Source, arguments: &Mount) -> Result<Exit, Failure> {
    if !arguments.foreground {
        return in_background(arguments);
    }
    backed::refill(source);
    let config = inspect::config(source)?;
    let mut places = places(&config, arguments.directory.as_deref())?;
    places.iter().try_for_each(|place| check(&place.directory, &config, source).map(|_| ()))?;
    // Nobody else mounts there until this command has: what was so before may be so no more.
    let held = places.iter().map(|place| hold(&place.directory)).collect::<Result<Vec<_>, _>>()?;
    for place in &mut places {
        place.dead = check(&place.directory, &config, source)?;
    }
    let devices: Vec<OwnedFd> = places.iter().map(|_| mount::device().map_err(no_device)).collect::<Result<_, _>>()?;
    raise_limits();
    let array = Array::attach(&config).map_err(|error| inspect::refused(called(source), &error.to_string()))?;
    let array = events::printing(array);
    let tell = events::begin(source, called(source), array.uuid());
    let files = ArrayFiles::open(array.telling(tell))?;
    let flags = Flags { allow_other: arguments.allow_other || arguments.options.allow_other, ..arguments.options };
    let sessions = begin(&files, called(source), &places, devices, flags)?;
    if let Err(failure) = runtime::unless_lost(Ok(())) {
        places.iter().for_each(|place| _ = mount::unmount(&place.directory, true));
        return Err(failure);
    }
    drop(held);
    let made: Vec<Mounted> = places.iter().filter_map(|place| top(&place.directory)).collect();
    for place in places.iter().filter(|_| !arguments.quiet) {
        println!("{}: mounted at {}", called(source), place.directory.display());
    }
    let asked_to_end = Arc::new(AtomicBool::new(false));
    let no_signals = |error: io::Error| Failure::new("signals", error, "try again");
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, asked_to_end.clone()).map_err(no_signals)?;
    }
    // A write beyond a limit that could not be raised fails, and does not end this process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(no_signals)?;
    if arguments.begun {
        leave_terminal();
    }
    // The threads that serve give up more by themselves; the one that unmounts needs no more.
    let _ = mount::drop_rights_but_unmounting();
    notify("READY=1");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving: Vec<_> = sessions.iter().map(|session| scope.spawn(|| session.serve())).collect();
        scope.spawn(|| end_when_asked(&asked_to_end, &is_over, &made, &files));
        serving.into_iter().for_each(|served| _ = served.join());
        is_over.store(true, Ordering::Release);
    });
    Ok(Exit::Fine)
}

/// Starts this command once more as the process that serves the mount, and says what that says.
pub(crate) fn in_background(arguments: &Mount) -> Result<Exit, Failure> {
    let cannot = |error: io::Error| Failure::new("mount", format!("cannot start its process: {error}"), "try again");
    let own = env::current_exe().map_err(|error| Failure::new("cxlraid", error, "mount /proc"))?;
    let mut command = Command::new(own);
    // Who waits for this command hears of the mount from it.
    // As mount.cxlraid it would be another command.
    command.arg0("cxlraid").env_remove("NOTIFY_SOCKET").args(["mount", "--foreground", "--begun"]);
    if arguments.allow_other {
        command.arg("--allow-other");
    }
    if arguments.private {
        command.arg("--private");
    }
    command.arg(format!("--options={}", arguments.options)).arg("--").arg(arguments.name.as_str());
    if let Some(directory) = &arguments.directory {
        command.arg(absolute(directory)?);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut said = Vec::new();
    if let Some(output) = &mut child.stdout {
        output.read_to_end(&mut said).map_err(cannot)?;
    }
    if said.is_empty() {
        // It has said on standard error why it ended.
        let status = child.wait().map_err(cannot)?;
        if status.code().is_none() {
            let what = format!("the process that was to serve it was ended: {status}");
            return Err(Failure::new(&arguments.name, what, "see what limits or ends processes here (ulimit -a)"));
        }
        return Ok(if status.code() == Some(Exit::Usage as i32) { Exit::Usage } else { Exit::Error });
    }
    if !arguments.quiet {
        let _ = io::stdout().write_all(&said);
    }
    Ok(Exit::Fine)
}

/// What is mounted where: each path of the array at its own place, or the only one at the directory
/// given.
pub(crate) fn places(config: &Config, directory: Option<&Path>) -> Result<Vec<Place>, Failure> {
    // As the kernel lists mounts.
    let real = |directory: &Path| fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let at = |prefix: &Vec<u8>, directory: &Path| Place { prefix: prefix.clone(), directory: real(directory), dead: None };
    let own = |prefix: &Vec<u8>| at(prefix, Path::new(OsStr::from_bytes(prefix)));
    let Some(directory) = directory else { return Ok(config.prefixes.iter().map(own).collect()) };
    let directory = absolute(directory)?;
    match &config.prefixes[..] {
        [prefix] => Ok(vec![at(prefix, &directory)]),
        prefixes => match prefixes.iter().find(|prefix| OsStr::from_bytes(prefix) == directory) {
            Some(prefix) => Ok(vec![own(prefix)]),
            None => {
                let what = "the array has several paths, which are mounted at their own places only";
                Err(Failure::new(directory.display(), what, "leave the directory out, or name one of the paths")
                    .with_exit(Exit::Usage))
            }
        },
    }
}

/// Refuses a directory on which the array cannot be mounted, or should not. Returns the kernel's
/// number for a mount whose process has ended, over which the array is to be mounted.
fn check(directory: &Path, config: &Config, source: &Source) -> Result<Option<u64>, Failure> {
    let fail = |what: String, todo: &str| Err(Failure::new(directory.display(), what, todo));
    let dead = dead_at(directory)?;
    // What a dead mount hides is looked at beside it.
    let under = dead.and_then(|_| mount::bottom(directory).ok());
    if dead.is_some() && under.is_none() {
        mount::unmount(directory, true).map_err(|error| cannot_unmount(directory, error))?;
    }
    let beside = |under: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", under.as_raw_fd()));
    let looked_at = under.as_ref().map_or_else(|| directory.to_owned(), beside);
    match fs::metadata(&looked_at) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return fail("is not a directory".into(), "name a directory, or put one there"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return fail("there is no such directory".into(), "make it"),
        Err(error) => return fail(error.to_string(), "name a directory that can be used"),
    }
    check_members(directory, config, source)?;
    match fs::read_dir(&looked_at).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(dead.filter(|_| under.is_some())),
        Ok(false) if under.is_some() => {
            let what = "is not empty under a mount whose process has ended, what is in it would be hidden";
            fail(what.into(), "say 'cxlraid unmount' and the directory, then empty it, or name another directory")
        }
        Ok(false) => fail("is not empty, what is in it would be hidden".into(), "empty it, or name another directory"),
        Err(error) => fail(error.to_string(), "name a directory that can be read"),
    }
}

/// Refuses a directory with a member below it, and one in a member.
pub(crate) fn check_members(directory: &Path, config: &Config, source: &Source) -> Result<(), Failure> {
    let fail = |what: String, todo: &str| Err(Failure::new(directory.display(), what, todo));
    let real = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    for member in config.mounts.iter().map(|member| Path::new(OsStr::from_bytes(member))) {
        let member = fs::canonicalize(member).unwrap_or_else(|_| member.to_owned());
        if member.starts_with(&real) {
            let what = format!("member {} of {} lies below it, and would be hidden", member.display(), called(source));
            return fail(what, "name a directory beside the members");
        }
        if real.starts_with(&member) {
            let what = format!("lies in member {} of {}", member.display(), called(source));
            return fail(what, "name a directory beside the members");
        }
    }
    Ok(())
}

/// The mount at a directory whose process has ended. It is taken away here if something else is
/// mounted under it.
fn dead_at(directory: &Path) -> Result<Option<u64>, Failure> {
    let here = mount::stack_at(directory).map_err(no_list)?;
    for (under_count, top) in here.iter().enumerate().rev() {
        let Some(name) = &top.array else { break };
        if !is_dead(directory) {
            let what = format!("array {name} is mounted there already");
            return Err(Failure::new(directory.display(), what, "say 'cxlraid unmount' and the directory first"));
        }
        if under_count == 0 {
            return Ok(Some(top.id));
        }
        mount::unmount(directory, true).map_err(|error| cannot_unmount(directory, error))?;
    }
    Ok(None)
}

/// Locks a directory against other commands that mount there, until what is returned is dropped.
fn hold(directory: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| Failure::new(directory.display(), error, "name a directory that can be used");
    // All commands lock the same directory, whatever is mounted on it now.
    let opened = match mount::bottom(directory) {
        Ok(bottom) => File::from(bottom),
        Err(_) => File::options().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(directory).map_err(failed)?,
    };
    let begun = Instant::now();
    loop {
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(opened),
            Err(OsError::WOULDBLOCK) if begun.elapsed() < HOLD_TIME => thread::sleep(PERIOD / 10),
            Err(OsError::WOULDBLOCK) => {
                let what = "another process holds a lock on it, as a command does that mounts there";
                return Err(Failure::new(directory.display(), what, "wait until that has ended, then mount again"));
            }
            // Such a file system has no locks.
            Err(_) => return Ok(opened),
        }
    }
}

/// Whether the process that serves a mount has ended.
pub(crate) fn is_dead(directory: &Path) -> bool {
    fs::metadata(directory).is_err_and(|error| error.raw_os_error() == Some(OsError::NOTCONN.raw_os_error()))
}

fn mounts() -> Result<Vec<Mounted>, Failure> {
    mount::mounted().map_err(no_list)
}

pub(crate) fn no_list(error: io::Error) -> Failure {
    Failure::new("/proc/self/mountinfo", error, "mount /proc")
}

/// What is mounted at a directory, and not under another mount there.
fn top(directory: &Path) -> Option<Mounted> {
    mount::top_at(directory).ok()?
}

pub(crate) fn no_device(error: OsError) -> Failure {
    match error {
        OsError::NOENT | OsError::NODEV | OsError::NXIO => {
            Failure::new("/dev/fuse", "is not there", "load the kernel's module: 'modprobe fuse'")
        }
        OsError::ACCESS | OsError::PERM => Failure::new("/dev/fuse", "may not be opened", "run the command as root"),
        error => Failure::new("/dev/fuse", io::Error::from(error), "correct the cause, then mount again"),
    }
}

/// Raises this process' limits as far as it may: they are those of the shell that started it, and
/// have nothing to do with the programs that use the mount. Each file that the kernel remembers takes a
/// descriptor.
pub(crate) fn raise_limits() {
    for resource in [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data] {
        let none = Rlimit { current: None, maximum: None };
        let maximum = getrlimit(resource).maximum;
        if setrlimit(resource, none).is_err() {
            let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
        }
    }
    let most = getrlimit(Resource::Nofile).maximum;
    let wanted = Some(most.unwrap_or(DESCRIPTOR_COUNT).max(DESCRIPTOR_COUNT));
    if setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: wanted }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    }
}

/// Mounts all places or none.
fn begin(
    files: &ArrayFiles,
    array: &str,
    places: &[Place],
    devices: Vec<OwnedFd>,
    flags: Flags,
) -> Result<Vec<Session>, Failure> {
    let members = files.core().array().members().iter();
    let found = members.filter_map(|member| fstatvfs(member.root()?).ok()).map(|found| found.f_flag);
    let manner = Manner { array, allow_other: flags.allow_other, flags: mount_flags(found, flags) };
    let mut sessions: Vec<Session> = Vec::new();
    for (place, device) in places.iter().zip(devices) {
        let begun = mount_one(files, place, device, manner);
        match begun {
            Ok(session) => sessions.push(session),
            Err(failure) => {
                places[..sessions.len()].iter().for_each(|place| _ = mount::unmount(&place.directory, true));
                return Err(failure);
            }
        }
    }
    Ok(sessions)
}

fn mount_one(files: &ArrayFiles, place: &Place, device: OwnedFd, manner: Manner<'_>) -> Result<Session, Failure> {
    let session = session(files, place, device)?;
    mount_device(place, session.device(), manner)?;
    Ok(session)
}

/// What serves a directory of the array.
pub(crate) fn session(files: &ArrayFiles, place: &Place, device: OwnedFd) -> Result<Session, Failure> {
    Session::new(*files.names(), &place.prefix, device)
        .map_err(|error| Failure::new(place.directory.display(), io::Error::from(error), "see 'cxlraid status'"))
}

/// Mounts a device at a directory of the array.
pub(crate) fn mount_device(place: &Place, device: BorrowedFd<'_>, manner: Manner<'_>) -> Result<(), Failure> {
    let mounted = match place.dead {
        Some(dead) => mount::mount_over_dead(device, &place.directory, dead, manner),
        None => mount::mount(device, &place.directory, manner),
    };
    mounted.map_err(|error| match error {
        OsError::PERM | OsError::ACCESS => {
            Failure::new(place.directory.display(), "may not be mounted on by this user", "run the command as root")
        }
        error => Failure::new(
            place.directory.display(),
            format!("cannot be mounted on: {}", io::Error::from(error)),
            "correct the cause, then mount again",
        ),
    })
}

/// What is asked for, and what at least one of the members' mounts, whose flags are `found`, does not
/// permit.
pub(crate) fn mount_flags(found: impl Iterator<Item = StatVfsMountFlags>, asked: Flags) -> MountFlags {
    let found = found.fold(StatVfsMountFlags::empty(), |all, one| all | one);
    let all = [
        (asked.read_only, MountFlags::RDONLY),
        (asked.no_devices || found.contains(StatVfsMountFlags::NODEV), MountFlags::NODEV),
        (asked.no_programs || found.contains(StatVfsMountFlags::NOEXEC), MountFlags::NOEXEC),
        (asked.no_set_id || found.contains(StatVfsMountFlags::NOSUID), MountFlags::NOSUID),
    ];
    all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

/// The command that started this process is told that all is done when standard output is closed.
pub(crate) fn leave_terminal() {
    use sys::rustix::stdio::{dup2_stderr, dup2_stdout};
    let _ = sys::rustix::process::setsid();
    let _ = env::set_current_dir("/");
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        let _ = io::stdout().flush();
        let _ = dup2_stderr(&nothing);
        let _ = dup2_stdout(&nothing);
    }
}

/// Unmounts when a signal has asked this process to end.
fn end_when_asked(asked: &AtomicBool, is_over: &AtomicBool, made: &[Mounted], files: &ArrayFiles) {
    while !asked.load(Ordering::Acquire) {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        thread::sleep(PERIOD);
    }
    notify("STOPPING=1");
    // What somebody has mounted over it is not this process' to take away.
    let own: Vec<&Mounted> = made.iter().filter(|mount| top(&mount.directory).as_ref() == Some(mount)).collect();
    let begun = Instant::now();
    write_back(&own, begun);
    own.iter().for_each(|mount| _ = mount::unmount(&mount.directory, true));
    while !is_over.load(Ordering::Acquire) {
        if begun.elapsed() > GRACE {
            // Somebody still uses what was mounted, and is told that it is gone.
            files.core().leave_to_others();
            std::process::exit(Exit::Fine as i32);
        }
        thread::sleep(PERIOD);
    }
}

/// Has the kernel write back what programs have stored through mappings of the mounts' files: it does
/// not do so by itself before the mounts go, if the files are still in use. Waits until that is done,
/// for as long as is given to programs that still use a mount.
fn write_back(mounts: &[&Mounted], begun: Instant) {
    // Threads that nobody has to join: this process itself answers what they ask the kernel for, and
    // may be kept from it by a program that is stopped.
    let write = |mount: &&Mounted| {
        let directory = mount.directory.clone();
        let write = move || _ = File::open(directory).map(sys::rustix::fs::syncfs);
        thread::Builder::new().spawn(write).ok()
    };
    let writing: Vec<_> = mounts.iter().filter_map(write).collect();
    while begun.elapsed() < GRACE && !writing.iter().all(thread::JoinHandle::is_finished) {
        thread::sleep(PERIOD / 10);
    }
}

/// Unmounts an array, or one directory.
pub(crate) fn unmount(arguments: &Unmount) -> Result<Exit, Failure> {
    let all = mounts()?;
    let name = arguments.what.to_str().and_then(|text| text.parse::<ArrayName>().ok());
    let of_array = |mount: &&Mounted| name.as_ref().is_some_and(|name| mount.array.as_deref() == Some(name.as_str()));
    let mut directories: Vec<&Path> = all.iter().filter(of_array).map(|mount| mount.directory.as_path()).collect();
    let given = absolute(&arguments.what)?;
    if directories.is_empty() {
        let real = fs::canonicalize(&given).unwrap_or(given);
        let is_there = |mount: &&Mounted| mount.array.is_some() && mount.directory == real;
        directories = all.iter().rev().filter(is_there).map(|mount| mount.directory.as_path()).take(1).collect();
    }
    if directories.is_empty() {
        let what =
            if name.is_some() { "is no array that is mounted, and no directory of one" } else { "no array is mounted there" };
        return Err(Failure::new(arguments.what.display(), what, "'cxlraid status' says what is mounted where"));
    }
    for directory in directories.into_iter().rev() {
        let top = all.iter().rev().find(|mount| mount.directory == directory);
        if top.is_some_and(|top| top.array.is_none()) {
            return Err(Failure::new(directory.display(), "another file system is mounted over it", "unmount that first"));
        }
        let detach = arguments.lazy || is_dead(directory);
        let array = top.and_then(|top| top.array.as_deref()).unwrap_or_default();
        let serving = serving(array);
        mount::unmount(directory, detach).map_err(|error| cannot_unmount(directory, error))?;
        if !arguments.lazy && directories_of(array).is_empty() {
            await_end(&serving);
        }
        println!("{}: unmounted", directory.display());
    }
    Ok(Exit::Fine)
}

/// The processes that serve mounts of an array, as far as this user may look into them; without those
/// that serve one program's.
fn serving(array: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let serves = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|&byte| byte == 0).skip(1);
        words.next() == Some(b"mount") && words.any(|word| word == array.as_bytes()) && has_device(*pid)
    };
    let found: Vec<u32> = pids.filter(serves).collect();
    let private = private::among(&found);
    found.into_iter().filter(|pid| !private.contains(pid)).collect()
}

/// Whether a process has the kernel's side of a mount open.
fn has_device(pid: u32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.map(|entry| fs::read_link(entry.path())).any(|target| target.is_ok_and(|target| target == Path::new("/dev/fuse")))
}

/// Waits, not for long, until processes have ended: then they use the array no more.
fn await_end(pids: &[u32]) {
    let begun = Instant::now();
    let is_there = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| !command.is_empty());
    while pids.iter().any(is_there) && begun.elapsed() < GRACE {
        thread::sleep(PERIOD / 10);
    }
}

fn cannot_unmount(directory: &Path, error: OsError) -> Failure {
    match error {
        OsError::BUSY => Failure::new(directory.display(), "is in use", "end the programs that use it, or add --lazy"),
        OsError::PERM | OsError::ACCESS => {
            Failure::new(directory.display(), "may not be unmounted by this user", "run the command as root")
        }
        error => Failure::new(directory.display(), format!("cannot be unmounted: {}", io::Error::from(error)), ""),
    }
}

/// Where an array is mounted.
pub(crate) fn directories_of(array: &str) -> Vec<PathBuf> {
    directories(|name| name == array)
}

/// Where arrays are mounted whose names `is_meant` accepts.
pub(crate) fn directories(is_meant: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = mount::mounted().unwrap_or_default().into_iter();
    all.filter(|mount| mount.array.as_deref().is_some_and(&is_meant)).map(|mount| mount.directory).collect()
}
