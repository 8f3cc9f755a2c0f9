//! The guest's side: process 1 of a machine that does one job and switches itself off.
//!
//! Three ports lead to files of the host: `log` takes what is worth reading, `acknowledged` what
//! programs were told (see `load`), `result` the word `passed` or why not. Lines of the log that
//! begin with `= ` become part of the host's report.

mod audit;
mod devices;
pub(crate) mod digest;
mod fio;
mod load;
mod members;
mod programs;
mod recover;
mod round_trip;
mod watch;

use crate::{Outcome, about, job::Job};
use rustix::{
    mount::{MountFlags, mount},
    system::{RebootCommand, finit_module, reboot},
};
use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Who runs what is not root: PostgreSQL refuses root. nobody, because initdb wants a user that the
/// host knows.
pub(crate) const USER_ID: u32 = 65534;

/// A line for the host, in the report with `= ` in front.
pub(crate) struct Port(Mutex<File>);

impl Port {
    fn open(name: &str) -> Outcome<Self> {
        let path = port(name)?;
        OpenOptions::new().write(true).open(&path).map(|file| Self(Mutex::new(file))).map_err(about(path.display()))
    }

    /// The host has it when this returns.
    pub(crate) fn line(&self, line: &str) -> Outcome {
        let mut file = self.0.lock().map_err(|_| "a thread died with the port")?;
        file.write_all(format!("{line}\n").as_bytes()).map_err(about("a port"))
    }
}

/// Does the job of the kernel's command line; never returns.
pub(crate) fn run() -> ! {
    let result = start().and_then(|(job, log)| {
        let log = Arc::new(log);
        let watched = Arc::clone(&log);
        thread::spawn(move || watch::run(&watched));
        let name: String = job.get("job")?;
        let done = match name.as_str() {
            "round-trip" => round_trip::run(&job, &log),
            "cxl" => round_trip::cxl(&log),
            "load" => load::run(&job, &log),
            "recover" => recover::run(&job, &log),
            _ => Err(format!("no job is called {name}")),
        };
        if done.is_err() { log.line(&kernel_log()).and(done) } else { done }
    });
    let text = match result {
        Ok(()) => "passed".to_owned(),
        Err(message) => message,
    };
    if Port::open("result").and_then(|port| port.line(&text)).is_err() {
        eprintln!("cxlraid-vm: {text}");
    }
    let _ = reboot(RebootCommand::PowerOff);
    // Process 1 may not end; without power there is nothing to do.
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// File systems of the kernel, modules, ports.
fn start() -> Outcome<(Job, Port)> {
    let none = MountFlags::empty();
    let places =
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"), ("tmpfs", "/run"), ("tmpfs", "/mnt")];
    for (kind, place) in places {
        // The kernel may have mounted /dev.
        let mounted = mount(kind, place, kind, none, None);
        if let Err(error) = mounted
            && place != "/dev"
        {
            return Err(format!("{place}: {error}"));
        }
    }
    for (kind, place) in [("tmpfs", "/dev/shm"), ("devpts", "/dev/pts")] {
        fs::create_dir_all(place).map_err(about(place))?;
        mount(kind, place, kind, none, None).map_err(about(place))?;
    }
    let job = Job::from_command_line(&fs::read_to_string("/proc/cmdline").map_err(about("/proc/cmdline"))?);
    load_modules(Path::new("/modules"))?;
    Ok((job, Port::open("log")?))
}

fn load_modules(directory: &Path) -> Outcome {
    let list = fs::read_to_string(directory.join("list")).map_err(about("the list of modules"))?;
    for name in list.lines() {
        let file = File::open(directory.join(name)).map_err(about(name))?;
        match finit_module(&file, c"", 0) {
            // Another module may be what serves this hardware.
            Ok(()) | Err(rustix::io::Errno::EXIST | rustix::io::Errno::NODEV) => {}
            Err(error) => return Err(format!("module {name}: {error}")),
        }
    }
    Ok(())
}

/// The device of a port. There is no udev to make names for them.
fn port(name: &str) -> Outcome<PathBuf> {
    let ports = "/sys/class/virtio-ports";
    for entry in fs::read_dir(ports).map_err(about(ports))?.flatten() {
        let found = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(format!("there is no port {name}"))
}

/// What the kernel complains of.
fn kernel_log() -> String {
    let mut buffer = vec![0; 64 << 10];
    // No rights are missing, and without its log the failure is still told.
    let Ok(file) = OpenOptions::new().read(true).custom_flags_nonblock().open("/dev/kmsg") else { return String::new() };
    let mut lines = Vec::new();
    while let Ok(bytes) = rustix::io::read(&file, &mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
        if let Some((head, message)) = text.split_once(';') {
            let level: u32 = head.split(',').next().and_then(|level| level.parse().ok()).unwrap_or(0);
            if level % 8 <= 4 {
                lines.push(format!("kernel: {}", message.lines().next().unwrap_or_default()));
            }
        }
    }
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Opening without waiting.
trait NonBlocking {
    fn custom_flags_nonblock(&mut self) -> &mut Self;
}

impl NonBlocking for OpenOptions {
    fn custom_flags_nonblock(&mut self) -> &mut Self {
        use std::os::unix::fs::OpenOptionsExt as _;
        self.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
    }
}
