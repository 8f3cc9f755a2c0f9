//! Programs that the library cannot reach, executed by programs that it serves: what they inherit
//! is the mount's, and all is as in a plain directory.

use crate::{Options, ground::Ground, peer::Programs};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// `$S` is a static program, `$B` a file that looks like one and cannot be executed. Runs in a
/// directory of its own.
const SCRIPT: &str = r#"
{ echo before; $S w1; echo after; $S w1; echo end; } >out; cat out
{ $S r0; read -r line; echo "<$line>"; $S r0; } <out
$S p; mkdir -p sub/deep; cd sub/deep; $S p mmade o3; ls; cd ../..
exec 7<>rw; echo hello world >&7; $S f7 w7 f7 s7; echo again >&7; cat rw
rm rw; $S s7 w7; $S w7; cat /proc/self/fd/7; exec 7>&-
exec 8>>appended; $S w8; echo more >&8; $S w8; cat appended; exec 8>&-
echo one >gone; exec 6<gone; mv gone sub/moved; echo two >gone; $S r6; exec 6<&-
exec 5<sub; $S l5 o5; cat sub/inner; exec 5<&-
$S w1 w2 >both 2>&1; cat both
( $S w1 & $S w1 & $S w1 & wait; echo all ) >crowd; cat crowd
cp "$S" program; ./program x p; "$PWD/program" x; ( cd sub; ../program x p )
printf '#!%s p w1\n' "$PWD/program" >script; chmod +x script; ./script | sed 's/ script.*//'
python3 -u -c '
import fcntl, os, subprocess, sys
s, bad = sys.argv[1:]
fd = os.open("kept", os.O_RDWR | os.O_CREAT | os.O_SYNC, 0o640)
straight = os.open("straight", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
os.set_inheritable(straight, True)
subprocess.run([s, "w%d" % straight], close_fds=False)
os.write(straight, b"behind\n"); print(open("straight").read(), end="")
guarded = os.open("guarded", os.O_RDWR | os.O_CREAT)
os.set_inheritable(guarded, True)
fcntl.lockf(guarded, fcntl.LOCK_EX)
try:
    os.execv(bad, ["bad"])
except OSError as error:
    print(error.strerror)
if os.fork() == 0:
    try:
        fcntl.lockf(guarded, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("the lock is lost")
    except OSError as error:
        print(error.strerror)
    os._exit(0)
os.wait(); os.close(guarded)
hidden = os.open("kept", os.O_RDWR)
os.set_inheritable(fd, True)
os.write(fd, b"before ")
subprocess.run([s, "f%d" % fd, "w%d" % fd, "w%d" % hidden, "p"], close_fds=False, cwd="sub")
os.posix_spawn(s, [s, "f%d" % fd, "w%d" % fd], os.environ); os.wait()
os.posix_spawn("./program", ["program", "x", "p", "f%d" % fd, "w%d" % fd], os.environ); os.wait()
subprocess.run(["../program", "x", "p", "mspawned"], close_fds=True, cwd="sub")
os.chdir("sub")
try:
    os.execv(bad, ["bad"])
except OSError as error:
    print(error.strerror, os.getcwd(), os.lseek(fd, 0, 1))
os.write(fd, b"after"); os.mkdir("relative"); print(open("../kept").read())
path = os.open("../kept", os.O_PATH); os.set_inheritable(path, True)
lock = os.open("../lock", os.O_RDWR | os.O_CREAT); os.set_inheritable(lock, True); fcntl.flock(lock, fcntl.LOCK_EX)
told, tell = os.pipe(); go, on = os.pipe(); os.set_inheritable(tell, True); os.set_inheritable(go, True)
if os.fork() == 0:
    os.close(on)
    os.execv(s, [s, "k%d" % lock, "s%d" % path, "w%d" % tell, "r%d" % go, "u%d" % lock])
os.close(lock)
lock = os.open("../lock", os.O_RDWR)
os.read(told, 9)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept = "the lock is not kept"
except BlockingIOError:
    kept = "the lock is kept"
os.close(on); os.wait(); print(kept)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.fchdir(os.open("relative", os.O_PATH))
os.execv(s, [s, "p", "w%d" % fd, "mlast"])' "$S" "$B"
cat kept; find . -type d | sort
"#;

/// Static programs of other makes: each prints the directory that it is in, and makes `by-NAME`
/// there. The name, the source's and the compiler's words; the program's path comes behind the last
/// one.
const MAKES: [(&str, &str, &str, &[&str]); 3] = [
    ("musl", C, "c", &["musl-gcc", "-static", "-o"]),
    ("musl-shared", C, "c", &["musl-gcc", "-o"]),
    ("go", GO, "go", &["go", "build", "-o"]),
];
const C: &str = r#"#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int n, char **a) { char b[4096]; printf("%s\n", getcwd(b, 4096)); mkdir(a[1], 0755); return 0; }
"#;
const GO: &str = "package main\n\nimport \"os\"\n\nfunc main() {\n\td, _ := os.Getwd()\n\tos.Stdout.WriteString(d + \"\\n\")\n\tos.Mkdir(os.Args[1], 0755)\n}\n";

/// Holds the programs and directories that the scripts of a scene name.
struct Tools {
    fixed: PathBuf,
    bad: PathBuf,
}

impl Tools {
    fn give(&self, command: &mut Command) {
        command.env("S", &self.fixed).env("B", &self.bad).env("LC_ALL", "C").stdin(Stdio::null());
    }
}

/// Runs a script of bash on the array, or in a directory without the library.
fn run(ground: &Ground<'_>, tools: &Tools, directory: &Path, script: &str, is_served: bool) -> Result<Output, String> {
    let mut command = if is_served { ground.running("bash") } else { Command::new("bash") };
    command.args(["-c", &format!("cd '{}'\n{script}", directory.display())]);
    tools.give(&mut command);
    command.output().map_err(|error| format!("bash: {error}"))
}

/// Runs a script on the array and in a plain directory, which must be the same.
fn compare(ground: &Ground<'_>, tools: &Tools, script: &str) -> Result<(), String> {
    let (data, plain) = (ground.data(), ground.path("plain"));
    let _ = fs::remove_dir_all(&plain);
    fs::create_dir(&plain).map_err(|error| error.to_string())?;
    let text = |output: Output, directory: &Path| {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).replace(&directory.display().to_string(), "@");
        // In a program that is linked with musl and not statically, the library says that it stands
        // aside. A file that the process has locked is not handed over.
        let is_expected = |line: &str| {
            line.starts_with("cxlraid: this program is linked with another C library")
                || line.contains("/bad: is not an x86-64 program and runs without cxlraid: 1 open file")
        };
        let lines = said.lines().filter(|line| !is_expected(line));
        lines.collect::<Vec<_>>().join("\n")
    };
    let expected = text(run(ground, tools, &plain, script, false)?, &plain);
    let found = text(run(ground, tools, &data, script, true)?, &data);
    if found == expected { Ok(()) } else { Err(format!("it said\n{found}\nand in a plain directory\n{expected}")) }
}

fn tools(ground: &Ground<'_>, programs: &Programs) -> Result<Tools, String> {
    let bad = ground.path("bad");
    fs::create_dir_all(ground.data()).map_err(|error| error.to_string())?;
    // It begins as a program for another processor.
    fs::write(&bad, [&b"\x7fELF"[..], &[0; 4096]].concat()).map_err(|error| error.to_string())?;
    fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(|error| error.to_string())?;
    Ok(Tools { fixed: programs.handed.clone(), bad })
}

/// What a program inherits, and where it starts, are the mount's.
pub(crate) fn handed(options: &Options, programs: &Programs) -> Result<(), String> {
    for (level, member_count) in [("5", 3), ("1", 2)] {
        let mut ground = Ground::new(options, programs, level, member_count)?;
        let tools = tools(&ground, programs)?;
        ground.mount_at(&ground.data(), &[])?;
        compare(&ground, &tools, SCRIPT).map_err(|why| format!("RAID {level}: {why}"))?;
        ground.unmount()?;
        ground.conclude()?;
    }
    Ok(())
}

/// A shell that the library does not reach works in directories which programs of the library rename
/// and remove; `r` begins such a program there.
const STARTED: &str = r#"
D=$PWD; mkdir A; echo hi >A/file; cd A
r mv "$D/A" "$D/Z"; r true; ls "$D"
r sh -c 'echo x >new; cat file'; echo y >new2; ls .
r mkdir "$D/A"; r sh -c 'echo z >new3'; ls "$D/A"; ls "$D/Z"
mkdir "$D/B"; cd "$D/B"; r rmdir "$D/B"; r sh -c 'echo lost >here' 2>&- || echo refused; ls "$D"
cd "$D/Z"; r sh -c 'pwd; echo found >here'; cat here
"#;

/// A program of the library that is started in a directory of the mount works in that one, whatever
/// name it has by now.
pub(crate) fn started(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    fs::create_dir_all(ground.data()).map_err(|error| error.to_string())?;
    ground.mount_at(&ground.data(), &[])?;
    let plain = ground.path("plain");
    fs::create_dir(&plain).map_err(|error| error.to_string())?;
    let said = |directory: &Path, how: &str| {
        let served = ground.running("r");
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("r() {{ {how} \"$@\"; }}\n{STARTED}")]).current_dir(directory).stdin(Stdio::null());
        served.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| _ = shell.env(name, value));
        let output = shell.output().map_err(|error| format!("bash: {error}"))?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok::<_, String>(text.replace(&directory.display().to_string(), "@"))
    };
    let through_library = format!("'{}' run '{}' --", options.command.display(), ground.name());
    let (expected, found) = (said(&plain, "")?, said(&ground.data(), &through_library)?);
    if found != expected {
        return Err(format!("it said\n{found}\nand in a plain directory\n{expected}"));
    }
    ground.unmount()?;
    ground.conclude()
}

/// Static programs of other makes, and one that gains rights.
pub(crate) fn makes(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let mut tools = tools(&ground, programs)?;
    ground.mount_at(&ground.data(), &["--allow-other"])?;
    for (name, source, suffix, words) in MAKES {
        let by_hand = Path::new("/usr/local/go/bin").join(words[0]);
        let Some(compiler) = stage::process::find_program(words[0]).or_else(|| by_hand.is_file().then_some(by_hand)) else {
            println!("NOT RUN: {name}: there is no {}", words[0]);
            continue;
        };
        let (text, program) = (ground.path(&format!("{name}.{suffix}")), ground.path(name));
        fs::write(&text, source).map_err(|error| error.to_string())?;
        let mut build = Command::new(compiler);
        build.env("CGO_ENABLED", "0").args(&words[1..]).arg(&program).arg(&text);
        if !build.status().is_ok_and(|status| status.success()) {
            return Err(format!("{name}: {build:?} fails"));
        }
        tools.fixed.clone_from(&program);
        let script =
            format!("mkdir in-{name}; cd in-{name}; \"$S\" by >../out-{name}; \"$S\" more; cd ..; cat out-{name}; ls in-{name}");
        compare(&ground, &tools, &script).map_err(|why| format!("{name}: {why}"))?;
        if let Err(error) = fs::remove_file(&program) {
            return Err(error.to_string());
        }
    }
    tools.fixed.clone_from(&programs.handed);
    // The copy belongs to nobody, as whom it runs. Directories on the way to the array may be
    // searched by all.
    let gains = format!(
        "cp \"$S\" '{0}/gains'; chown 65534 '{0}/gains'; chmod 4755 '{0}/gains'; mkdir -p open; chmod 777 open; cd open; exec 4>../of-root; '{0}/gains' p w4 mtheirs; stat -c %u theirs; cat ../of-root",
        ground.path("").display()
    );
    for directory in [ground.path(""), ground.data()] {
        fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .map_err(|error| error.to_string())?;
    }
    compare(&ground, &tools, &gains).map_err(|why| format!("a program that gains rights: {why}"))?;
    ground.unmount()?;
    ground.conclude()
}

/// Other threads, and handlers of signals, use what a program inherits until the moment of the
/// exec: nothing is written to a wrong place or lost, and an exec that fails leaves everything as
/// it was, with a mount and without one.
pub(crate) fn raced(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let tools = tools(&ground, programs)?;
    let race = |ground: &Ground<'_>, what: &str, count: u32| {
        let (fixed, bad) = (tools.fixed.display(), tools.bad.display());
        let script = format!("exec '{}' {what} '{fixed}' '{bad}' {count}", programs.raced.display());
        let begun = Instant::now();
        let output = run(ground, &tools, &ground.data(), &script, true)?;
        // A file that is not handed over is told of.
        let told = String::from_utf8_lossy(&output.stderr);
        let is_right = output.status.success() && output.stdout.is_empty();
        match () {
            () if !is_right => Err(format!("{what}: it said {:?} and {told:?}", String::from_utf8_lossy(&output.stdout))),
            () if begun.elapsed() > Duration::from_secs(120) => Err(format!("{what}: it took {:?}", begun.elapsed())),
            () => Ok(()),
        }
    };
    race(&ground, "failing", 60).map_err(|why| format!("without a mount: {why}"))?;
    ground.mount_at(&ground.data(), &[])?;
    for (what, count) in [("alone", 30), ("both", 30), ("another", 30), ("signals", 60), ("failing", 60)] {
        race(&ground, what, count)?;
    }
    ground.unmount()?;
    ground.conclude()
}

/// An exec ends threads in the middle of a write, whose locks nobody waits for afterwards: neither
/// the program that is executed, by way of the mount, nor a program of the library while the other
/// one runs.
pub(crate) fn locks(options: &Options, programs: &Programs) -> Result<(), String> {
    for (level, member_count) in [("5", 3), ("1", 2)] {
        let mut ground = Ground::new(options, programs, level, member_count)?;
        let tools = tools(&ground, programs)?;
        let leave = |ground: &Ground<'_>, what: &str, count: u32| {
            let (raced, fixed) = (programs.raced.display(), tools.fixed.display());
            // A static program that waits for the mount cannot be killed, and would hold a pipe
            // open.
            let said = ground.path("said");
            let script = format!("exec timeout -s KILL 60 '{raced}' {what} '{fixed}' none {count} >'{}'", said.display());
            let output = run(ground, &tools, &ground.data(), &script, true)?;
            let said = fs::read_to_string(said).map_err(|error| error.to_string())?;
            let is_right = output.status.success() && said.lines().all(|line| line == "[]");
            if is_right { Ok(()) } else { Err(format!("RAID {level}, {what}: {}, it said {said:?}", output.status)) }
        };
        leave(&ground, "locks-unmounted", 12)?;
        ground.mount_at(&ground.data(), &[])?;
        leave(&ground, "locks-mounted", 12)?;
        leave(&ground, "locks-crowd", 5)?;
        ground.unmount()?;
        ground.conclude()?;
    }
    Ok(())
}

/// Asks a mount about descriptors of its own files, in many processes at a time.
const ASKING: &str = r#"exec timeout -s KILL 15 python3 -c '
import os
children = []
for index in range(64):
    fd = os.open("asked%d" % index, os.O_RDWR | os.O_CREAT)
    child = os.fork()
    if child == 0:
        try:
            os.stat(".cxlraid-descriptor-%d" % fd)
            os._exit(1)
        except FileNotFoundError:
            os._exit(0)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children), "answers")'"#;

/// A mount whose process has died, or answers nothing, counts as none: files are closed, with a
/// line, and nobody waits for long.
pub(crate) fn silent(options: &Options, programs: &Programs) -> Result<(), String> {
    const CLOSED: &str = "runs without cxlraid: 1 open file of the array is closed for it, and it starts in";
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let tools = tools(&ground, programs)?;
    // At the array's own path a shell could not even look for the directory that it is to start in.
    ground.mount()?;
    let script = r#"exec 7>file; "$S" p w7; echo on >&7; cat file; cp "$S" program
        python3 -c 'import subprocess; subprocess.run(["./program", "p"])'"#;
    let data = ground.data();
    let expect = |what: &str, ground: &Ground<'_>, limit: u64, is_closed: bool| {
        let begun = Instant::now();
        let output = run(ground, &tools, &data, script, true)?;
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let is_right = if is_closed {
            said == "in /proc/tty/ldisc\nw7 -1 Bad file descriptor\non\nin /proc/tty/ldisc\n" && told.contains(CLOSED)
        } else {
            said == format!("in {0}\nstatic\non\nin {0}\n", ground.mounted().display()) && told.is_empty()
        };
        match () {
            () if !is_right => Err(format!("{what}: it said {said:?} and {told:?}")),
            () if begun.elapsed() > Duration::from_secs(limit) => Err(format!("{what}: it took {:?}", begun.elapsed())),
            () => Ok(()),
        }
    };
    expect("mounted", &ground, 20, false)?;
    // The process that serves the mount asks itself nothing, however many ask it about its own
    // files.
    let begun = Instant::now();
    let asked = run(&ground, &tools, &ground.mounted(), ASKING, false)?;
    if asked.stdout != b"64 answers\n" || begun.elapsed() > Duration::from_secs(20) {
        return Err(format!("files of the mount asked about by descriptor: {}", String::from_utf8_lossy(&asked.stderr)));
    }
    ground.signal("STOP")?;
    expect("a stopped mount", &ground, 20, true)?;
    ground.signal("CONT")?;
    expect("going on", &ground, 20, false)?;
    ground.kill()?;
    expect("a dead mount", &ground, 20, true)?;
    ground.good(&["unmount", &ground.mounted().display().to_string()])?;
    expect("no mount", &ground, 20, true)?;
    ground.conclude()
}
