//! These cases hand files and directories of the array to a program where the library cannot load, has
//! no /proc, or runs in another root directory, or where their mount namespace has ended.

use super::{
    Outcome,
    scene::{Scene, is_root},
};
use crate::{
    process::Output,
    report::{Complaints, compare, with_output},
};
use std::{io, path::Path};

/// Executes programs after the library's file was renamed. The argument is the library.
const RENAMED: &str = r#"
library=$1
printf 'kept\n' > log && printf '0123456789' > data && exec 5>>log 6<>data || exit
/bin/echo before >&5; echo $?
mv "$library" "$library.away"
/bin/echo lost >&5; echo $?
/bin/echo lost >&6; echo $?
/bin/cat <&6; echo $?
/bin/echo lost >> log; echo $?
/bin/pwd
/bin/mkdir made; echo $?
CXLRAID_UNREACHED=refuse /bin/echo lost >&5; echo $?
printf 'cut short' > "$library"; chmod 755 "$library"
/bin/echo lost >&5; echo $?
mv "$library.away" "$library"
/bin/echo after >&5; echo $?
/bin/cat log data; ls
"#;
const AFTER_RENAMED: &str = "0\n1\n1\n1\n1\n/proc/tty/ldisc\n1\n126\n1\n0\nkept\nbefore\nafter\n0123456789data\nfile\nlog\n";

/// Runs a script in the array's directory with a library of its own, and compares what it prints.
fn run(scene: &mut Scene<'_>, script: &str, more: &[&Path], expected: &str, complaints: &mut Complaints) -> io::Result<Output> {
    let directory = scene.beside("library");
    if !directory.exists() {
        std::fs::create_dir(&directory)?;
    }
    let library = directory.join("libcxlraid.so");
    std::fs::copy(&scene.array.place.ground.library, &library)?;
    scene.set("LD_PRELOAD", library.clone());
    let text = format!("cd '{}' || exit\n{script}", scene.array.place.data.display());
    let mut arguments = vec![Path::new("-c"), Path::new(&text), Path::new("bash"), library.as_path()];
    arguments.extend(more);
    let found = scene.run("bash", &arguments);
    scene.reset();
    let output = Output { stderr: Vec::new(), ..found.clone() };
    compare(
        "files that were handed on",
        &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() },
        &output,
        complaints,
    );
    let scrubbed = scene.array.scrub().output();
    if !scrubbed.succeeded() || !scrubbed.stderr.is_empty() {
        complaints.push(with_output("redundancy", &scrubbed));
    }
    Ok(found)
}

/// A program that cannot have the library is given nothing of the array.
pub(super) fn without_library(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let found = run(scene, RENAMED, &[], AFTER_RENAMED, complaints)?;
    let says = "/bin/mkdir: cannot load ";
    let rest = "libcxlraid.so (it is not there, is damaged, or is closed to this user) and runs without cxlraid: 2 open files of the array are closed";
    if !found.stderr_text().lines().any(|line| line.contains(says) && line.contains(rest)) {
        complaints.push(with_output(&format!("no line says \"{says}...{rest}\""), &found));
    }
    Ok(Outcome::Ran)
}

/// A user who may not reach the library's file, and one who may not read a program, or not execute it.
/// The user may not read the file either that he has inherited.
const CLOSED: &str = r#"
printf 'kept\n' > log && chmod 600 log && chmod 777 . && exec 5>>log 6<>log || exit
cp "$2" "$3" && chmod 711 "$3" || exit
python3 -u -c '
import os, subprocess, sys
def become():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
def run(program, *more):
    print(subprocess.run([program, *more], close_fds=False, preexec_fn=become).returncode)
run(sys.argv[2], "5")
os.chmod(sys.argv[2], 0o600)
try:
    run(sys.argv[2], "5")
except OSError as error:
    print(error.strerror)
os.chmod(os.path.dirname(sys.argv[1]), 0o700)
run("/bin/sh", "-c", "echo lost >&5; echo lost > made")
print(subprocess.run(["/bin/true"], close_fds=False, preexec_fn=become, stderr=6).returncode)
' "$1" "$3"
cat log; ls
"#;
const AFTER_CLOSED: &str =
    "in /proc/tty/ldisc, 2 names, open fails, mkdir fails, 5 is closed\n0\nPermission denied\n2\n0\nkept\nfile\nlog\n";

/// As [`without_library`], by rights.
pub(super) fn closed_library(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to become somebody else"));
    }
    scene.make(complaints);
    let alone = scene.array.place.ground.assets.join("bin/alone");
    let copy = scene.beside("alone-711");
    let found = run(scene, CLOSED, &[&alone, &copy], AFTER_CLOSED, complaints)?;
    // Nothing is said of the program that is not executed.
    if found.stderr_text().matches("alone-711: may not be read, so it may be linked statically, and may run").count() != 1 {
        complaints.push(with_output("one line says that the program may not be read", &found));
    }
    Ok(Outcome::Ran)
}

/// Executes a program where no /proc is.
const NO_PROC: &str = r#"
printf 'kept\n' > log && chmod 600 log && mkdir sub closed && mkdir -m 777 closed/sub && exec 5>>log 6<>log 7<sub 8<closed/sub || exit
chmod 700 closed
python3 -u -c '
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(b"t", b"/proc", b"tmpfs", 0, None):
    raise OSError(ctypes.get_errno(), "namespace")
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    os.execv(sys.executable, [sys.executable, "-u", "-c", """
import os
try:
    os.write(6, b"lost")
except OSError:
    os.mkdir("made", dir_fd=8)
"""])
print("closed", os.wait()[1] != 0)
os.execv(sys.executable, [sys.executable, "-u", "-c", """
import os
for act in (lambda: os.write(5, b"lost"), lambda: os.pwrite(6, b"lost", 0), lambda: os.ftruncate(6, 0),
            lambda: os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=7), lambda: os.mkdir("made", dir_fd=7)):
    try:
        act()
        print("done")
    except OSError as error:
        print("refused")
"""])'
cat log; ls sub closed/sub
"#;
const AFTER_NO_PROC: &str = "closed True\nrefused\nrefused\nrefused\nrefused\nrefused\nkept\nclosed/sub:\n\nsub:\n";

/// Checks that what a program inherits is not left to the kernel where /proc does not tell what it is.
pub(super) fn without_proc(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount over /proc"));
    }
    scene.make(complaints);
    let found = run(scene, NO_PROC, &[], AFTER_NO_PROC, complaints)?;
    if !found.stderr_text().contains("there is no /proc here") {
        complaints.push(with_output("a line says why", &found));
    }
    Ok(Outcome::Ran)
}

/// Executes a program in a mount namespace of its own, in which it opens files, and which ends when the
/// program leaves it for another one: the kernel tells no whole path of them then.
const CUT_OFF: &str = r#"
printf 'kept\n' > log || exit
unshare -m bash -c 'exec 5>>log; exec unshare -m bash -c "echo found >&5; echo \$?"'
cat log
"#;
const AFTER_CUT_OFF: &str = "0\nkept\nfound\n";

/// Checks that a file inherited from a mount namespace that has ended is not taken for the host's.
pub(super) fn cut_off(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, for mount namespaces"));
    }
    scene.make(complaints);
    run(scene, CUT_OFF, &[], AFTER_CUT_OFF, complaints)?;
    Ok(Outcome::Ran)
}

/// Executes programs in another root directory: without the library, with it and without /proc, with
/// both. The first argument after the library is that directory, the second holds the members.
const OTHER_ROOT: &str = r#"
printf 'kept\n' > log && mkdir sub && exec 5>>log || exit
python3 -u -c '
import ctypes, os, sys
library, tree, members = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result: raise OSError(ctypes.get_errno(), "namespace")
def bind(path):
    os.makedirs(tree + path, exist_ok=True)
    must(libc.mount(path.encode(), (tree + path).encode(), None, 0x5000, None))
def run(directory, text):
    child = os.fork()
    if child == 0:
        os.chdir(directory); os.chroot(tree)
        try:
            os.execv("/bin/sh", ["sh", "-c", text])
        except OSError as error:
            print(error.strerror)
        os._exit(126)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
must(libc.unshare(0x20000))
must(libc.mount(b"none", b"/", None, 0x44000, None))
os.mkdir(tree)
must(libc.mount(b"t", tree.encode(), b"tmpfs", 0, None))
for path in ("/usr", "/bin", "/lib", "/lib64", "/dev", members): bind(path)
os.mkdir(tree + "/proc")
os.rename(library, library + ".away")
run("/", "echo lost >&5")
run("sub", "echo lost > made")
os.rename(library + ".away", library)
run("/", "echo lost >&5")
run("sub", "echo lost > made")
run(".", "echo lost > made")
bind("/proc")
run("/", "echo after >&5")
run("sub", "echo found > made")
run(".", "echo found > made")
' "$1" "$2" "$3"
cat log made sub/made; ls . sub
"#;
const AFTER_OTHER_ROOT: &str = "status 2\nPermission denied\nstatus 126\nstatus 1\nstatus 2\nstatus 2\nstatus 0\nstatus 0\nstatus 0\nkept\nafter\n\
    found\nfound\n.:\nfile\nlog\nmade\nsub\n\nsub:\nmade\n";

/// After chroot(2) an open file and the current directory go on where the library finds all that it
/// needs, and nothing is made in a directory of one member.
pub(super) fn other_root(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, for chroot(2)"));
    }
    scene.make(complaints);
    let (tree, members) = (scene.beside("tree"), scene.array.place.root.clone());
    run(scene, OTHER_ROOT, &[&tree, &members], AFTER_OTHER_ROOT, complaints)?;
    Ok(Outcome::Ran)
}

/// Unmounts a member's file system lazily below a program that has a directory and a file of the array
/// open, and is in the directory. The arguments are the library, the member and the array's directory.
/// The library is in no program that makes mounts: it would keep the member as it was before.
const HANGING: &str = r#"
unshare --mount --propagation private sh -c '
mount --bind "$2" "$2" && LD_PRELOAD=$1 && export LD_PRELOAD && exec python3 -u -c "$4" "$2" "$3"' sh "$1" "$2" "$3" '
import os, subprocess, sys
WORK = """
import os, sys
name, directory, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def show(act):
    try: print(act())
    except OSError as error: print(error.strerror)
show(lambda: os.path.basename(os.getcwd()))
show(lambda: open(name + "-file", "w").write("12"))
show(lambda: os.mkdir(name + "-relative"))
show(lambda: os.mkdir(name + "-at", dir_fd=directory))
show(lambda: os.rename(name + "-at", "../" + name + "-moved", src_dir_fd=directory, dst_dir_fd=directory))
show(lambda: os.write(file, name.encode()))
show(lambda: os.fstat(file).st_size)
"""
os.mkdir(sys.argv[2] + "/sub")
os.chdir(sys.argv[2] + "/sub")
directory, file = os.open(".", os.O_RDONLY), os.open("log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
for number in (directory, file): os.set_inheritable(number, True)
subprocess.run(["umount", "--lazy", sys.argv[1]], env={"PATH": os.environ["PATH"]}, check=True)
sys.argv = ["", "here", str(directory), str(file)]
exec(WORK)
os.execvp("python3", ["python3", "-u", "-c", WORK, "there", str(directory), str(file)])
'
cd "$3" && LD_PRELOAD=$1 && export LD_PRELOAD && cat sub/log && ls . sub
"#;
const AFTER_HANGING: &str = "sub\n2\nNone\nNone\nNone\n4\n4\nsub\n2\nNone\nNone\nNone\n5\n9\nherethere\
    .:\nfile\nhere-moved\nsub\nthere-moved\n\nsub:\nhere-file\nhere-relative\nlog\nthere-file\nthere-relative\n";

/// What is open on a member's file system that was unmounted lazily is the array's.
pub(super) fn hanging(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, for mount namespaces"));
    }
    scene.make(complaints);
    scene.unset("LD_PRELOAD");
    let place = &scene.array.place;
    let arguments: [&Path; 6] =
        ["-c".as_ref(), HANGING.as_ref(), "bash".as_ref(), &place.ground.library, scene.member(0), &place.data];
    let found = scene.run("bash", &arguments);
    let expected = Output { stdout: AFTER_HANGING.into(), stderr: Vec::new(), status: "0".into() };
    compare("what hangs in the air", &expected, &found, complaints);
    scene.reset();
    let scrubbed = scene.array.scrub().output();
    if !scrubbed.succeeded() || !scrubbed.stderr.is_empty() {
        complaints.push(with_output("redundancy", &scrubbed));
    }
    Ok(Outcome::Ran)
}
