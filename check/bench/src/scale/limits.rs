//! What the machine and the array can do: found before the first run, so that points beyond it are
//! left out by name.

use super::axis::Bench;
use super::pair::{Crew, Ground};
use super::{Job, axis::On};
use array::runtime::{ATTACH_SLOT_COUNT, OPEN_FILE_COUNT};
use std::fs;
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are left to the bench and the library.
const SPARE_DESCRIPTORS: u64 = 100;
/// Processes that are left to the machine.
const SPARE_PROCESSES: u64 = 200;
/// Of the memory that is available a run takes at most this part.
const MEMORY_PERCENT: u64 = 70;

/// What a point needs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Needs {
    /// Bytes in the members and in the ordinary directory, with what the kernel keeps of each file.
    pub(crate) bytes: u64,
    /// Different files of the array that are open at once, in one process.
    pub(crate) open_files: u64,
    /// Processes that use the array at once.
    pub(crate) processes: u64,
}

/// What there is.
#[derive(Debug)]
pub(crate) struct Limits {
    memory_bytes: u64,
    descriptors: u64,
    processes: u64,
    /// What a process that uses an array and does nothing takes.
    process_bytes: u64,
}

impl Limits {
    /// Looks, and raises the limit of descriptors as far as this process may.
    pub(crate) fn find(bench: &Bench) -> Result<Self, String> {
        let number = |path: &str| -> Option<u64> { fs::read_to_string(path).ok()?.trim().parse().ok() };
        let descriptors = raise_descriptors(number("/proc/sys/fs/nr_open").unwrap_or(1 << 20));
        let most = [
            number("/proc/sys/kernel/pid_max"),
            number("/proc/sys/kernel/threads-max"),
            number("/sys/fs/cgroup/pids.max"),
            number("/sys/fs/cgroup/pids/pids.max"),
            getrlimit(Resource::Nproc).current,
        ];
        let running = fs::read_dir("/proc").map_or(0, |entries| entries.count() as u64);
        // Two pipes to each process.
        let by_descriptors = descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2;
        let by_kernel = most.into_iter().flatten().min().unwrap_or(u64::MAX).saturating_sub(running + SPARE_PROCESSES);
        let memory_bytes = available_bytes().min(shared_bytes()) / 100 * MEMORY_PERCENT;
        Ok(Self { memory_bytes, descriptors, processes: by_kernel.min(by_descriptors), process_bytes: process_bytes(bench)? })
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "{} MiB of memory to be used, {} descriptors, {} processes of {} KiB; an array bears {OPEN_FILE_COUNT} open files and \
             {ATTACH_SLOT_COUNT} processes",
            self.memory_bytes >> 20,
            self.descriptors,
            self.processes,
            self.process_bytes >> 10
        )
    }

    /// Why what a point needs cannot be had. None if it can.
    pub(crate) fn forbid(&self, needs: &Needs) -> Option<String> {
        let bytes = needs.bytes + needs.processes * self.process_bytes;
        let open = needs.open_files + SPARE_DESCRIPTORS;
        if bytes > self.memory_bytes {
            return Some(format!("it takes about {} MiB of memory, and there are {}", bytes >> 20, self.memory_bytes >> 20));
        }
        if needs.open_files > 0 && open > self.descriptors {
            return Some(format!("RLIMIT_NOFILE is {}", self.descriptors));
        }
        if needs.open_files > OPEN_FILE_COUNT as u64 {
            return Some(format!("the processes on an array have at most {OPEN_FILE_COUNT} different files of it open"));
        }
        if needs.processes > self.processes {
            return Some(format!("the kernel lets about {} more processes run", self.processes));
        }
        if needs.processes >= ATTACH_SLOT_COUNT as u64 {
            return Some(format!("at most {ATTACH_SLOT_COUNT} processes use an array"));
        }
        None
    }
}

/// Raises RLIMIT_NOFILE to `most`, or to what this user may have. Returns what it is then.
fn raise_descriptors(most: u64) -> u64 {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(most);
    let to = |limit| setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit.max(hard)) });
    if hard >= most || to(most).is_err() {
        // A soft limit that cannot be raised stays.
        let _ = to(hard);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(most)
}

/// Memory that can be had without taking it from others.
fn available_bytes() -> u64 {
    kib("/proc/meminfo", "MemAvailable:").unwrap_or(0)
}

/// What the machine's shared memory has room for.
fn shared_bytes() -> u64 {
    sys::rustix::fs::statvfs("/dev/shm").map_or(u64::MAX, |found| found.f_bavail * found.f_frsize)
}

/// A line of a file of proc(5) that is a number of KiB, in bytes.
fn kib(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

/// What a process that has the library and does nothing takes for itself.
fn process_bytes(bench: &Bench) -> Result<u64, String> {
    let ground = Ground::new("limits", "5", 3)?;
    let crew = Crew::start(bench, &ground, On::Array, 1, |_| Job::Idle)?;
    let own = crew.pids().next().map_or(0, |pid| {
        let of = |file: &str, name: &str| kib(&format!("/proc/{pid}/{file}"), name).unwrap_or(0);
        of("status", "RssAnon:") + of("status", "VmPTE:")
    });
    crew.end()?;
    // The kernel keeps a stack, descriptors, pipes, areas of memory and more.
    Ok(own + (256 << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_named() {
        let limits = Limits { memory_bytes: 100 << 20, descriptors: 1000, processes: 500, process_bytes: 1 << 20 };
        let why = |needs: Needs| limits.forbid(&needs).unwrap_or_default();
        assert_eq!(why(Needs { bytes: 50 << 20, open_files: 900, processes: 50 }), "");
        assert!(why(Needs { bytes: 101 << 20, ..Needs::default() }).contains("101 MiB"));
        assert!(why(Needs { bytes: 50 << 20, processes: 51, ..Needs::default() }).contains("memory"));
        assert!(why(Needs { open_files: 901, ..Needs::default() }).contains("RLIMIT_NOFILE is 1000"));
        let roomy = Limits { memory_bytes: u64::MAX / 100, descriptors: 1 << 20, processes: 500, process_bytes: 1 };
        let why = |needs: Needs| roomy.forbid(&needs).unwrap_or_default();
        assert!(why(Needs { processes: 501, ..Needs::default() }).contains("500"));
        assert!(why(Needs { open_files: 100_000, ..Needs::default() }).contains("different files"));
    }
}
