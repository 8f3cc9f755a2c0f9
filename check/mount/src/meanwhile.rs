//! What somebody does while another one is at work in the same place: a mount is taken over from a
//! process that has died, directories are renamed, files are replaced.

use crate::{
    Options,
    ground::{Ground, succeed},
    peer::{Peer, Programs},
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// How often a mount's process dies under those who write there.
const DEATH_COUNT: usize = 12;
/// How long two are at work against each other.
const TIME: Duration = Duration::from_secs(3);

/// Who writes to a mount whose process dies, and which is mounted anew, never meets the directory
/// that lies under it.
pub(crate) fn remounted(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "1", 2)?;
    ground.mount()?;
    let stop = ground.path("stop").display().to_string();
    let mut writers = [ground.through_mount()?, ground.through_mount()?];
    for writer in &mut writers {
        writer.tell(&format!("G @ {stop}"))?;
    }
    for round in 0..DEATH_COUNT {
        ground.kill()?;
        ground.mount().map_err(|why| format!("after {round} deaths: {why}"))?;
        thread::sleep(Duration::from_millis(20));
    }
    concluded(&stop, &mut writers)?;
    ground.unmount()?;
    let left = fs::read_dir(ground.mounted()).map_err(|error| error.to_string())?.count();
    if left > 0 {
        return Err(format!("{left} names lie under the mount"));
    }
    // What lies under a dead mount is not hidden by a new one, and the dead one stays over it.
    ground.mount()?;
    ground.kill()?;
    let (beside, mounted) = (ground.path("busy/x"), ground.mounted().display().to_string());
    succeed(Command::new("mount").args(["--bind"]).arg(ground.path("")).arg(&beside))?;
    let put = fs::write(beside.join("mounted/found"), "").map_err(|error| error.to_string());
    let refused = put.and_then(|()| ground.refused(&["mount", ground.name(), &mounted], "not empty under a mount"));
    let is_covered = fs::metadata(&mounted).is_err();
    let removed = fs::remove_file(beside.join("mounted/found")).map_err(|error| error.to_string());
    succeed(Command::new("umount").arg(&beside))?;
    refused.and(removed)?;
    if !is_covered {
        return Err("a dead mount was taken away, and nothing is mounted in its place".into());
    }
    ground.good(&["mount", ground.name(), &mounted, "--options=ro,nosuid,nodev,noexec,allow_other"])?;
    let list = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
    let lines: Vec<&str> = list.lines().filter(|line| line.split(' ').nth(1) == Some(&mounted)).collect();
    let is_right = |line: &str| {
        let source = format!("{} ", ground.name());
        line.starts_with(&source) && line.contains(" fuse.cxlraid ro,nosuid,nodev,noexec,") && line.contains("allow_other")
    };
    if lines.len() != 1 || !is_right(lines[0]) {
        return Err(format!("it is mounted as {lines:?}"));
    }
    ground.good(&["unmount", &mounted])?;
    ground.conclude()
}

/// A directory goes by any name while others work in it by names that begin there.
pub(crate) fn moved(options: &Options, programs: &Programs) -> Result<(), String> {
    against(options, programs, |ground, by_mount| {
        begin(ground, by_mount, &["d @/upper", "d @/upper/here", "D @/upper/here"], "B", "E @/upper @/lower")
    })
}

/// What a file is like can be changed by its name also at the moment in which it is replaced.
pub(crate) fn replaced(options: &Options, programs: &Programs) -> Result<(), String> {
    against(options, programs, |ground, by_mount| begin(ground, by_mount, &["o 0 @/file wc", "c 0"], "A @/file", "H @/file"))
}

/// A program of the library writes to a file from memory that is a mapping of the same file through
/// the mount: it holds the locks when it needs pages that the mount's process reads.
pub(crate) fn from_mapping(options: &Options, programs: &Programs) -> Result<(), String> {
    const BYTES: usize = 600_000;
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut library = ground.intercepted()?;
    let mounted = ground.mounted().join("file");
    let content: Vec<u8> = (0..BYTES + 5000).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(&mounted, &content).map_err(|error| error.to_string())?;
    for line in ["o 0 @/file w", &format!("o 1 {} w", mounted.display()), &format!("M 1 {}", content.len())] {
        expect(&mut library, line)?;
    }
    // Who waits for itself ends when the mount's process does.
    let (done, is_done) = mpsc::channel::<()>();
    let kill = || ground.signal("KILL");
    let answer = thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(TIME * 5) == Err(RecvTimeoutError::Timeout) {
                let _ = kill();
            }
        });
        let answer = library.ask(&format!("I 0 1 5000 {BYTES}"));
        drop(done);
        answer
    })?;
    if answer != BYTES.to_string() {
        return Err(format!("the write gave {answer}"));
    }
    let found = fs::read(&mounted).map_err(|error| error.to_string())?;
    // The mapping shows what the write has stored so far, and the write may load that as its source:
    // it has then moved by 5,000 bytes once more.
    let is_right = |at: usize| (1..5).any(|shift| content.get(at + shift * 5000) == Some(&found[at]));
    if found.len() != content.len() || !(0..BYTES).all(is_right) {
        return Err("other bytes were written".into());
    }
    drop(library);
    ground.unmount()?;
    ground.conclude()
}

/// Reads and writes by io_uring at places of a file, many at once, and appends that are longer than one
/// request: the kernel must not send the requests of an append at the same time.
pub(crate) fn ring(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let file = ground.mounted().join("file");
    let output = Command::new(&programs.ring).arg(&file).arg("20").output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ground.unmount()?;
    ground.conclude()?;
    match said.trim() {
        "" if output.status.success() => Ok(()),
        why if why.starts_with(crate::alone::NOT_RUN) => Err(why.to_owned()),
        why => Err(format!("{}: {why}", output.status)),
    }
}

/// An append by io_uring that is refused, since a member is full, takes nothing away that the other
/// door has appended since the kernel last asked for the size.
///
/// A program cuts files after other changes, which come after an append that was refused: it means it.
pub(crate) fn refused_append(options: &Options, programs: &Programs) -> Result<(), String> {
    const CUT_AFTER_OTHERS: &str = "
import os, sys
fill, *names = sys.argv[1:]
fds = [os.open(name, os.O_WRONLY | os.O_APPEND) for name in names]
for fd in fds:
    try: sys.exit('%d bytes were appended' % os.write(fd, bytes(1 << 20)))
    except OSError as error: assert error.errno == 28, error
os.remove(fill)
os.posix_fallocate(fds[0], 0, 65536)
os.truncate(names[1], 9000)
for fd in fds:
    os.ftruncate(fd, 8192)
sizes = [os.stat(name).st_size for name in names]
if sizes != [8192, 8192]: sys.exit('they have %s bytes after they were cut' % sizes)
";
    let told = |error: std::io::Error| error.to_string();
    let mut ground = Ground::with_disk(options, programs, "5", 3, Some(0))?;
    ground.mount()?;
    let (file, fill) = (ground.mounted().join("file"), ground.path("m0/fill"));
    fs::write(&file, "before").map_err(told)?;
    let cut = ["cut", "cut too"].map(|name| ground.mounted().join(name));
    cut.iter().try_for_each(|file| fs::write(file, [1; 8192])).map_err(told)?;
    let mut ring = Command::new(&programs.ring);
    let ring = ring.arg(&file).arg("append").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut ring = ring.map_err(told)?;
    let (Some(mut input), Some(output)) = (ring.stdin.take(), ring.stdout.take()) else { return Err("no pipe".into()) };
    let mut lines = BufReader::new(output).lines();
    let mut next = || lines.next().transpose().ok().flatten().unwrap_or_default();
    match next() {
        line if line == "ready" => {}
        why => return Err(why),
    }
    let line = format!("head -c 24570 /dev/zero >>{}/file", ground.data().display());
    ground.run(Command::new("sh").args(["-c", &line]))?;
    for bytes in ["1M", "4k", "1k"] {
        let line =
            format!("cat /dev/zero | dd iflag=fullblock bs={bytes} oflag=append conv=notrunc of={} 2>/dev/null", fill.display());
        let _ = Command::new("sh").args(["-c", &line]).status();
    }
    input.write_all(b"now\n").map_err(told)?;
    let result = next();
    ring.wait().map_err(told)?;
    // It removes the file that fills the disk.
    succeed(Command::new("python3").args(["-c", CUT_AFTER_OTHERS]).arg(&fill).args(&cut))?;
    let bytes = fs::metadata(&file).map_err(told)?.len();
    if (result.as_str(), bytes) != ("-28", 24576) {
        return Err(format!("the append gave {result}, and the file has {bytes} bytes then, not 24576"));
    }
    ground.unmount()?;
    ground.conclude()
}

/// A program of the library is stopped in the middle of a write. Others that write to the same place
/// wait for it, more of them than the mount once served at a time, and the mount goes on serving.
pub(crate) fn stopped(options: &Options, programs: &Programs) -> Result<(), String> {
    const WAITING: usize = 48;
    const WRITE: &str = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDWR)\nwhile True: os.pwrite(fd, bytes(1 << 20), 0)";
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let (file, other) = (ground.mounted().join("file"), ground.mounted().join("other"));
    fs::write(&file, vec![1; 1 << 20]).and_then(|()| fs::write(&other, "other")).map_err(|error| error.to_string())?;
    let mut writer = ground.running("python3");
    let mut writer = writer.args(["-c", WRITE]).arg(ground.data().join("file")).spawn().map_err(|error| error.to_string())?;
    let signal = |name: &str| succeed(Command::new("kill").args(["-s", name, &writer.id().to_string()]));
    let write_all =
        |path: &Path| fs::OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(&[2; 1 << 20], 0));
    let result = thread::scope(|scope| {
        // Where the stop meets it outside of a write, another one may.
        let is_held = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(20));
            let (done, is_done) = mpsc::channel();
            let file = &file;
            let _ = signal("STOP");
            scope.spawn(move || done.send(write_all(file)));
            let waits = matches!(is_done.recv_timeout(Duration::from_millis(500)), Err(RecvTimeoutError::Timeout));
            if !waits {
                let _ = signal("CONT");
            }
            waits
        });
        let answer = if is_held {
            let waiting: Vec<_> = (1..WAITING).map(|_| scope.spawn(|| write_all(&file))).collect();
            thread::sleep(Duration::from_millis(500));
            let (done, is_done) = mpsc::channel();
            let other = &other;
            scope.spawn(move || done.send(fs::read(other)));
            let answer = is_done.recv_timeout(TIME * 5);
            let _ = signal("CONT");
            let written = waiting.into_iter().all(|waits| waits.join().is_ok_and(|written| written.is_ok()));
            if written { Ok(answer) } else { Err("a write that waited has failed".to_owned()) }
        } else {
            let _ = signal("CONT");
            Err("no stop has met the program in a write".to_owned())
        };
        match answer? {
            Ok(Ok(bytes)) if bytes == b"other" => Ok(()),
            other => Err(format!("another file was answered {other:?}")),
        }
    });
    let ended = writer.kill().and_then(|()| writer.wait()).map(|_| ()).map_err(|error| error.to_string());
    result.and(ended)?;
    ground.unmount()?;
    ground.conclude()
}

/// Has two work against each other for a while, the second through the mount and then under the
/// library.
fn against(
    options: &Options,
    programs: &Programs,
    begin: impl Fn(&Ground<'_>, bool) -> Result<[Peer; 2], String>,
) -> Result<(), String> {
    for by_mount in [true, false] {
        let mut ground = Ground::new(options, programs, "5", 3)?;
        ground.mount()?;
        let mut both = begin(&ground, by_mount)?;
        thread::sleep(TIME);
        concluded(&ground.path("stop").display().to_string(), &mut both)
            .map_err(|why| format!("{} door: {why}", if by_mount { "the same" } else { "the other" }))?;
        drop(both);
        ground.unmount()?;
        ground.conclude()?;
    }
    Ok(())
}

/// Starts a worker through the mount, which first does what `prepared` says, and another one, through
/// the mount as well or under the library. Both then work until the file `stop` is there.
fn begin(ground: &Ground<'_>, by_mount: bool, prepared: &[&str], work: &str, other_work: &str) -> Result<[Peer; 2], String> {
    let mut worker = ground.through_mount()?;
    for line in prepared {
        expect(&mut worker, line)?;
    }
    let mut other = if by_mount { ground.through_mount()? } else { ground.intercepted()? };
    let stop = ground.path("stop").display().to_string();
    worker.tell(&format!("{work} {stop}"))?;
    other.tell(&format!("{other_work} {stop}"))?;
    Ok([worker, other])
}

fn expect(peer: &mut Peer, line: &str) -> Result<(), String> {
    let answer = peer.ask(line)?;
    if answer == "0" { Ok(()) } else { Err(format!("{line}: {answer}")) }
}

/// Ends those who are at work, each of which must have done something and met nothing wrong.
fn concluded(stop: &str, peers: &mut [Peer]) -> Result<(), String> {
    fs::write(stop, "").map_err(|error| error.to_string())?;
    let mut wrong = Vec::new();
    for (index, peer) in peers.iter_mut().enumerate() {
        let answer = peer.answer()?;
        if !answer.parse::<u64>().is_ok_and(|count| count > 0) {
            wrong.push(format!("program {index}: {answer}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}
