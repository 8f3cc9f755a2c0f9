//! Programs that run without the library: they are given nothing of the array, or are not started.

use super::{
    Outcome,
    scene::{Scene, is_root},
};
use crate::{
    process::Output,
    report::{Complaints, compare, with_output},
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Starts such a program in every way: by a shell, by a child that shares its parent's memory, in
/// the place of its caller.
const SCRIPT: &str = r#"
alone=$1
mkdir sub && cd sub && exec 9>>../log || exit
"$alone" 9; pwd
cd "$3" && "$alone" 9 | sed 's/, [0-9]* names.*,/,/'
cd "$OLDPWD" && exec 9>&-
python3 -u -c '
import os, subprocess, sys
subprocess.run([sys.argv[1]], cwd="..")
subprocess.run([sys.argv[1]], close_fds=False)
print(os.getcwd())
os.posix_spawn(sys.argv[1], [sys.argv[1]], os.environ); os.wait()
try:
    os.execv(sys.argv[2], ["bad"])
except OSError as error:
    print(error.strerror, os.getcwd())
os.mkdir("relative")
os.fchdir(os.open("relative", os.O_PATH)); print(os.getcwd())
os.execv(sys.argv[1], ["alone"])' "$alone" "$2"
ls; cat ../log
"#;

const PLACE: &str = "in /proc/tty/ldisc, 2 names, open fails, mkdir fails";

fn script(scene: &Scene<'_>, alone: &Path, bad: &Path) -> Output {
    let text = format!("cd '{}'\n{SCRIPT}", scene.array.place.data.display());
    scene.run("bash", &[Path::new("-c"), Path::new(&text), Path::new("bash"), alone, bad, &scene.beside("host")])
}

/// No name is made past redundancy, and what is not started afterwards is where it was.
pub(super) fn directory(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    let found = moved_away(scene, "alone", complaints)?;
    let alone = scene.array.place.ground.assets.join("bin/alone");
    let says = format!("{}: is linked statically and runs without cxlraid: it starts in /proc/tty/ldisc", alone.display());
    expect_lines(&found, &says, complaints);
    Ok(Outcome::Ran)
}

/// The program is told by each process that starts it in the array's directory: by the three
/// children, and by the last exec; the failed one says it of another program. The shell has a file
/// open, too.
fn expect_lines(found: &Output, says: &str, complaints: &mut Complaints) {
    let lines = found.stderr_text().lines().filter(|line| line.contains(says)).count();
    if lines != 4 || !found.stderr_text().contains("1 open file of the array is closed for it, and it starts in") {
        complaints.push(with_output(&format!("{lines} lines say \"{says}\""), found));
    }
}

/// Starts such a program with a file of the array as its input, output or error output, and another
/// program in vain.
const STANDARD: &str = r#"
printf 'precious data, kept by its owner\n' > "$3"
"$1" over "$3" > out 2>/dev/null; echo $?
"$1" over "$3" 2> error > /dev/null; echo $?
"$1" over "$3" < out > /dev/null 2>&1; echo $?
"$1" over "$3" < out > out 2> error; echo $?
cat "$3"
python3 -u -c '
import os, sys
try:
    os.execv(sys.argv[1], ["bad"])
except OSError as error:
    print(error.strerror)' "$2" > out 2> error
cat out; grep -c . error
if CXLRAID_UNREACHED=refuse "$1" over "$3" > out 2>/dev/null; then echo started; else echo $?; fi
"#;

/// What such a program opens does not become what it prints to, and an exec that fails leaves its
/// caller's files as they were.
pub(super) fn standard(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let alone = scene.array.place.ground.assets.join("bin/alone");
    let (bad, victim) = (bad_program(scene)?, scene.beside("victim"));
    let text = format!("cd '{}' || exit\n{STANDARD}", scene.array.place.data.display());
    let found = scene.run("bash", &[Path::new("-c"), Path::new(&text), Path::new("bash"), &alone, &bad, &victim]);
    let expected = "0\n0\n0\n0\nprecious data, kept by its owner\nExec format error\n0\n126\n";
    let output = Output { stderr: Vec::new(), ..found };
    compare(
        "the files of programs without the library",
        &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() },
        &output,
        complaints,
    );
    Ok(Outcome::Ran)
}

/// A file that begins as a program for another processor, and that the kernel cannot execute.
fn bad_program(scene: &Scene<'_>) -> io::Result<PathBuf> {
    let bad = scene.beside("bad");
    std::fs::write(&bad, [&b"\x7fELF"[..], &[0; 4096]].concat())?;
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(bad)
}

/// Starts a program in every way. It must find nothing of the array; what its callers print must be
/// right.
fn moved_away(scene: &mut Scene<'_>, program: &str, complaints: &mut Complaints) -> io::Result<Output> {
    scene.make(complaints);
    let alone = scene.array.place.ground.assets.join("bin").join(program);
    let (bad, host) = (bad_program(scene)?, scene.beside("host"));
    std::fs::create_dir(&host)?;
    let found = script(scene, &alone, &bad);
    let sub = scene.data("sub").display().to_string();
    let expected = format!(
        "{PLACE}, 9 is closed\n{sub}\nin {}, 9 is closed\n{PLACE}\n{PLACE}\n{sub}\n{PLACE}\nExec format error {sub}\n{sub}/relative\n{PLACE}\nrelative\n",
        host.display()
    );
    let output = Output { stderr: Vec::new(), ..found.clone() };
    compare(
        "programs without the library",
        &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() },
        &output,
        complaints,
    );
    Ok(found)
}

/// The words with which the library, in a program that it cannot reach, says so itself: the program
/// that executed it has not noticed.
const OUTSIDE: &str = "this program makes system calls in code without unwind entries";
const MOVED: &str = "; it starts in /proc/tty/ldisc, where nothing can be made, and not in ";

/// Programs and libraries that are linked dynamically and make system calls by instructions of
/// their own, which are not patched.
pub(super) fn code(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    let bin = scene.array.place.ground.assets.join("bin");
    let clear = scene.array.place.data.clone();
    for program in ["outside-note", "outside-section", "outside"] {
        let found = moved_away(scene, program, complaints)?;
        if program == "outside" {
            let lines = found.stderr_text().lines().filter(|line| line.contains(OUTSIDE) && line.contains(MOVED)).count();
            if lines != 5 || !found.stderr_text().contains("and 1 open files of it are closed") {
                complaints.push(with_output(&format!("{lines} lines say \"{OUTSIDE}\""), &found));
            }
        } else {
            let path = bin.join(program);
            let says = format!("{}: is written in Go and runs without cxlraid: it starts in /proc/tty/ldisc", path.display());
            expect_lines(&found, &says, complaints);
        }
        scene.run("sh", &[Path::new("-c"), Path::new("rm -r \"$0\"/sub \"$0\"/log"), &clear]);
        std::fs::remove_dir_all(scene.beside("host"))?;
    }
    let library = bin.join("outside.so");
    let text = format!(
        "cd '{0}'; LD_PRELOAD=\"$LD_PRELOAD:{1}\" /bin/pwd; python3 -c 'import ctypes, os; ctypes.CDLL(\"{1}\"); print(os.getcwd())'",
        clear.display(),
        library.display()
    );
    let found = scene.run("bash", &[Path::new("-c"), Path::new(&text)]);
    let expected =
        Output { stdout: format!("/proc/tty/ldisc\n{}\n", clear.display()).into(), stderr: Vec::new(), status: "0".into() };
    compare("libraries", &expected, &Output { stderr: Vec::new(), ..found.clone() }, complaints);
    let uses = format!("this program uses {}, which makes system calls in code without unwind entries", library.display());
    for says in [&uses[..], "keep outside.so away from the array"] {
        if found.stderr_text().matches(says).count() != 1 {
            complaints.push(with_output(&format!("not one line says \"{says}\""), &found));
        }
    }
    let scrubbed = scene.array.scrub().output();
    if !scrubbed.succeeded() || !scrubbed.stderr.is_empty() {
        complaints.push(with_output("redundancy", &scrubbed));
    }
    Ok(Outcome::Ran)
}

/// Starts a program that is stored on the array in every way: by children that share their parent's
/// memory and by others, by what runs other programs, by its path, by a relative one, through a
/// link, by descriptor and as an interpreter, with a file open and without. The arguments: the
/// program, a directory of the array, `shares`, what the program must say.
const STORED: &str = r##"
import os, shutil, subprocess, sys
source, data, shares, bad, place = sys.argv[1:]
sub = data + "/sub"
own = sub + "/own"
os.mkdir(sub); os.chdir(sub)
shutil.copy(source, own)
with open("script", "w") as script: script.write("#!" + own + "\n")
os.chmod("script", 0o755)
os.dup2(os.open("../held", os.O_CREAT | os.O_WRONLY), 7, inheritable=True)
count = 0
def judge(name, said, numbers, rest=""):
    global count
    count += 1
    expected = place + "".join(", %d is closed" % number for number in numbers) + "\n" + rest
    if said != expected or os.getcwd() != sub: print(name + ":", said, "here:", os.getcwd())
def way(name, arguments, numbers=[], rest="", **how):
    judge(name, subprocess.run(arguments, stdout=subprocess.PIPE, text=True, **how).stdout, numbers, rest)
before = {"preexec_fn": lambda: None}
way("host", [source])
way("path", [own])
way("relative", ["./own"])
way("elsewhere", [own], cwd="..")
way("held", [own, "7"], [7], close_fds=False)
way("fork", [own], **before)
way("fork held", ["./own", "7"], [7], close_fds=False, **before)
way("link", ["/proc/self/cwd/own"])
way("script", ["./script"], [-2])
way("fork script", ["./script"], [-2], **before)
way("sh", ["sh", "-c", own + "; true"])
way("sh relative", ["sh", "-c", "./own; true"])
way("sh redirected", ["sh", "-c", "./own 8 8>../other; true"], [8])
way("bash", ["bash", "-c", "./own; true"])
way("make", ["make", "-sf", "-"], input="all:\n\t@./own\n")
way("find", ["find", ".", "-maxdepth", "0", "-exec", own, ";"])
way("xargs", ["xargs", "./own"], [9], input="9\n")
way("env", ["env", "./own"])
for flags in "4300", "4500", "4700", "700", "4200", "500", "400":
    for program in "./own", source:
        way(flags + program, [shares, flags, program, "7"], [7], "7 is kept\nparent in " + sub + "\n", close_fds=False)
for flags in "500", "700", "4700", "4500", "400":
    way(flags + " again", [shares, flags, bad, "7", source], [7, -1], "7 is kept\nparent in " + sub + "\n", close_fds=False)
host = os.path.dirname(bad) + "/host"; os.mkdir(host)
for flags in "4200", "500", "400":
    elsewhere = subprocess.run([shares, flags, source, "7"], stdout=subprocess.PIPE, text=True, close_fds=False, cwd=host).stdout
    if not elsewhere.endswith(", 7 is closed\n7 is kept\nparent in " + host + "\n"): print(flags + " elsewhere:", elsewhere)
def spawned(name, start):
    read, write = os.pipe()
    child = start(write); os.close(write); os.waitpid(child, 0)
    judge(name, os.read(read, 4096).decode(), []); os.close(read)
spawned("posix_spawn", lambda write: os.posix_spawn(own, ["own"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)]))
def descriptor(write):
    child = os.fork()
    if not child:
        os.dup2(write, 1); os.execve(os.open("own", os.O_RDONLY), ["own"], os.environ)
    return child
spawned("descriptor", descriptor)
print(count, "ways", sorted(os.listdir(".")))
"##;

/// A program that is stored on the array is not started in a directory of one member either.
pub(super) fn stored(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let assets = scene.array.place.ground.assets.join("bin");
    let (alone, shares) = (assets.join("alone"), assets.join("shares"));
    let data = scene.array.place.data.clone();
    let bad = bad_program(scene)?;
    let found = scene.run("python3", &[Path::new("-c"), Path::new(STORED), &alone, &data, &shares, &bad, Path::new(PLACE)]);
    let expected =
        Output { stdout: b"39 ways ['child', 'own', 'parent', 'script']\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("stored programs", &expected, &Output { stderr: Vec::new(), ..found }, complaints);
    let scrubbed = scene.array.scrub().output();
    if !scrubbed.succeeded() || !scrubbed.stderr.is_empty() {
        complaints.push(with_output("redundancy", &scrubbed));
    }
    Ok(Outcome::Ran)
}

/// Threads of a process that becomes such a program leave nothing locked, although the process
/// lives on.
pub(super) fn threads(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let bin = scene.array.place.ground.assets.join("bin");
    let (file, bad) = (scene.data("written"), bad_program(scene)?);
    let found = scene.run(&bin.join("becomes").display().to_string(), &[&file, &bin.join("alone"), &bad, Path::new("12")]);
    let expected = Output { stdout: b"12 rounds\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("threads of a process that becomes another", &expected, &Output { stderr: Vec::new(), ..found }, complaints);
    let scrubbed = scene.array.scrub().output();
    if !scrubbed.succeeded() || !scrubbed.stderr.is_empty() {
        complaints.push(with_output("redundancy", &scrubbed));
    }
    Ok(Outcome::Ran)
}

/// A child in another PID namespace cannot tell which processes live, and is told so; its parent
/// goes on.
const CHILD_ELSEWHERE: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("own", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.write(file, b"before")
if libc.unshare(0x20000000) != 0:
    raise OSError(ctypes.get_errno(), "unshare")
child = os.fork()
if child == 0:
    for act in (lambda: os.pwrite(file, b"child", 0), lambda: os.open("new", os.O_RDWR | os.O_CREAT), lambda: os.listdir(".")):
        try:
            act()
            print("done", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
    os._exit(0)
os.waitpid(child, 0)
os.pwrite(file, b"behind", 0)
print(os.pread(file, 10, 0).decode(), "own" in os.listdir("."), flush=True)
"#;

pub(super) fn other_pid_namespace(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to make a PID namespace"));
    }
    scene.make(complaints);
    let text = format!("import os\nos.chdir('{}')\n{CHILD_ELSEWHERE}", scene.array.place.data.display());
    let found = scene.run("python3", &[Path::new("-c"), Path::new(&text)]);
    let expected = "Input/output error\nInput/output error\nInput/output error\nbehind True\n";
    let expected = Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() };
    if !found.stderr_text().contains("this process is in another PID namespace") {
        complaints.push(with_output("the line that says why", &found));
    }
    compare("a child in another PID namespace", &expected, &Output { stderr: Vec::new(), ..found }, complaints);
    Ok(Outcome::Ran)
}

/// With `CXLRAID_UNREACHED=refuse` such a program is started only if it is given nothing of the
/// array.
pub(super) fn refused(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let host = scene.beside("host");
    std::fs::create_dir(&host)?;
    for (program, says) in [
        ("alone", "refused, since it is linked statically"),
        ("outside-note", "refused, since it is written in Go"),
        ("outside", "without unwind entries; it is ended, since it would work on one member alone"),
    ] {
        refused_one(scene, program, says, complaints);
    }
    Ok(Outcome::Ran)
}

fn refused_one(scene: &mut Scene<'_>, program: &str, says: &str, complaints: &mut Complaints) {
    scene.set("CXLRAID_UNREACHED", "refuse");
    let alone = scene.array.place.ground.assets.join("bin").join(program);
    let host = scene.beside("host");
    let text = format!(
        "cd '{2}'; '{0}' | sed s/,.*//; cd '{1}'; '{0}'; echo $?; cd '{2}'; exec 3>'{1}/log'; '{0}'; echo $?; pwd; echo open >&3",
        alone.display(),
        scene.array.place.data.display(),
        host.display()
    );
    let found = scene.run("bash", &[Path::new("-c"), Path::new(&text)]);
    let output = Output { stderr: Vec::new(), ..found.clone() };
    let host = host.display();
    let expected = format!("in {host}\n126\n126\n{host}\n");
    compare("refused programs", &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() }, &output, complaints);
    if found.stderr_text().matches(says).count() != 2 {
        complaints.push(with_output("each refusal is one line", &found));
    }
    scene.unset("CXLRAID_UNREACHED");
    scene.expect_content("log", "open\n", complaints);
}

/// ld.so loads no library of the environment into a program that gains rights.
pub(super) fn rights(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to give a file to somebody else"));
    }
    scene.make(complaints);
    let copy = scene.beside("pwd");
    let text = format!(
        "cp /bin/pwd '{0}' && cd '{1}' && '{0}' && chown 65534 '{0}' && chmod 4755 '{0}' && '{0}' && chown 0:65534 '{0}' && chmod 2755 '{0}' && '{0}'",
        copy.display(),
        scene.array.place.data.display()
    );
    let found = scene.run("bash", &[Path::new("-c"), Path::new(&text)]);
    let expected = format!("{}\n/proc/tty/ldisc\n/proc/tty/ldisc\n", scene.array.place.data.display());
    let output = Output { stderr: Vec::new(), ..found.clone() };
    compare(
        "programs that gain rights",
        &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() },
        &output,
        complaints,
    );
    Ok(Outcome::Ran)
}
