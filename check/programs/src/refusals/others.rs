//! These cases show what other users can do to programs on the array, and what a process can still
//! do with rights that it has dropped.

use super::{
    Outcome,
    scene::{Scene, is_root, must},
};
use crate::{
    process::{Output, without_notices},
    report::{Complaints, compare},
};
use std::{io, os::unix::fs::PermissionsExt as _, path::Path};

/// Holds the lock of the array's runtime segment, and ends a program that waits for it.
const HELD: &str = r"
import fcntl, re, signal, subprocess, sys, time
# What a shell starts in the background ignores SIGINT.
signal.signal(signal.SIGINT, signal.SIG_DFL)
path = re.search(r'/dev/shm/cxlraid-[0-9a-f]{8}-[0-9a-f-]{27}$', open('/proc/self/maps').read(), re.M)[0]
lock = open(path, 'rb')
fcntl.flock(lock, fcntl.LOCK_EX)
for number in (signal.SIGTERM, signal.SIGINT):
    waits = subprocess.Popen(['cat', sys.argv[1]], stdout=subprocess.PIPE)
    time.sleep(0.3)
    was_there = waits.poll() is None
    waits.send_signal(number)
    try:
        print(was_there, waits.wait(timeout=5) == -number)
    except subprocess.TimeoutExpired:
        print('it cannot be ended')
        waits.kill()
waits = subprocess.Popen(['cat', sys.argv[1]], stdout=subprocess.PIPE)
time.sleep(0.3)
fcntl.flock(lock, fcntl.LOCK_UN)
print(waits.communicate()[0])
";

/// A program that waits for the segment's lock is ended by the signals that end it elsewhere; so is
/// an ordinary user's.
pub(super) fn segment_held(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to be somebody else"));
    }
    for as_nobody in [true, false] {
        if as_nobody {
            // The array is made by its user, and is root's to use, too.
            for slot in 0..scene.array.members.len() {
                must(scene.array.place.run("chown").args(["-R", "65534:65534"]).arg(scene.member(slot)))?;
            }
            scene.as_nobody = true;
        }
        scene.make(complaints);
        let output = scene.run("python3", &[Path::new("-c"), Path::new(HELD), &scene.data("file")]);
        let expected = Output { stdout: "True True\nTrue True\nb'before\\n'\n".into(), stderr: Vec::new(), status: "0".into() };
        compare("programs that wait for the segment", &expected, &output, complaints);
        scene.reset();
        let removed = scene.run("rm", &[&scene.data("file")]);
        if !removed.succeeded() {
            complaints.push(crate::report::with_output("removing the file", &removed));
        }
    }
    Ok(Outcome::Ran)
}

/// Somebody else has made the segment's first name: the array works by another name, which all
/// programs find, also when the first one is free again.
pub(super) fn segment_name_taken(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to be somebody else"));
    }
    scene.make(complaints);
    stage::segment::forget(&scene.array.members);
    let Some(segment) = stage::segment::segment_of(scene.member(0)) else { return Err(io::ErrorKind::NotFound.into()) };
    std::fs::write(&segment, "taken")?;
    std::os::unix::fs::chown(&segment, Some(65534), Some(65534))?;
    let begins = format!("{}-run-", segment.display());
    let count = || -> io::Result<usize> {
        let entries = std::fs::read_dir("/dev/shm")?.flatten();
        Ok(entries.filter(|entry| entry.path().to_string_lossy().starts_with(&begins)).count())
    };
    scene.expect_content("file", "before\n", complaints);
    scene.expect_content("file", "before\n", complaints);
    let taken = std::fs::read(&segment)?;
    std::fs::remove_file(&segment)?;
    scene.expect_content("file", "before\n", complaints);
    if taken != b"taken" || segment.exists() || count()? != 1 {
        complaints.push(format!("{} other segments, must be 1; the name that was taken holds {} bytes", count()?, taken.len()));
    }
    Ok(Outcome::Ran)
}

/// Rounds of [`segment_damaged`], each on an array of its own.
const DAMAGED_ROUNDS: &str = "6";

/// No word of the runtime segment lets a program be killed or hang.
pub(super) fn segment_damaged(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    let script = scene.beside("damaged.py");
    std::fs::write(&script, include_str!("damaged.py"))?;
    let (data, root) = (scene.data("file").with_file_name(""), scene.beside(""));
    let library = scene.array.place.ground.library.clone();
    // The process that damages the segments has none of them itself.
    let run = scene.array.place.run("python3").arg(&script).arg(library).arg(data).arg(root);
    let output = run.arg(DAMAGED_ROUNDS).output();
    let expected = Output { stdout: "words outside\n".into(), stderr: Vec::new(), status: "0".into() };
    compare("programs on damaged segments", &expected, &output, complaints);
    std::fs::remove_file(script)?;
    std::fs::remove_file(scene.beside("outside"))?;
    Ok(Outcome::Ran)
}

/// The ways in which a process can give up rights, each a word of the test program.
const WAYS: [&str; 8] = ["setresuid", "setuid", "setreuid", "setfsuid", "setgid", "capset", "unshare", "thread"];

/// What a program could reach by rights that it has dropped goes with them: files that it has
/// closed, tables by their links and numbers. What it has open stays.
pub(super) fn rights_dropped(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to have rights to drop"));
    }
    scene.make(complaints);
    let script = scene.beside("rights.py");
    std::fs::write(&script, include_str!("rights.py"))?;
    let (data, everybodys) = (scene.data("file").with_file_name(""), scene.beside("everybodys"));
    std::fs::create_dir(&everybodys)?;
    std::fs::set_permissions(&everybodys, std::fs::Permissions::from_mode(0o1777))?;
    for way in WAYS {
        let output = scene.run("python3", &[&script, &data, Path::new(way), &everybodys]);
        let tried = if ["setresuid", "setuid", "setreuid", "thread"].contains(&way) { "tried True\n" } else { "" };
        let stdout = format!("kept before True\ngone\nb'secret' 1\ngone\n{tried}");
        let expected = Output { stdout: stdout.into(), stderr: Vec::new(), status: "0".into() };
        compare(&format!("rights dropped by {way}"), &expected, &output, complaints);
    }
    let shared = data.join("shared");
    scene.run("mkdir", &[Path::new("-m"), Path::new("1777"), &shared]);
    std::fs::write(&script, include_str!("dropped.py"))?;
    for way in ["setresuid", "setuid", "thread"] {
        let output = scene.run("python3", &[&script, &shared, Path::new(way)]);
        let expected = Output { stdout: "mine 65534\n[]\n".into(), stderr: Vec::new(), status: "0".into() };
        compare(&format!("changes of names after rights were dropped by {way}"), &expected, &output, complaints);
    }
    std::fs::remove_dir(everybodys)?;
    std::fs::remove_file(script)?;
    Ok(Outcome::Ran)
}

/// In a directory where everybody may make names, nobody follows another's symlink and opens
/// another's file with O_CREAT, where the kernel is told to protect them.
pub(super) fn sticky_directories(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to be somebody else"));
    }
    // The kernel's own settings are the machine's, so the program is shown others in their place.
    const SHOWN: &str = "mount --bind \"$1\" /proc/sys/fs/protected_symlinks && mount --bind \"$2\" /proc/sys/fs/protected_regular && exec python3 \"$3\" \"$4\" \"$5\"";
    scene.make(complaints);
    let [script, symlinks, regular] = ["sticky.py", "symlinks", "regular"].map(|name| scene.beside(name));
    std::fs::write(&script, include_str!("sticky.py"))?;
    std::fs::write(&symlinks, "1\n")?;
    for (setting, refused) in [("0", "40"), ("1", "50"), ("2", "60")] {
        std::fs::write(&regular, setting)?;
        let place = scene.data("file").with_file_name(setting);
        scene.run("mkdir", &[&place]);
        let words = ["--mount", "--propagation", "private", "sh", "-c", SHOWN, "sh"].map(Path::new);
        let places: [&Path; 5] = [&symlinks, &regular, &script, &place, Path::new(setting)];
        let output = scene.run("unshare", &[&words[..], &places[..]].concat());
        let expected = Output { stdout: format!("576 {refused}\n").into(), stderr: Vec::new(), status: "0".into() };
        compare(&format!("with protected_regular {setting}"), &expected, &output, complaints);
    }
    [script, symlinks, regular].iter().try_for_each(std::fs::remove_file)?;
    Ok(Outcome::Ran)
}

/// Whoever writes to a setuid or setgid program, or to one with file capabilities, takes them from
/// it, exactly where a plain directory does.
pub(super) fn privileges_of_files(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to make setuid programs and to be somebody else"));
    }
    scene.make(complaints);
    let (script, plain) = (scene.beside("privileges.py"), scene.beside("plain"));
    std::fs::write(&script, include_str!("privileges.py"))?;
    std::fs::create_dir(&plain)?;
    let expected = scene.run("python3", &[&script, &plain]);
    let directory = scene.data("file").with_file_name("");
    // Without rights there is no userfaultfd, which the library tells of where it begins to follow
    // a mapping.
    let output = without_notices(scene.run("python3", &[&script, &directory]));
    if !expected.succeeded() {
        complaints.push(crate::report::with_output("on the plain directory", &expected));
    }
    compare("writes to programs with privileges", &expected, &output, complaints);
    std::fs::remove_dir(plain)?;
    std::fs::remove_file(script)?;
    Ok(Outcome::Ran)
}

/// What a user of the array's group does to files that are the group's: [`open_to_a_group`].
const OF_GROUP: &str = r"
import mmap, os, sys
data, name, other = sys.argv[1:]
os.umask(0o007)
os.makedirs(data + '/shared', 0o770, exist_ok=True)
with open(data + '/' + name, 'a') as file:
    file.write(name + '\n')
if os.path.exists(data + '/' + other):
    with open(data + '/' + other, 'a') as file:
        file.write(name + '\n')
    os.rename(data + '/' + other, data + '/shared/' + other)
descriptor = os.open(data + '/mapped', os.O_RDWR | os.O_CREAT, 0o660)
os.ftruncate(descriptor, 300000)
shown = mmap.mmap(descriptor, 300000)
before = shown[200000:200005]
shown[200000:200005] = name.encode()
print(before)
";

/// An array that is open to a group: two users of it work on each other's files, whoever comes
/// first; root does, too; nobody else may.
pub(super) fn open_to_a_group(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    const GROUP: u32 = 60010;
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to be somebody else"));
    }
    scene.make(complaints);
    let command = scene.array.place.ground.library.with_file_name("cxlraid").display().to_string();
    let (place, variables) = (scene.array.place, scene.array.variables());
    let access = |options: [&str; 2]| {
        let run = place.run(&command).arg("access").args(options);
        must(variables.iter().fold(run, |run, (name, value)| run.env(name, value)))
    };
    access(["--group", "60010"])?;
    scene.run("chgrp", &[Path::new("60010"), &scene.data("")]);
    scene.run("chmod", &[Path::new("2770"), &scene.data("")]);
    let data = scene.data("");
    for first in [60001, 60002, 0] {
        // Whoever is first makes the segment.
        stage::segment::forget(&scene.array.members);
        let users = [first, 60001, 60002];
        for (turn, user) in users.into_iter().enumerate() {
            scene.as_user = Some((user, if user == 0 { 0 } else { GROUP }));
            let names = ["first", "again", "third"];
            let (name, other) = (names[turn], names[(turn + 2) % 3]);
            let output = scene.run("python3", &[Path::new("-c"), Path::new(OF_GROUP), &data, Path::new(name), Path::new(other)]);
            if !output.succeeded() || !output.stderr.is_empty() {
                complaints.push(crate::report::with_output(&format!("user {user} after user {first}"), &output));
            }
        }
        scene.as_user = None;
        scene.expect_content("shared/first", "first\nagain\n", complaints);
        scene.run("rm", &[Path::new("-rf"), &data.join("shared"), &data.join("third"), &data.join("mapped")]);
    }
    scene.as_user = Some((60003, 60003));
    scene.expect_refusal("EACCES", &["you may not use this array: it is open to group 60010 and its owner root"], complaints);
    scene.as_user = None;
    access(["--mode", "0600"])?;
    scene.as_user = Some((60001, GROUP));
    scene.expect_refusal("EACCES", &["you may not use this array: it is open to user root"], complaints);
    scene.reset();
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// Stores to a mapping that shows a shared copy, and is killed before anything has followed.
const KILLED: &str = r"
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(descriptor, b'x' * 100000, 0)
shown = mmap.mmap(descriptor, 100000)
shown[70000:70005] = b'after'
os.kill(os.getpid(), 9)
";

/// What a process had stored through mappings when it was killed is in shared memory alone: neither
/// `cxlraid stop` nor `cxlraid gc` throws that away.
pub(super) fn stores_outlive_a_stop(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let command = scene.array.place.ground.library.with_file_name("cxlraid").display().to_string();
    let (place, variables) = (scene.array.place, scene.array.variables());
    let run =
        |word: &str| variables.iter().fold(place.run(&command).arg(word), |run, (name, value)| run.env(name, value)).output();
    let killed = scene.run("python3", &[Path::new("-c"), Path::new(KILLED), &scene.data("mapped")]);
    let Some(segment) = stage::segment::segment_of(scene.member(0)) else { return Err(io::ErrorKind::NotFound.into()) };
    let uuid = segment.to_string_lossy().rsplit_once("cxlraid-").map(|(_, uuid)| uuid.to_owned()).unwrap_or_default();
    let swept = place.run(&command).arg("gc").arg(uuid).output();
    if !segment.exists() || !swept.succeeded() {
        complaints.push(crate::report::with_output("gc must leave what recovery needs", &swept));
    }
    let stopped = run("stop");
    if killed.succeeded() || !stopped.succeeded() || segment.exists() {
        complaints.push(crate::report::with_output("cxlraid stop", &stopped));
    }
    let script = "tail -c +70001 \"$0\" | head -c 7";
    let output = scene.run("sh", &[Path::new("-c"), Path::new(script), &scene.data("mapped")]);
    let expected = Output { stdout: "afterxx".into(), stderr: Vec::new(), status: "0".into() };
    compare("what a killed process had stored", &expected, &output, complaints);
    Ok(Outcome::Ran)
}

/// Synchronises in four ways while another process, which then is killed, stores through a mapping.
/// The files are not open here but for fsync.
const SYNCHRONISES: &str = "
import ctypes, os, subprocess, sys
STORES = \"\"\"
import mmap, os, sys, time
shown = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192)
shown[100:106] = b'stored'
print(flush=True)
time.sleep(60)
\"\"\"
ways = {'syncfs': ctypes.CDLL(None).syncfs, 'sync': lambda _: os.sync(), 'fsync': os.fsync, 'nothing': lambda _: None}
for way, synchronise in ways.items():
    path = sys.argv[1] + '/' + way
    subprocess.run(['sh', '-c', 'head -c 8192 /dev/zero > \"$0\"', path], check=True)
    writer = subprocess.Popen([sys.executable, '-c', STORES, path], stdout=subprocess.PIPE)
    writer.stdout.readline()
    descriptor = os.open(path if way == 'fsync' else sys.argv[1], os.O_RDONLY)
    synchronise(descriptor)
    writer.kill()
    writer.wait()
os.kill(os.getpid(), 9)
";

/// What another process has stored through a mapping is in the members' files when fsync, syncfs or
/// sync returns.
pub(super) fn stores_are_synchronised(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    // No round of the library's thread comes in between.
    scene.set("CXLRAID_MAP_PERIOD_MS", "60000");
    scene.run("python3", &[Path::new("-c"), Path::new(SYNCHRONISES), &scene.data("")]);
    for (name, expected) in [("syncfs", true), ("sync", true), ("fsync", true), ("nothing", false)] {
        let holds = |member: &std::path::PathBuf| {
            std::fs::read(scene.array.on_member(member).join(name)).is_ok_and(|bytes| bytes.get(100..106) == Some(b"stored"))
        };
        if scene.array.members.iter().any(holds) != expected {
            let found = if expected { "lack" } else { "have, so that this case proves nothing," };
            complaints.push(format!("after {name} the members' files {found} what another process has stored"));
        }
    }
    Ok(Outcome::Ran)
}

/// Gives what is open a name through a symlink of the array that leads to a directory on the
/// members' file system.
const NAMES_OUTSIDE: &str = r#"
import ctypes, errno, os, sys
data, outside = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(data)
os.symlink(outside, "out")
named = os.open("file", os.O_RDWR)
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR)
os.write(unnamed, b"bytes")
os.symlink("/proc/self/fd/%d" % named, outside + "/link")
os.symlink(outside + "/link", "round")
def told(name, base, path, flags):
    answers = []
    for goal in "out/new", "out/none/new", "out/link", "out/link/..":
        done = libc.linkat(base, path.encode(), -100, goal.encode(), flags)
        answers.append(errno.errorcode[ctypes.get_errno()] if done else "done")
    print(name, *answers)
told("by its name", -100, "file", 0)
for name, number in ("named", named), ("unnamed", unnamed):
    told(name + " by its link", -100, "/proc/self/fd/%d" % number, 0x400)
    told(name + " by its number", number, "", 0x1000)
told("by a link to its link", -100, outside + "/link", 0x400)
told("by a link to that", -100, "round", 0x400)
print(os.listdir(outside), os.fstat(named).st_nlink, os.fstat(unnamed).st_nlink)
"#;

/// No file of a member gets a name outside the array, where whoever writes to it would reach that
/// member alone.
pub(super) fn names_outside(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let (data, outside) = (scene.array.place.data.clone(), scene.beside("outside"));
    std::fs::create_dir(&outside)?;
    let output = scene.run("python3", &[Path::new("-c"), Path::new(NAMES_OUTSIDE), &data, &outside]);
    let ways = [
        "by its name",
        "named by its link",
        "named by its number",
        "unnamed by its link",
        "unnamed by its number",
        "by a link to its link",
        "by a link to that",
    ];
    let told: String = ways.iter().map(|way| format!("{way} EXDEV ENOENT EEXIST ENOTDIR\n")).collect();
    let expected = Output { stdout: format!("{told}['link'] 1 0\n").into(), stderr: Vec::new(), status: "0".into() };
    compare("new names that symlinks lead out of the array", &expected, &output, complaints);
    std::fs::remove_dir_all(outside)?;
    Ok(Outcome::Ran)
}
