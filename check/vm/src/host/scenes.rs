//! The scenes: they are played from a queue, in a few virtual machines at a time, and reported.

use super::{
    cut,
    machine::{Hardware, Machine, Platform, new_file},
    packages::Packages,
    root::{self, System},
};
use crate::{
    Outcome, about,
    array::{Array, FileSystem, Shape},
    job::Job,
    options::Options,
};
use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Instant, SystemTime},
};

const CXL_BYTES: u64 = 256 << 20;

/// What every scene works with.
pub(crate) struct Stage<'a> {
    pub(crate) packages: &'a Packages,
    pub(crate) system: &'a System,
    pub(crate) options: &'a Options,
    pub(crate) directory: &'a Path,
    pub(crate) seed: u64,
}

impl Stage<'_> {
    /// A new directory for a machine.
    pub(crate) fn directory(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).map_err(about(path.display()))?;
        Ok(path)
    }

    /// Boots a machine for `job`, waits until it ends, and returns the lines of its log that are
    /// meant for the report (they begin with "= ").
    pub(crate) fn play(&self, directory: &Path, hardware: &Hardware, job: &Job) -> Outcome<Vec<String>> {
        let end = Machine::boot(self.packages, self.system, directory, hardware, job)?.wait()?;
        let tail: Vec<&str> = end.log.lines().collect();
        match end.failure {
            None => Ok(end.log.lines().filter_map(|line| line.strip_prefix("= ")).map(str::to_owned).collect()),
            Some(failure) => Err(format!("{failure}\n{}", tail[tail.len().saturating_sub(25)..].join("\n"))),
        }
    }
}

/// One entry of the queue. A thread plays one task at a time, and a task may put further tasks into
/// the queue.
pub(crate) enum Task {
    RoundTrip(FileSystem, Platform),
    Cxl,
    PowerCut(Array),
    /// Recovers the image that a power cut has left.
    Recover(cut::Image),
}

impl Task {
    fn all() -> Vec<Self> {
        let [raid1, raid5, raid6] = Shape::ALL;
        let power_cut = |shape, system, journal| Self::PowerCut(Array { shape, system, journal });
        vec![
            power_cut(raid5, FileSystem::Ext4, false),
            power_cut(raid6, FileSystem::Xfs, false),
            power_cut(raid1, FileSystem::Ext4, false),
            power_cut(raid5, FileSystem::Xfs, true),
            power_cut(raid6, FileSystem::Ext4, true),
            Self::RoundTrip(FileSystem::Ext4, Platform::MemoryController),
            Self::RoundTrip(FileSystem::Xfs, Platform::ProcessorCaches),
            Self::Cxl,
        ]
    }

    fn name(&self) -> String {
        match self {
            Self::RoundTrip(system, _) => format!("round-trip-{system}"),
            Self::Cxl => "cxl".to_owned(),
            Self::PowerCut(array) => format!("power-cut-{array}"),
            Self::Recover(image) => image.name(),
        }
    }

    /// Plays the task. Returns the lines that the report shows of it, and further tasks.
    fn play(&self, stage: &Stage<'_>) -> Outcome<(Vec<String>, Vec<Self>)> {
        let name = self.name();
        let directory = stage.directory(&name)?;
        let done = |lines| Ok((lines, Vec::new()));
        match self {
            Self::RoundTrip(system, platform) => {
                let hardware = Hardware::new(&directory, *platform, 4, *system)?;
                let job = Job::new("round-trip").with("fs", system).with("persistence", platform.expected());
                done(stage.play(&directory, &hardware, &job)?)
            }
            Self::Cxl => {
                let mut hardware = Hardware::new(&directory, Platform::ProcessorCaches, 2, FileSystem::Ext4)?;
                let device = directory.join("cxl");
                new_file(&device, CXL_BYTES)?;
                hardware.cxl = Some(device);
                done(stage.play(&directory, &hardware, &Job::new("cxl"))?)
            }
            Self::PowerCut(array) => {
                let (lines, images) = cut::images(stage, &directory, *array)?;
                Ok((lines, images.into_iter().map(Self::Recover).collect()))
            }
            Self::Recover(image) => done(image.recover(stage, &directory)?),
        }
    }
}

/// The tasks that wait, and the number of tasks that are being played, each of which may add more.
struct Queue {
    state: Mutex<(VecDeque<Task>, usize)>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Task>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task; None when all is done.
    fn take(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.0.pop_front() {
                state.1 += 1;
                return Some(task);
            }
            if state.1 == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, more: Vec<Task>) {
        let mut state = self.lock();
        state.1 -= 1;
        state.0.extend(more);
        self.changed.notify_all();
    }
}

/// Plays all scenes that the options ask for. Returns whether all passed.
pub(crate) fn run(options: &Options) -> Outcome<bool> {
    let tasks: Vec<Task> = Task::all().into_iter().filter(|task| options.wants(&task.name())).collect();
    if tasks.is_empty() {
        return Err("no scene has such a name; --help lists them".to_owned());
    }
    let begun = Instant::now();
    let directory = options.directory.join("run");
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(about(directory.display()))?;
    }
    fs::create_dir_all(&directory).map_err(about(directory.display()))?;
    let packages = Packages::ensure(&options.directory.join("packages"))?;
    let system = root::build(&packages, options, &options.directory)?;
    let seed = options.seed.unwrap_or_else(clock_seed);
    println!("kernel {}, seed {seed}; ready after {:.0} s", packages.kernel, begun.elapsed().as_secs_f64());
    let stage = Stage { packages: &packages, system: &system, options, directory: &directory, seed };
    let (passed, failed) = play_all(&stage, tasks);
    println!("everything took {:.0} s", begun.elapsed().as_secs_f64());
    println!("scenes: {passed} passed, {failed} failed");
    if failed > 0 && options.keep {
        println!("images and logs are in {}", directory.display());
    } else {
        fs::remove_dir_all(&directory).map_err(about(directory.display()))?;
    }
    Ok(failed == 0)
}

fn clock_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_micros()) + 1)
}

/// Returns the line in which QEMU names an assertion of its own that has failed; None if there is
/// none. A machine that ended so tells nothing of the array. (This was seen once: `iotlb_to_section`
/// failed four seconds after the machine was switched on.)
fn own_failure(message: &str) -> Option<&str> {
    message.lines().map(str::trim).find(|line| line.starts_with("qemu: qemu-system-x86_64: ") && line.contains(": Assertion `"))
}

/// Plays the tasks and all that they add. Returns how many passed and how many failed.
fn play_all(stage: &Stage<'_>, tasks: Vec<Task>) -> (usize, usize) {
    let queue = Queue { state: Mutex::new((tasks.into(), 0)), changed: Condvar::new() };
    let counts = Mutex::new((0, 0));
    let worker = || {
        while let Some(task) = queue.take() {
            let begun = Instant::now();
            let name = task.name();
            let mut result = task.play(stage);
            if let Some(words) = result.as_ref().err().and_then(|message| own_failure(message)) {
                println!("{name}: begun once more, since QEMU failed by itself: {words}");
                if !matches!(task, Task::Recover(_)) {
                    let _ = fs::remove_dir_all(stage.directory.join(&name));
                }
                result = task.play(stage);
            }
            let seconds = begun.elapsed().as_secs_f64();
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let more = match result {
                Ok((lines, more)) => {
                    counts.0 += 1;
                    println!("{name}: passed in {seconds:.0} s");
                    lines.iter().for_each(|line| println!("    {line}"));
                    more
                }
                Err(message) => {
                    counts.1 += 1;
                    println!("{name}: FAILED after {seconds:.0} s");
                    message.lines().for_each(|line| println!("    {line}"));
                    Vec::new()
                }
            };
            drop(counts);
            queue.finish(more);
            if !stage.options.keep {
                // Images are large. If this fails, `run` removes what is left.
                let _ = fs::remove_dir_all(stage.directory.join(&name));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..stage.options.jobs {
            scope.spawn(worker);
        }
    });
    counts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assertion_of_qemu_is_its_own_and_a_guests_is_not() {
        let words = "qemu: qemu-system-x86_64: system/physmem.c:2678: iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed.";
        assert_eq!(own_failure(&format!("the machine ended without a result\n  {words}\n")), Some(words));
        assert_eq!(
            own_failure(
                "the machine ended without a result\n  log: Assertion `a == b' failed.\n  qemu: qemu-system-x86_64: no such file"
            ),
            None
        );
    }
}
