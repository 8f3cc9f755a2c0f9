//! Where things are measured: arrays, an ordinary directory, and file systems on loop devices, all
//! on one tmpfs. A [`stage::Janitor`] removes everything, however the run ends.

use stage::Janitor;
use stage::process::ENVIRONMENT;
use stage::run::{Output, Run};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longer than anything takes that runs to its end.
const LIMIT: Duration = Duration::from_secs(1800);

/// An array that programs reach by the library.
#[derive(Clone, Debug)]
struct Array {
    level: &'static str,
    members: Vec<PathBuf>,
    chunk_bytes: u64,
    /// The value of CXLRAID_JOURNAL; empty for none.
    journal: String,
}

/// What an array is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The value of CXLRAID_LEVEL.
    pub(crate) level: &'static str,
    pub(crate) members: usize,
    pub(crate) chunk_bytes: u64,
    /// True for a journal in a file of its own.
    pub(crate) journal: bool,
}

/// A directory that is measured.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The directory as programs see it.
    pub(crate) directory: PathBuf,
    array: Option<Array>,
    /// What is mounted, if something is.
    mounted: Option<PathBuf>,
    /// The directory that everything of it lies in.
    root: PathBuf,
    /// True for a place that was given away: its programs run as `NOBODY`.
    is_given: bool,
}

/// The user and the group that programs run as that refuse to be root: nobody and nogroup of Debian.
const NOBODY: u32 = 65534;

/// The tmpfs directory, and the library.
pub(crate) struct Ground {
    root: PathBuf,
    /// The copy that programs load.
    library: PathBuf,
    /// The library that was copied. The bench looks for the command `cxlraid` beside it.
    built: PathBuf,
    janitor: Janitor,
    /// Numbers for directories and logs.
    count: AtomicUsize,
}

fn told(what: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", what.display())
}

impl Ground {
    /// A directory in shared memory, and beside it one for a copy of the library: another user may
    /// read it, and it stays the same while others build.
    pub(crate) fn new(library: &Path) -> Result<Self, String> {
        let name = format!("cxlraid-report-{}", std::process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), std::env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(told(&root))?;
        for directory in [&root, &host] {
            fs::create_dir(directory).map_err(told(directory))?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(told(directory))?;
        }
        let copy = host.join("libcxlraid.so");
        fs::copy(library, &copy).map_err(told(library))?;
        Ok(Self { root, library: copy, built: library.to_owned(), janitor, count: AtomicUsize::new(0) })
    }

    fn number(&self) -> usize {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    fn fresh(&self) -> Result<PathBuf, String> {
        let root = self.root.join(format!("place-{}", self.number()));
        fs::create_dir(&root).map_err(told(&root))?;
        Ok(root)
    }

    /// An ordinary directory of the tmpfs.
    pub(crate) fn plain(&self) -> Result<Place, String> {
        let root = self.fresh()?;
        Ok(Place { directory: root.clone(), array: None, mounted: None, root, is_given: false })
    }

    /// A new array. Its first program makes it.
    pub(crate) fn array(&self, shape: Shape) -> Result<Place, String> {
        let root = self.fresh()?;
        let members: Vec<PathBuf> = (0..shape.members).map(|slot| root.join(format!("m{slot}"))).collect();
        members.iter().try_for_each(|member| fs::create_dir(member).map_err(told(member)))?;
        let journal = if shape.journal { root.join("journal").display().to_string() } else { String::new() };
        let name = format!("{}-{}", self.root.file_name().unwrap_or_default().display(), self.number());
        let array = Array { level: shape.level, members, chunk_bytes: shape.chunk_bytes, journal };
        Ok(Place { directory: Path::new("/").join(name), array: Some(array), mounted: None, root, is_given: false })
    }

    /// ext4 in a file of the tmpfs, through a loop device with direct I/O.
    pub(crate) fn ext4(&self, bytes: u64) -> Result<Place, String> {
        let root = self.fresh()?;
        let disk = root.join("disk");
        File::create(&disk).and_then(|file| file.set_len(bytes)).map_err(told(&disk))?;
        self.tool("mkfs.ext4", &["-q", "-F", &disk.display().to_string()])?;
        self.mount(root, &[disk], "")
    }

    /// btrfs with a profile for data and metadata on `count` loop devices with direct I/O.
    pub(crate) fn btrfs(&self, profile: &str, count: usize, bytes: u64, options: &str) -> Result<Place, String> {
        let root = self.fresh()?;
        let disks: Vec<PathBuf> = (0..count).map(|number| root.join(format!("disk{number}"))).collect();
        for disk in &disks {
            File::create(disk).and_then(|file| file.set_len(bytes)).map_err(told(disk))?;
        }
        let names = disks.iter().map(|disk| disk.display().to_string());
        let mut arguments = ["-q", "-f", "-d", profile, "-m", profile].map(str::to_owned).to_vec();
        arguments.extend(names);
        self.tool("mkfs.btrfs", &arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        self.mount(root, &disks, options)
    }

    /// Mounts a file system that lies in these files. The kernel gives the loop devices back when it
    /// is unmounted.
    fn mount(&self, root: PathBuf, disks: &[PathBuf], options: &str) -> Result<Place, String> {
        let directory = root.join("mounted");
        fs::create_dir(&directory).map_err(told(&directory))?;
        let at = directory.display().to_string();
        let mut devices = Vec::new();
        let mounted = (|| {
            for disk in disks {
                let disk = disk.display().to_string();
                let device = self.tool("losetup", &["--find", "--show", "--direct-io=on", &disk]).map_err(|why| {
                    let why = why.rsplit(": ").next().unwrap_or_default().to_owned();
                    format!("no loop device can be had, which takes root: {why}")
                })?;
                devices.push(device.trim().to_owned());
            }
            let devices_named: Vec<String> = devices.iter().map(|device| format!("device={device}")).collect();
            let options = [options.to_owned(), if devices.len() > 1 { devices_named.join(",") } else { String::new() }];
            let options = options.iter().filter(|option| !option.is_empty()).cloned().collect::<Vec<_>>().join(",");
            let first = devices.first().cloned().unwrap_or_default();
            let options = if options.is_empty() { "defaults" } else { &options };
            self.tool("mount", &["-o", options, &first, &at])
        })();
        // A device in use is given back when its last user has gone.
        for device in &devices {
            let _ = self.tool("losetup", &["--detach", device]);
        }
        mounted?;
        self.janitor.mounted(&directory);
        Ok(Place { directory: directory.clone(), array: None, mounted: Some(directory), root, is_given: false })
    }

    /// Runs a tool of the machine to its end. Returns what it printed.
    fn tool(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let found = stage::process::find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
        let output = Run::new(found, &self.janitor, self.stem()).args(arguments).limit(LIMIT).output();
        if output.succeeded() {
            return Ok(output.stdout);
        }
        let said = output.stderr.trim().lines().next_back().unwrap_or_default().to_owned();
        Err(format!("{program} failed: {} {said}", output.status))
    }

    fn stem(&self) -> PathBuf {
        self.root.join(format!("log-{}", self.number()))
    }

    /// A program that works in a place.
    pub(crate) fn program(&self, program: &str, place: &Place) -> Result<Run<'_>, String> {
        let found = stage::process::find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
        let mut run = Run::new(found, &self.janitor, self.stem()).limit(LIMIT);
        for (name, value) in self.environment(place) {
            run = run.env(name, value);
        }
        Ok(if place.is_given { run.user(NOBODY, NOBODY) } else { run })
    }

    /// A program that works beside a place, on files that are not measured: a client of a server there.
    pub(crate) fn client(&self, program: &str) -> Result<Run<'_>, String> {
        let found = stage::process::find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
        Ok(Run::new(found, &self.janitor, self.stem()).limit(LIMIT))
    }

    /// Gives a place that no program has used to an ordinary user, as whom its programs run from then
    /// on. Nothing is changed where we are none but such a user.
    pub(crate) fn give(&self, place: &mut Place) -> Result<(), String> {
        if !stage::process::are_root() {
            return Ok(());
        }
        let members = place.array.iter().flat_map(|array| &array.members);
        for directory in members.chain(&place.mounted).chain([&place.root]) {
            chown(directory, Some(NOBODY), Some(NOBODY)).map_err(told(directory))?;
        }
        place.is_given = true;
        Ok(())
    }

    /// A directory on no place that is measured, which programs of a place may use.
    pub(crate) fn beside(&self, place: &Place) -> PathBuf {
        place.root.clone()
    }

    /// A path for the socket of a server, on no place that is measured.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join(format!("socket-{}", self.number()))
    }

    /// Starts a server that works in a place, in a process group of its own.
    pub(crate) fn server<'a>(
        &self,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
        place: &Place,
    ) -> Result<Server<'_>, String> {
        let found = stage::process::find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
        let mut command = Command::new(found);
        command.args(arguments).env_clear().envs(ENVIRONMENT).envs(self.environment(place));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        if place.is_given {
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        self.janitor.begun(child.id());
        Ok(Server { child, name: program.to_owned(), janitor: &self.janitor })
    }

    /// The bench, which lies beside this program. It makes its own arrays.
    pub(crate) fn bench(&self) -> Result<Run<'_>, String> {
        let program = stage::options::beside_us("cxlraid-bench");
        stage::options::must_be_built(&program, "cxlraid-bench")?;
        let own = self.root.display().to_string();
        let names = ["XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"];
        let run = Run::new(program, &self.janitor, self.stem()).limit(LIMIT * 4).env("CXLRAID_LIB", &self.built);
        Ok(names.into_iter().fold(run, |run, name| run.env(name, &own)))
    }

    /// What a program finds in its environment that works in a place.
    pub(crate) fn environment(&self, place: &Place) -> Vec<(&'static str, String)> {
        let own = self.root.display().to_string();
        let mut variables: Vec<(&'static str, String)> =
            ["XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"].map(|name| (name, own.clone())).to_vec();
        if let Some(array) = &place.array {
            let members: Vec<String> = array.members.iter().map(|member| member.display().to_string()).collect();
            variables.extend([
                ("LD_PRELOAD", self.library.display().to_string()),
                ("CXLRAID_LEVEL", array.level.to_owned()),
                ("CXLRAID_MOUNTS", members.join(":")),
                ("CXLRAID_PATHS", place.directory.display().to_string()),
                ("CXLRAID_STRIPE_SIZE", array.chunk_bytes.to_string()),
                ("CXLRAID_JOURNAL", array.journal.clone()),
            ]);
        }
        variables
    }

    /// Makes a file of so many random bytes in a place.
    pub(crate) fn fill(&self, place: &Place, name: &str, bytes: u64) -> Result<(), String> {
        let arguments =
            ["if=/dev/urandom".to_owned(), format!("of={}", place.directory.join(name).display()), "bs=1M".to_owned()];
        let count = format!("count={}", bytes >> 20);
        let run = self.program("dd", place)?.args(arguments).args([count.as_str(), "iflag=fullblock", "status=none"]);
        succeeded("dd", &run.output()).map(|_| ())
    }

    /// Empties the array's first member, as if its device were not mounted. No program uses the
    /// array, and none finds it in use.
    pub(crate) fn lose_first(&self, place: &Place) -> Result<(), String> {
        let member = place.array.as_ref().and_then(|array| array.members.first()).ok_or("not an array")?;
        stage::segment::forget(place.array.iter().flat_map(|array| &array.members));
        stage::remove(member).and_then(|()| fs::create_dir(member)).map_err(told(member))
    }

    /// Removes a place with all that is in it.
    pub(crate) fn discard(&self, place: &Place) -> Result<(), String> {
        if let Some(mounted) = &place.mounted {
            self.tool("umount", &[&mounted.display().to_string()])?;
            self.janitor.unmounted(mounted);
        }
        if let Some(array) = &place.array {
            stage::segment::forget(&array.members);
        }
        stage::remove(&place.root).map_err(told(&place.root))
    }
}

/// A server that runs. It is killed if it is dropped before it has ended.
pub(crate) struct Server<'a> {
    child: Child,
    name: String,
    janitor: &'a Janitor,
}

impl Server<'_> {
    /// Waits until the server, which was asked to end, has done so.
    pub(crate) fn wait(mut self) -> Result<(), String> {
        match stage::process::wait(&mut self.child, Duration::from_secs(60)) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("{}: {}", self.name, stage::process::describe(status))),
            Ok(None) => Err(format!("{} does not end", self.name)),
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // It may have ended; nothing is killed then.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.janitor.ended(self.child.id());
    }
}

/// The standard output of a program that must have ended with 0.
pub(crate) fn succeeded<'a>(what: &str, output: &'a Output) -> Result<&'a str, String> {
    if output.succeeded() { Ok(&output.stdout) } else { Err(stage::report::with_output(what, output)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_gone_afterwards() {
        let ground = Ground::new(&std::env::current_exe().unwrap()).unwrap();
        let place = ground.plain().unwrap();
        ground.fill(&place, "f", 1 << 20).unwrap();
        assert_eq!(fs::metadata(place.directory.join("f")).unwrap().len(), 1 << 20);
        ground.discard(&place).unwrap();
        assert!(!place.directory.exists());
        let array = ground.array(Shape { level: "5", members: 3, chunk_bytes: 4096, journal: true }).unwrap();
        let environment = ground.environment(&array);
        assert!(environment.iter().any(|(name, value)| *name == "CXLRAID_STRIPE_SIZE" && value == "4096"));
        assert!(environment.iter().any(|(name, value)| *name == "CXLRAID_MOUNTS" && value.split(':').count() == 3));
        let copy = ground.library.clone();
        assert!(copy.is_file());
        let root = ground.root.clone();
        drop(ground);
        assert!(!root.exists() && !copy.exists());
    }
}
