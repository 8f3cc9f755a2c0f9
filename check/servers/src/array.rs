//! An array under test: its shape, its member directories, members that are taken away, and
//! programs that see it or not.

use crate::{
    Outcome,
    ground::{Ground, User, remove},
    process::Run,
};
use stage::{Watch, door::Door};
use std::{
    env,
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// The library maps open files in windows of these sizes, small files in the first (media/dax).
const WINDOWS_BYTES: [u64; 2] = [2 << 20, 1 << 30];

/// Level and members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    pub(crate) member_count: usize,
    /// How many members may be missing.
    pub(crate) bears: usize,
    /// As in CXLRAID_JOURNAL; empty for none.
    pub(crate) journal: &'static str,
}

impl Shape {
    pub(crate) const PLAIN: Self = Self { label: "plain", level: "", member_count: 0, bears: 0, journal: "" };
    pub(crate) const RAID1: Self = Self { label: "raid1", level: "1", member_count: 3, bears: 2, journal: "" };
    pub(crate) const RAID5: Self = Self { label: "raid5", level: "5", member_count: 3, bears: 1, journal: "" };
    pub(crate) const RAID6: Self = Self { label: "raid6", level: "6", member_count: 4, bears: 2, journal: "" };
    pub(crate) const JOURNAL: Self = Self { label: "journal", journal: "internal", ..Self::RAID5 };
    pub(crate) const ALL: [Self; 4] = [Self::RAID1, Self::RAID5, Self::RAID6, Self::JOURNAL];
}

/// Members, and the environment that makes programs see them as an array. Removed when dropped.
pub(crate) struct Array<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) shape: Shape,
    pub(crate) members: Vec<PathBuf>,
    /// The prefix: programs see the array below it. On the host it is an empty directory.
    pub(crate) data: PathBuf,
    /// A directory of the host, for sockets, logs and references.
    pub(crate) work: PathBuf,
    directory: PathBuf,
    user: Option<User>,
    counter: AtomicUsize,
    watch: Option<Watch>,
    kept: AtomicBool,
    /// The mount, while programs use one.
    door: Mutex<Option<Door>>,
}

impl<'a> Array<'a> {
    /// Creates the array: the first program that sees empty members does. `name` is unique among
    /// arrays that exist at a time.
    pub(crate) fn new(ground: &'a Ground, name: &str, shape: Shape, user: Option<User>) -> Outcome<Self> {
        let directory = ground.root.join(name);
        let work = ground.host.join(name);
        let members: Vec<PathBuf> = (0..shape.member_count).map(|slot| directory.join(format!("m{slot}"))).collect();
        let data = directory.join("data");
        for path in members.iter().chain([&directory, &data, &work, &work.join("home")]) {
            ground.directory(path, user)?;
        }
        let (counter, kept) = (AtomicUsize::new(0), AtomicBool::new(false));
        let watch = ground.watched.then(|| Watch::new(work.join("calls"))).transpose()?;
        let door = Mutex::default();
        let array = Self { ground, shape, members, data, work, directory, user, counter, watch, kept, door };
        let listed = array.inside("ls").arg("-A").arg(&array.data).text()?;
        if listed.is_empty() { Ok(array) } else { Err(format!("a new array is not empty: {listed}")) }
    }

    /// From here on programs use a mount, until [`Self::close_door`].
    pub(crate) fn open_door(&self) -> Outcome {
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let mut serve = Command::new(this);
        serve.arg(crate::SERVE).arg(&self.data).current_dir("/").stdin(Stdio::null()).envs(self.variables());
        *self.door() = Some(Door::open(serve, &self.data)?);
        Ok(())
    }

    /// No program uses the mount any more. Whether there was one.
    pub(crate) fn close_door(&self) -> Outcome<bool> {
        let door = self.door().take();
        door.map_or(Ok(false), |door| door.close().map(|()| true))
    }

    /// Whether programs use the array through a mount now, and not by the library.
    pub(crate) fn is_mounted(&self) -> bool {
        self.door().is_some()
    }

    fn door(&self) -> MutexGuard<'_, Option<Door>> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What says which array it is.
    fn variables(&self) -> [(&'static str, OsString); 5] {
        let mounts = self.members.iter().map(|member| member.as_os_str()).collect::<Vec<_>>().join(":".as_ref());
        [
            ("CXLRAID_LEVEL", self.shape.level.into()),
            ("CXLRAID_MOUNTS", mounts),
            ("CXLRAID_PATHS", self.data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", "64K".into()),
            ("CXLRAID_JOURNAL", self.shape.journal.into()),
        ]
    }

    /// A program that sees the array.
    pub(crate) fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        let run = self.outside(program);
        if self.members.is_empty() || self.is_mounted() {
            return run;
        }
        let run = match &self.watch {
            Some(watch) => run.env(stage::watch::VARIABLE, watch.path()),
            None => run,
        };
        let run = self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value));
        run.env("LD_PRELOAD", &self.ground.library)
    }

    /// What the watch over system calls saw; empty without one.
    pub(crate) fn seen(&self) -> Outcome<String> {
        self.watch.as_ref().map_or_else(|| Ok(String::new()), Watch::take)
    }

    /// A program that does not.
    pub(crate) fn outside(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        Run::new(program, self.ground, self.work.join(format!("run.{number}")), self.user)
            .env("HOME", self.work.join("home"))
            .env("TMPDIR", &self.work)
            .env("D", &self.data)
            .env("W", &self.work)
            .directory(&self.work)
    }

    /// A directory of the host that belongs to who runs the programs.
    pub(crate) fn host_directory(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.work.join(name);
        self.ground.directory(&path, self.user)?;
        Ok(path)
    }

    /// Beside the member.
    fn away(&self, slot: usize) -> PathBuf {
        self.members[slot].with_extension("away")
    }

    /// Takes a member away, as an unmounted device.
    pub(crate) fn lose(&self, slot: usize) -> Outcome {
        fs::rename(&self.members[slot], self.away(slot)).map_err(|error| format!("taking member {slot} away: {error}"))
    }

    /// Brings it back.
    pub(crate) fn bring_back(&self, slot: usize) -> Outcome {
        fs::rename(self.away(slot), &self.members[slot]).map_err(|error| format!("bringing member {slot} back: {error}"))
    }

    /// Slots of the members that are there.
    pub(crate) fn present(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&slot| self.members[slot].is_dir()).collect()
    }

    /// How many more may go.
    pub(crate) fn spare_failures(&self) -> usize {
        self.shape.bears.saturating_sub(self.members.len() - self.present().len())
    }

    /// The prefix as it lies on a member.
    pub(crate) fn on_member(&self, slot: usize) -> PathBuf {
        self.members[slot].join(self.data.strip_prefix("/").unwrap_or(&self.data))
    }

    /// What a process has mapped of the array to store to, shared: backing files and shared copies,
    /// as /proc tells them, without the windows that the library itself has of open files.
    pub(crate) fn mapped_by(&self, pid: i32) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let own = self.directory.display().to_string();
        let is_mapping = |line: &&str| {
            let path = line.find('/').map_or("", |at| &line[at..]);
            let ours = path.starts_with(&own) && !path.contains("/.cxlraid/");
            let copy = path.starts_with("/dev/shm/cxlraid-") && path.contains("-map-");
            line.contains(" rw-s ") && (ours || copy) && !WINDOWS_BYTES.contains(&range_bytes(line))
        };
        maps.lines().filter(is_mapping).map(|line| line[line.find('/').unwrap_or(0)..].to_owned()).collect()
    }

    /// Leaves everything where it is, for a look at what went wrong.
    pub(crate) fn keep(&self) {
        self.ground.janitor.keep();
        self.kept.store(true, Ordering::Relaxed);
    }
}

/// How many addresses a line of /proc/<pid>/maps is about.
fn range_bytes(line: &str) -> u64 {
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    range.map_or(0, |(from, to)| address(to) - address(from))
}

impl Drop for Array<'_> {
    fn drop(&mut self) {
        // Nothing is removed through the mount.
        drop(self.door().take());
        if self.kept.load(Ordering::Relaxed) {
            return;
        }
        stage::segment::forget((0..self.members.len()).flat_map(|slot| [self.members[slot].clone(), self.away(slot)]));
        remove(&self.directory);
        remove(&self.work);
    }
}
