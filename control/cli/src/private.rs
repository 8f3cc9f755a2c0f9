//! `cxlraid run --mount`: a mount that only the program and what it starts see.
//!
//! The process that becomes the program leaves the host's mount namespace and starts this command
//! once more, which starts the process that serves the mount and ends when that has mounted: so the
//! program has no child that it does not know. The program is executed only then; if anything is
//! refused, the namespace ends with the command, and nothing is left of it.

use crate::{
    args::Mount,
    commands::called,
    events,
    failure::{Exit, Failure},
    files::ArrayFiles,
    helper::Flags,
    inspect,
    mount::{self as mounting, PERIOD, Place, no_device},
    name::ArrayName,
    run, runtime,
    spec::{JOURNAL, Source},
};
use array::{Array, Config, Runtime};
use format::Access;
use mount::{
    Manner, Session,
    apart::{self, Refused},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use sys::{
    AsFd as _, OsError, OwnedFd,
    rustix::fs::statvfs,
    rustix::process::{child_subreaper, getegid, geteuid, set_child_subreaper},
};

/// What each refusal comes down to.
const OUTSIDE: &str = "have root say 'cxlraid mount' with --allow-other, which --mount uses then";
/// The time that a process which served a program's mount may need to end after the program.
const END_TIME: Duration = Duration::from_secs(3);
/// The command's option by which such a process is known.
const OPTION: &str = "--private";

/// Mounts what is not mounted yet of an array, for this process and those that it starts. Returns
/// false if the process that was to serve it has said why not. With a failure, too, this process is
/// of no use for anything else.
pub(crate) fn mount(source: &Source, name: &ArrayName) -> Result<bool, Failure> {
    let config = inspect::config(source)?;
    let places = missing(&config, name.as_str())?;
    if places.is_empty() {
        return Ok(true);
    }
    run::refuse_beside_library(&config, name.as_str())?;
    run::refuse_below_library(name.as_str())?;
    for place in &places {
        check(place, &config, source)?;
    }
    let here = env::current_dir().ok();
    let superblock = inspect::newest(source, name.as_str())?;
    // Nothing is begun where this is missing.
    mount::device().map_err(|error| match error {
        OsError::ACCESS | OsError::PERM => Failure::new("/dev/fuse", "may not be opened by this user", OUTSIDE),
        error => no_device(error),
    })?;
    // Where the command lies the kernel may not tell of a namespace that has ended.
    let command = env::current_exe().map_err(|error| Failure::new("cxlraid", error, "mount /proc"))?;
    let is_users = apart::leave().map_err(|refused| not_apart(name, refused))?;
    if is_users {
        check_access(name, superblock.access)?;
    }
    if !start(&command, source, name, &superblock.array_uuid.to_string())? {
        return Ok(false);
    }
    if is_users {
        apart::keep_rights().map_err(|error| not_apart(name, Refused::Rights(error)))?;
    }
    match here {
        // The directory that it was in lies under the mount now.
        Some(here) if places.iter().any(|place| here.starts_with(&place.directory)) => match env::set_current_dir(&here) {
            Ok(()) => Ok(true),
            Err(error) => {
                let what = format!("the current directory is hidden by the mount, which has no such one: {error}");
                Err(Failure::new(here.display(), what, "say it in another directory"))
            }
        },
        _ => Ok(true),
    }
}

/// The array's directories that are not mounted where this process is.
fn missing(config: &Config, name: &str) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    // Where the library serves this process the directory is the array's, and says nothing of mounts.
    let is_served = run::serves_this_process(config);
    for place in mounting::places(config, None)? {
        let top = mount::top_at(&place.directory).map_err(mounting::no_list)?;
        let mounted = top.and_then(|top| top.array).filter(|_| !mounting::is_dead(&place.directory));
        if is_served && mounted.as_deref() == Some(name) {
            continue;
        }
        match (mounted, mount::identify(&place.directory)) {
            (Some(_), Some(uuid)) if config.uuid.is_some_and(|own| own.0 == uuid) => {}
            (Some(mounted), None) if mounted == name => {
                let what = format!("array {name} is mounted there, and this user may not use that mount");
                return Err(Failure::new(place.directory.display(), what, "have it mounted with --allow-other"));
            }
            _ => places.push(place),
        }
    }
    Ok(places)
}

/// Refuses a directory on which nothing can be mounted, or that would hide a member.
fn check(place: &Place, config: &Config, source: &Source) -> Result<(), Failure> {
    let fail = |what: &str, todo: &str| Err(Failure::new(place.directory.display(), what, todo));
    match fs::metadata(&place.directory) {
        Ok(metadata) if !metadata.is_dir() => return fail("is not a directory", "put one there"),
        Ok(_) => {}
        // What is mounted there has lost its process, and is mounted over.
        Err(error) if error.raw_os_error() == Some(OsError::NOTCONN.raw_os_error()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fail("there is no such directory, on which --mount could mount the array", "make it");
        }
        Err(error) => return fail(&error.to_string(), "correct the cause"),
    }
    mounting::check_members(&place.directory, config, source)
}

/// Refuses an array of others, where their users and groups are not known.
fn check_access(name: &ArrayName, access: Access) -> Result<(), Failure> {
    let of_group = access.mode & 0o070 != 0;
    if access.owner_uid == geteuid().as_raw() && (!of_group || access.owner_gid == getegid().as_raw()) {
        return Ok(());
    }
    let what = "belongs to another user or group, and a mount that a user makes without root knows only the user's own";
    Err(Failure::new(name, what, OUTSIDE))
}

fn not_apart(name: &ArrayName, refused: Refused) -> Failure {
    let text = |error: OsError| io::Error::from(error);
    let what = match refused {
        Refused::User(OsError::NOSPC | OsError::USERS) => {
            "user namespaces are used up or forbidden (sysctl user.max_user_namespaces)".to_owned()
        }
        Refused::User(OsError::INVAL | OsError::NOSYS) => "this kernel has no user namespaces".to_owned(),
        Refused::User(error) => {
            format!("a user namespace is refused by the system or a sandbox, which a mount without root needs: {}", text(error))
        }
        Refused::Mounts(error) => format!("a mount namespace of its own is refused: {}", text(error)),
        Refused::Ids(error) => format!("the user namespace may not have this user in it: {}", text(error)),
        Refused::Propagation(OsError::INVAL) => "the root directory is no mount point here, as in a chroot".to_owned(),
        Refused::Propagation(error) | Refused::Rights(error) => {
            format!("mounting is refused in a namespace of its own, as by AppArmor or a sandbox: {}", text(error))
        }
    };
    Failure::new(name, what, OUTSIDE)
}

/// Starts the process that serves the mount from the command's file `own`, and waits until it has
/// mounted. False if it has said why not.
fn start(own: &Path, source: &Source, name: &ArrayName, uuid: &str) -> Result<bool, Failure> {
    let cannot = |error: io::Error| Failure::new("mount", format!("cannot start its process: {error}"), "try again");
    let mut command = Command::new(own);
    // The array is told by variables: in a user namespace root's files seem to be nobody's, and
    // those that describe arrays would not be believed.
    command.arg0("cxlraid").envs(source.variables()).env_remove(run::PRELOAD).env_remove(events::EVENTS);
    if matches!(source, Source::Named(..)) {
        command.env_remove(JOURNAL);
    }
    if let Ok(Some(log)) = events::made(source, uuid) {
        command.env(events::EVENTS, log);
    }
    command.args(["mount", "--quiet", OPTION, "--"]).arg(name.as_str());
    // The process that serves the mount is to become init's child, also where this one takes in those
    // that its children leave behind.
    let takes_in = child_subreaper().ok().flatten();
    let _ = set_child_subreaper(None);
    let status = apart::with_children_known(|| command.stdin(Stdio::null()).stdout(Stdio::null()).status());
    let _ = set_child_subreaper(takes_in);
    has_mounted(status.map_err(cannot)?, name)
}

/// Tells what has become of the process that starts the one which serves the mount. The result is
/// false if that process has said why nothing is mounted.
fn has_mounted(status: ExitStatus, name: &ArrayName) -> Result<bool, Failure> {
    if status.code().is_some() {
        return Ok(status.success());
    }
    let what = format!("the process that was to have it mounted was ended: {status}");
    Err(Failure::new(name, what, "see what limits or ends processes here (ulimit -a)"))
}

/// Serves a mount that only one program and what it starts see, as the process that [`start`] has
/// started.
pub(crate) fn serve(arguments: &Mount) -> Result<Exit, Failure> {
    let (source, name) = (Source::Environment, arguments.name.as_str());
    let failed = |error: io::Error| Failure::new("signals", error, "try again");
    // A file that grows beyond a limit is refused, which ends nobody.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
    let config = inspect::config(&source)?;
    let places = missing(&config, name)?;
    let devices: Vec<OwnedFd> = places.iter().map(|_| mount::device().map_err(no_device)).collect::<Result<_, _>>()?;
    let members = config.mounts.iter();
    let found = members.filter_map(|member| statvfs(member.as_slice()).ok()).map(|found| found.f_flag);
    // Whatever user a program goes on as, it sees the array, with its rights.
    let allow_other = !mount::serves_own_user_only();
    let manner = Manner { array: name, allow_other, flags: mounting::mount_flags(found, Flags::default()) };
    for (place, device) in places.iter().zip(&devices) {
        mounting::mount_device(place, device.as_fd(), manner)?;
    }
    // From here on this process is in a namespace that does not end before it.
    let directories = places.iter().map(|place| place.directory.as_path());
    apart::step_out(directories).map_err(|error| not_apart(&arguments.name, Refused::Propagation(error)))?;
    mounting::raise_limits();
    let array = Array::attach(&config).map_err(|error| inspect::refused(name, &error.to_string()))?;
    let array = events::printing(array);
    let tell = events::begin(&source, name, array.uuid());
    let files = ArrayFiles::open(array.telling(tell))?;
    let begun = |(place, device)| mounting::session(&files, place, device).map(Session::for_one_program);
    let sessions: Vec<Session> = places.iter().zip(devices).map(begun).collect::<Result<_, _>>()?;
    runtime::unless_lost(Ok(()))?;
    // What asks the program and all that belongs to it to end, as a service manager does, is not to
    // take the array from under them. It ends with the mount.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    // Nobody waits for the mount any more if this cannot be said.
    let gone = |error: io::Error| Failure::new("mount", error, "try again");
    writeln!(io::stdout(), "{name}: mounted").and_then(|()| io::stdout().flush()).map_err(gone)?;
    mounting::leave_terminal();
    let _ = mount::drop_rights();
    thread::scope(|scope| sessions.iter().for_each(|session| _ = scope.spawn(|| session.serve())));
    Ok(Exit::Fine)
}

/// Those of the processes that serve a mount for one program.
pub(crate) fn among(processes: &[u32]) -> Vec<u32> {
    let serves = |pid: &&u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|&byte| byte == 0).skip(1);
        words.next() == Some(b"mount") && words.any(|word| word == OPTION.as_bytes())
    };
    processes.iter().filter(serves).copied().collect()
}

/// Waits, not for long, while only processes use an array that are about to end: those that serve
/// mounts for single programs, since the kernel tells them of the end of their program when it has
/// ended, and those that are on their way out, and have no memory any more.
pub(crate) fn await_end(source: &Source) {
    let Ok(superblock) = inspect::newest(source, called(source)) else { return };
    let (uuid, access) = (superblock.array_uuid, superblock.access);
    let begun = Instant::now();
    while begun.elapsed() < END_TIME {
        let mut processes = runtime::attached(uuid);
        if processes.is_empty() {
            // Who looks into a segment that is not there makes it.
            if array::runtime::find_segment(uuid, access).is_none() {
                return;
            }
            let Ok(runtime) = Runtime::look(uuid, access) else { return };
            processes.extend(runtime.attached());
        }
        let serving = among(&processes);
        let stays = |pid: &u32| !serving.contains(pid) && !runtime::is_ending(*pid);
        if processes.is_empty() || processes.iter().any(stays) {
            return;
        }
        thread::sleep(PERIOD / 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn arrays_of_others_are_refused() {
        let name: ArrayName = "db".parse().unwrap();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let is_fine = |owner_uid, owner_gid, mode| check_access(&name, Access { owner_uid, owner_gid, mode }).is_ok();
        assert!(is_fine(uid, gid, 0o600) && is_fine(uid, gid, 0o660) && is_fine(uid, gid + 1, 0o600));
        assert!(!is_fine(uid + 1, gid, 0o666) && !is_fine(uid, gid + 1, 0o660));
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let name: ArrayName = "db".parse().unwrap();
        for refused in [Refused::User, Refused::Mounts, Refused::Ids, Refused::Propagation, Refused::Rights] {
            for error in [OsError::PERM, OsError::NOSPC, OsError::INVAL] {
                let line = not_apart(&name, refused(error)).to_string();
                assert!(line.starts_with("cxlraid: db: ") && line.ends_with("uses then") && !line.contains('\n'), "{line}");
            }
        }
    }

    #[test]
    fn a_process_that_is_ended_does_not_pass_for_one_that_has_said_why() {
        let name: ArrayName = "db".parse().unwrap();
        let status = ExitStatus::from_raw;
        assert_eq!((has_mounted(status(0), &name), has_mounted(status(1 << 8), &name)), (Ok(true), Ok(false)));
        let line = has_mounted(status(9), &name).unwrap_err().to_string();
        assert!(line.starts_with("cxlraid: db: the process") && line.contains("signal: 9 (SIGKILL)"), "{line}");
    }

    #[test]
    fn only_such_processes_count() {
        assert!(among(&[std::process::id(), u32::MAX]).is_empty());
    }
}
