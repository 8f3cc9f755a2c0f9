//! One virtual machine: its hardware, its start, its end, and the moment in which its power is cut.
//!
//! Invariants: QEMU does not outlive this process (setpriv --pdeathsig; so the thread that starts a
//! machine must outlive it), nor its handle. A stopped machine's backing files hold what its
//! NVDIMMs held at one instant: they are copied only after every thread of QEMU has stopped.

use super::{packages::Packages, root::System};
use crate::{Outcome, about, array::FileSystem, job::Job};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What the platform promises of NVDIMMs (nvdimm-persistence of QEMU's q35).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// Nothing is said: the kernel shows no persistence_domain.
    Silent,
    /// ADR.
    MemoryController,
    /// eADR.
    ProcessorCaches,
}

impl Platform {
    const fn option(self) -> &'static str {
        match self {
            Self::Silent => "",
            Self::MemoryController => ",nvdimm-persistence=mem-ctrl",
            Self::ProcessorCaches => ",nvdimm-persistence=cpu",
        }
    }

    /// What `cxlraid status` must say of a member there.
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Silent | Self::MemoryController => "ADR",
            Self::ProcessorCaches => "eADR",
        }
    }
}

/// What a machine has beside processors and its root.
#[derive(Clone, Debug)]
pub(crate) struct Hardware {
    pub(crate) platform: Platform,
    /// Backing files, as long as the NVDIMM has bytes.
    pub(crate) nvdimms: Vec<PathBuf>,
    /// Backing file of a CXL type-3 memory device; its label area lies beside it.
    pub(crate) cxl: Option<PathBuf>,
    pub(crate) processors: usize,
}

impl Hardware {
    /// New, empty NVDIMMs in `directory`.
    pub(crate) fn new(directory: &Path, platform: Platform, nvdimm_count: usize, system: FileSystem) -> Outcome<Self> {
        let nvdimms: Vec<_> = (0..nvdimm_count).map(|number| directory.join(format!("nvdimm{number}"))).collect();
        nvdimms.iter().try_for_each(|path| new_file(path, system.device_bytes()))?;
        Ok(Self { platform, nvdimms, cxl: None, processors: 2 })
    }
}

/// An empty file of this length.
pub(crate) fn new_file(path: &Path, bytes: u64) -> Outcome {
    File::create(path).and_then(|file| file.set_len(bytes)).map_err(about(path.display()))
}

/// Processor time that a machine may use: some ten times what a job needs. Not time on the clock,
/// which on a busy host says nothing.
const PROCESSOR_SECONDS_MAX: u64 = 600;
/// Time on the clock, for a machine that does nothing.
const LIMIT: Duration = Duration::from_secs(3600);
/// Clock ticks per second in /proc (proc(5), USER_HZ).
const TICKS_PER_SECOND: u64 = 100;
const MEMORY_MIB: u32 = 1024;
/// CXL windows are multiples of 256 MiB.
const CXL_WINDOW: &str = "4G";

/// How a machine ended.
#[derive(Debug)]
pub(crate) struct End {
    /// What the job said of itself: None if it passed.
    pub(crate) failure: Option<String>,
    pub(crate) log: String,
}

/// A running machine.
pub(crate) struct Machine {
    child: Child,
    directory: PathBuf,
    begun: Instant,
}

impl Machine {
    /// Boots; logs go to `directory`, which must exist.
    pub(crate) fn boot(packages: &Packages, system: &System, directory: &Path, hardware: &Hardware, job: &Job) -> Outcome<Self> {
        let file = |name: &str| directory.join(name).display().to_string();
        let mut command = Command::new(&system.setpriv);
        command.args(["--pdeathsig", "KILL"]).arg(&packages.qemu);
        for place in &packages.firmware {
            command.arg("-L").arg(place);
        }
        let features = if hardware.cxl.is_some() { ",cxl=on" } else { "" };
        command.args(["-machine", &format!("q35,nvdimm=on{features}{}", hardware.platform.option())]);
        // rep movsb is slow in emulation: without erms and fsrm the kernel copies otherwise. A
        // kernel that sees a hypervisor makes no CXL regions.
        let processor = if hardware.cxl.is_some() { "max,-erms,-fsrm,-hypervisor" } else { "max,-erms,-fsrm" };
        command.args(["-accel", "tcg,thread=multi,tb-size=256", "-cpu", processor, "-smp", &hardware.processors.to_string()]);
        command.args(["-m", &format!("{MEMORY_MIB}M,slots=16,maxmem=16G"), "-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-nic", "none", "-serial", &format!("file:{}", file("console"))]);
        command.arg("-kernel").arg(&system.kernel).arg("-append").arg(format!(
            "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr random.trust_cpu=on tsc=reliable no_timer_check \
             root=/dev/nvme0n1 rootfstype=ext4 ro init=/init {job}"
        ));
        command.arg("-drive").arg(format!("if=none,id=root,format=raw,readonly=on,file={}", system.root.display()));
        command.args(["-device", "nvme,drive=root,serial=root", "-device", "virtio-serial-pci"]);
        for port in ["log", "acknowledged", "result"] {
            command.args(["-chardev", &format!("file,id={port},path={}", file(port))]);
            command.args(["-device", &format!("virtserialport,chardev={port},name={port}")]);
        }
        for (number, path) in hardware.nvdimms.iter().enumerate() {
            let bytes = fs::metadata(path).map_err(about(path.display()))?.len();
            let object = format!("memory-backend-file,id=m{number},share=on,mem-path={},size={bytes}", path.display());
            command.args(["-object", &object, "-device", &format!("nvdimm,id=nvdimm{number},memdev=m{number}")]);
        }
        if let Some(path) = &hardware.cxl {
            command.args(cxl(path)?);
        }
        let errors = File::create(directory.join("qemu")).map_err(about(directory.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let child = command.spawn().map_err(about("setpriv"))?;
        Ok(Self { child, directory: directory.to_owned(), begun: Instant::now() })
    }

    pub(crate) fn read(&self, port: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.join(port)).unwrap_or_default()).into_owned()
    }

    fn ended(&mut self) -> Outcome<bool> {
        Ok(self.child.try_wait().map_err(about("QEMU"))?.is_some())
    }

    /// Processor time used so far, by all threads.
    fn processor_seconds(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Behind the name in parentheses: state is field 3, utime and stime are 14 and 15.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
        fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() / TICKS_PER_SECOND
    }

    /// An error once it has used up its time.
    fn in_time(&self, what: &dyn fmt::Display) -> Outcome {
        let (used, passed) = (self.processor_seconds(), self.begun.elapsed());
        if used < PROCESSOR_SECONDS_MAX && passed < LIMIT {
            return Ok(());
        }
        Err(format!("after {} s ({used} s of processor time) still not: {what}\n{}", passed.as_secs(), self.last_words()))
    }

    /// Waits until `done`; an error if the machine ends or takes too long.
    pub(crate) fn until(&mut self, what: impl fmt::Display, mut done: impl FnMut(&Self) -> bool) -> Outcome {
        while !done(self) {
            if self.ended()? {
                return Err(format!("the machine ended before: {what}\n{}", self.last_words()));
            }
            self.in_time(&what)?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until it has switched itself off.
    pub(crate) fn wait(mut self) -> Outcome<End> {
        while !self.ended()? {
            self.in_time(&"the job is done")?;
            thread::sleep(Duration::from_millis(20));
        }
        let log = self.read("log");
        match self.read("result").trim() {
            "" => Err(format!("the machine ended without a result\n{}", self.last_words())),
            "passed" => Ok(End { failure: None, log }),
            failure => Ok(End { failure: Some(failure.to_owned()), log }),
        }
    }

    /// What was logged last, by whom.
    fn last_words(&self) -> String {
        let tail = |port: &str| {
            let text = self.read(port);
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(12)..].iter().map(|line| format!("  {port}: {line}\n")).collect::<String>()
        };
        ["result", "log", "console", "qemu"].map(tail).concat()
    }

    /// Cuts the power as far as the copies made by `copy` can tell: it runs while nothing in the
    /// machine moves.
    pub(crate) fn frozen<T>(&mut self, copy: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<T> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("QEMU has no process number")?;
        kill_process(pid, Signal::STOP).map_err(about("stopping QEMU"))?;
        let stopped = self.await_stop();
        let result = stopped.and_then(|()| copy(self));
        kill_process(pid, Signal::CONT).map_err(about("continuing QEMU"))?;
        result
    }

    fn await_stop(&self) -> Outcome {
        let tasks = format!("/proc/{}/task", self.child.id());
        for _ in 0..1000 {
            let mut entries = fs::read_dir(&tasks).map_err(about(&tasks))?;
            let stopped = |entry: std::io::Result<fs::DirEntry>| {
                let stat = entry.and_then(|entry| fs::read_to_string(entry.path().join("stat"))).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            if entries.all(stopped) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err("QEMU does not stop".to_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended; then there is nothing to kill and waiting costs nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host bridge with one root port and a persistent type-3 device behind it, and a fixed window
/// for it.
fn cxl(path: &Path) -> Outcome<Vec<String>> {
    let bytes = fs::metadata(path).map_err(about(path.display()))?.len();
    let labels = path.with_extension("labels");
    new_file(&labels, 1 << 20)?;
    let backing = |id: &str, path: &Path, bytes: u64| {
        ["-object".to_owned(), format!("memory-backend-file,id={id},share=on,mem-path={},size={bytes}", path.display())]
    };
    let devices = [
        "-device",
        "pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge",
        "-device",
        "cxl-rp,port=0,bus=bridge,id=root-port,chassis=0,slot=2",
        "-device",
        "cxl-type3,bus=root-port,persistent-memdev=cxl,lsa=labels,id=device,sn=1",
        "-M",
    ];
    let window = format!("cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size={CXL_WINDOW}");
    let memory = backing("cxl", path, bytes).into_iter().chain(backing("labels", &labels, 1 << 20));
    Ok(memory.chain(devices.map(str::to_owned)).chain([window]).collect())
}
