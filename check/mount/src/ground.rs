//! An array in a directory of its own, with a mount, and commands on it.

use crate::{
    Options,
    peer::{Peer, Programs},
};
use std::{
    fs,
    os::unix::{fs::symlink, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Far longer than any step takes.
const LIMIT: Duration = Duration::from_secs(30);
/// The size of a member's own file system.
const DISK_BYTES: u64 = 96 << 20;

/// The command, started by another one.
pub(crate) fn within(words: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// A directory with members, the array's path and the mount's directory.
pub(crate) struct Ground<'a> {
    options: &'a Options,
    programs: &'a Programs,
    home: tempfile::TempDir,
    /// The array's name. No other run has the same: the command finds mounts by the names of their
    /// arrays, so one that a killed run has left would otherwise count as this run's.
    name: String,
    serving: Option<Child>,
    /// File systems of single members.
    disks: Vec<PathBuf>,
    /// Where the process that serves the mount says how it is.
    told: Option<UnixDatagram>,
}

impl<'a> Ground<'a> {
    /// An array of a level, with so many members, that nobody uses yet.
    pub(crate) fn new(options: &'a Options, programs: &'a Programs, level: &str, member_count: usize) -> Result<Self, String> {
        Self::with_disk(options, programs, level, member_count, None)
    }

    /// As [`Self::new`]; the member in the slot `disk` has a file system (ext4) of its own.
    pub(crate) fn with_disk(
        options: &'a Options,
        programs: &'a Programs,
        level: &str,
        member_count: usize,
        disk: Option<usize>,
    ) -> Result<Self, String> {
        let home = tempfile::Builder::new().prefix("doors.").tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
        let name = format!("doors-{}", home.path().extension().unwrap_or_default().display());
        let mut ground = Self { options, programs, home, name, serving: None, disks: Vec::new(), told: None };
        let members: Vec<String> = (0..member_count).map(|slot| ground.path(&format!("m{slot}")).display().to_string()).collect();
        for directory in members.iter().map(PathBuf::from).chain([ground.mounted(), ground.path("busy/x")]) {
            fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        }
        if let Some(slot) = disk {
            ground.put_disk(slot)?;
        }
        let name = ground.name.clone();
        let mut words = vec!["create", &name, "--level", level, "--chunk", "4K", "--at"];
        let data = ground.data().display().to_string();
        words.push(&data);
        words.extend(members.iter().map(String::as_str));
        ground.good(&words)?;
        Ok(ground)
    }

    fn put_disk(&mut self, slot: usize) -> Result<(), String> {
        let (image, directory) = (self.path("image"), self.path(&format!("m{slot}")));
        fs::File::create(&image).and_then(|file| file.set_len(DISK_BYTES)).map_err(|error| error.to_string())?;
        succeed(Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal", "-m", "0"]).arg(&image))?;
        succeed(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&image).arg(&directory))?;
        self.disks.push(directory.clone());
        fs::remove_dir(directory.join("lost+found")).map_err(|error| error.to_string())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Where programs that the library serves see the array.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Where others see it.
    pub(crate) fn mounted(&self) -> PathBuf {
        self.path("mounted")
    }

    /// The command `cxlraid` with these words.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.command_as(&self.options.command, words)
    }

    fn command_as(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env_remove("LD_PRELOAD").env("CXLRAID_LIB", &self.options.library);
        command.env("XDG_CONFIG_HOME", self.path("config")).env("XDG_STATE_HOME", self.path("state"));
        command.env("CXLRAID_SYSTEM_ARRAYS", self.path("system"));
        command
    }

    fn output(&self, words: &[&str]) -> Result<Output, String> {
        self.command(words).stdin(Stdio::null()).output().map_err(|error| format!("{words:?}: {error}"))
    }

    /// Runs `cxlraid`, which must succeed.
    pub(crate) fn good(&self, words: &[&str]) -> Result<String, String> {
        let output = self.output(words)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            Err(format!("cxlraid {words:?}: {}", String::from_utf8_lossy(&output.stderr)))
        }
    }

    /// Runs `cxlraid`, which must refuse, with this in the line that it says.
    pub(crate) fn refused(&self, words: &[&str], why: &str) -> Result<(), String> {
        let output = self.output(words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_right = output.status.code() == Some(1) && said.lines().count() == 1 && said.contains(why);
        if is_right { Ok(()) } else { Err(format!("cxlraid {words:?}: {}, said {said:?} and not {why:?}", output.status)) }
    }

    /// Runs the command under the name by which mount(8) starts it.
    pub(crate) fn helper(&self, words: &[&str]) -> Result<Output, String> {
        let name = self.path("mount.cxlraid");
        if !name.exists() {
            symlink(&self.options.command, &name).map_err(|error| error.to_string())?;
        }
        self.command_as(&name, words).stdin(Stdio::null()).output().map_err(|error| format!("{words:?}: {error}"))
    }

    /// Mounts the array; the process that serves the mount is a child of this one.
    pub(crate) fn mount(&mut self) -> Result<(), String> {
        self.mount_with(&[])
    }

    /// The same with these options.
    pub(crate) fn mount_with(&mut self, words: &[&str]) -> Result<(), String> {
        self.mount_at(&self.mounted(), words)
    }

    /// The same at a directory.
    pub(crate) fn mount_at(&mut self, directory: &Path, words: &[&str]) -> Result<(), String> {
        self.mount_by(&[], directory, words)
    }

    /// The same; the command is started by another one, which executes it.
    pub(crate) fn mount_by(&mut self, outer: &[&str], directory: &Path, words: &[&str]) -> Result<(), String> {
        let command = self.command(&[&["mount", "--foreground"], words, &[self.name()]].concat());
        let mut command = if outer.is_empty() { command } else { within(outer, &command) };
        let told = self.path("notify");
        let _ = fs::remove_file(&told);
        let socket = UnixDatagram::bind(&told).map_err(|error| error.to_string())?;
        let _ = socket.set_read_timeout(Some(LIMIT));
        command.env("NOTIFY_SOCKET", told);
        let child = command.arg(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.serving = Some(child.map_err(|error| error.to_string())?);
        self.told = Some(socket);
        self.is_told("READY=1")?;
        fs::metadata(directory).map(|_| ()).map_err(|error| format!("mount: {error}"))
    }

    /// The process that serves the mount says this next to its service manager.
    pub(crate) fn is_told(&self, expected: &str) -> Result<(), String> {
        let (Some(socket), mut buffer) = (&self.told, [0; 100]) else { return Err("nothing is mounted".into()) };
        let bytes = socket.recv(&mut buffer).map_err(|error| format!("{expected} is not said: {error}"))?;
        if buffer[..bytes] == *expected.as_bytes() { Ok(()) } else { Err(format!("not {expected} but other words")) }
    }

    /// What /proc says of each thread of the process that serves the mount, in its line of this
    /// name.
    pub(crate) fn status_of_serving(&self, name: &str) -> Result<Vec<String>, String> {
        let tasks = format!("/proc/{}/task", self.serving.as_ref().map_or(0, Child::id));
        let mut found = Vec::new();
        for task in fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))? {
            let Ok(text) = task.and_then(|task| fs::read_to_string(task.path().join("status"))) else { continue };
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.push(line.map(|value| value.trim().to_owned()).ok_or_else(|| format!("{tasks}: no {name}"))?);
        }
        Ok(found)
    }

    /// Sends a signal to the process that serves the mount.
    pub(crate) fn signal(&self, name: &str) -> Result<(), String> {
        let Some(child) = &self.serving else { return Err("nothing is mounted".into()) };
        let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
        sent.map(|_| ()).map_err(|error| format!("kill: {error}"))
    }

    /// Asks the process that serves the mount to end.
    pub(crate) fn terminate(&mut self) -> Result<(), String> {
        self.signal("TERM")?;
        self.is_told("STOPPING=1")?;
        self.await_end()
    }

    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        self.good(&["unmount", self.name()])?;
        self.await_end()
    }

    /// Kills the process that serves the mount.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        let Some(child) = &mut self.serving else { return Ok(()) };
        child.kill().map_err(|error| error.to_string())?;
        self.await_end()
    }

    fn await_end(&mut self) -> Result<(), String> {
        let Some(mut child) = self.serving.take() else { return Ok(()) };
        wait(|| matches!(child.try_wait(), Ok(Some(_)))).map_err(|error| format!("the mount's process: {error}"))
    }

    /// Runs a program that the library serves, which must succeed.
    pub(crate) fn run(&self, program: &Command) -> Result<(), String> {
        let mut command = self.command(&["run", self.name(), "--"]);
        succeed(command.arg(program.get_program()).args(program.get_args()))
    }

    /// A static program, which sees the array through the mount.
    pub(crate) fn through_mount(&self) -> Result<Peer, String> {
        Peer::start(Command::new(&self.programs.fixed), &self.mounted())
    }

    /// The command that runs a program which the library serves.
    pub(crate) fn running(&self, program: &str) -> Command {
        self.command(&["run", self.name(), "--", program])
    }

    /// The command that runs a program with a mount of its own.
    pub(crate) fn alone(&self, program: &str) -> Command {
        self.command(&["run", "--mount", self.name(), "--", program])
    }

    /// A program that the library serves.
    pub(crate) fn intercepted(&self) -> Result<Peer, String> {
        let program = self.programs.dynamic.display().to_string();
        Peer::start(self.running(&program), &self.data())
    }

    /// Members hold what they must when nobody uses the array, and nothing of it is left in shared
    /// memory.
    pub(crate) fn conclude(&self) -> Result<(), String> {
        self.good(&["scrub", self.name()]).map(|_| ())?;
        wait(|| self.good(&["stop", self.name()]).is_ok()).map_err(|error| format!("stop: {error}"))
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.serving.take() {
            let _ = self.output(&["unmount", "--lazy", self.name()]);
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.output(&["stop", self.name()]);
        self.disks.iter().for_each(|disk| _ = Command::new("umount").arg("-l").arg(disk).status());
    }
}

/// Runs a command, which must succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())) }
}

/// Waits until something is so.
pub(crate) fn wait(mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LIMIT {
            return Err(format!("not so after {} s", LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
