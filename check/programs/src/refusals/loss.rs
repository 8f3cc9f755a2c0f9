//! What programs see that were started after the loss of the lowest member, and have descriptors
//! and a directory from before.

use super::{
    Outcome,
    scene::{Scene, is_root, must},
    space::Mount,
};
use crate::{
    process::{Output, without_notices},
    report::{Complaints, compare, with_output},
};
use std::{fs, io, path::Path};

const SCRIPT: &str = r#"
cd "$1" && mkdir sub && cd sub || exit
exec 3>>../log
/bin/echo before >&3
mv "$2" "$2.away"
for number in 1 2 3; do /bin/echo line $number >&3; done
/bin/pwd
mv ../log ../moved
/bin/echo after >&3
/bin/cat ../moved
exec 2>>../errors
/bin/cat none
mv "$2.away" "$2"
"#;

/// What a shell hands to its children after the loss is the array's: nothing that they write is
/// lost, and no path of a member is seen.
pub(super) fn inherited(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let data = scene.data("file").with_file_name("");
    let found = scene.run("bash", &[Path::new("-c"), Path::new(SCRIPT), Path::new("bash"), &data, scene.member(0)]);
    let directory = data.join("sub");
    let stdout = format!("{}\nbefore\nline 1\nline 2\nline 3\nafter\n", directory.display());
    let expected = Output { stdout: stdout.into(), stderr: found.stderr.clone(), status: "0".into() };
    compare("a shell and its children", &expected, &found, complaints);
    // Where standard error is a file of the array, our own lines are not among the program's.
    scene.expect_content("errors", "/bin/cat: none: No such file or directory\n", complaints);
    Ok(Outcome::Ran)
}

const REFUSED: &str = r#"
cd "$1" && mkdir refused && cd refused || exit
echo before >log && exec 3>>log 4<log && echo other >there || exit
# No program can start on the array any more, and what this one has of it goes on.
for member in "$2" "$3"; do mv "$member/.cxlraid/superblock" "$member/.cxlraid/away" && : >"$member/.cxlraid/superblock"; done
/bin/echo lost >&3
echo "append: $?"
/bin/cat <&4
echo "read: $?"
/bin/dd if=/dev/zero bs=1 count=1 status=none >&3
echo "dd: $?"
/bin/touch new
echo "make: $?"
/bin/cat there
echo "open: $?"
echo after >>log
echo "own: $?"
for member in "$2" "$3"; do mv "$member/.cxlraid/away" "$member/.cxlraid/superblock"; done
/bin/cat log
/bin/ls
"#;

/// A program inherits descriptors and a working directory of the array, and its own start is
/// refused: its calls on them fail with EIO, and change nothing on any member.
pub(super) fn refused(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let data = scene.data("file").with_file_name("");
    let found =
        scene.run("bash", &[Path::new("-c"), Path::new(REFUSED), Path::new("bash"), &data, scene.member(0), scene.member(1)]);
    let stdout = "append: 1\nread: 1\ndd: 1\nmake: 1\nopen: 1\nown: 0\nbefore\nafter\nlog\nthere\n";
    let expected = Output { stdout: stdout.into(), stderr: found.stderr.clone(), status: "0".into() };
    compare("children whose start is refused", &expected, &found, complaints);
    // Each of the five programs says that its call failed with EIO, and the library says why, once
    // for each.
    let text = found.stderr_text();
    let counts = [text.matches("cxlraid: ").count(), text.matches("Input/output error").count()];
    if counts != [5, 5] {
        complaints.push(with_output(
            &format!("{counts:?} lines of the library and of programs that failed with EIO, must be 5 each"),
            &found,
        ));
    }
    for slot in 0..scene.array.members.len() {
        let backing = fs::read(scene.member(slot).join(scene.data("refused/log").strip_prefix("/").unwrap_or(Path::new(""))))?;
        if backing.windows(4).any(|part| part == b"lost") {
            complaints.push(format!("member {slot} holds what a program wrote whose start was refused"));
        }
    }
    Ok(Outcome::Ran)
}

/// What the kernel holds for a program (descriptors of every kind, directories, watches, texts,
/// links under /proc) serves it as on a plain directory while its lowest member is gone and nobody
/// has noticed.
pub(super) fn held(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let (script, plain) = (scene.beside("held.py"), scene.beside("plain"));
    fs::write(&script, include_str!("held.py"))?;
    fs::create_dir(&plain)?;
    let expected = scene.run("python3", &[&script, &plain, Path::new("-")]);
    let data = scene.data("file").with_file_name("data");
    let made = scene.run("mkdir", &[&data]);
    let found = scene.run("python3", &[&script, &data, scene.member(0)]);
    if !made.succeeded() || !expected.succeeded() {
        complaints.push(with_output("the reference", &expected));
    }
    compare("what was held over a loss", &expected, &without_notices(found), complaints);
    fs::remove_dir_all(&plain)?;
    fs::remove_file(&script)?;
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}

/// A lock that was taken before the loss excludes whom it excludes on a plain directory: of every
/// kind, held by processes that live, died or executed another program, and by a shell's
/// descriptor; and so does a lock that was taken after it.
pub(super) fn locks(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let script = scene.beside("locks.py");
    fs::write(&script, include_str!("locks.py"))?;
    let directory = scene.data("file").with_file_name("");
    let expected = Output { stdout: "done\n".into(), stderr: Vec::new(), status: "0".into() };
    let healthy = scene.run("python3", &[&script, &directory, Path::new("-")]);
    compare("locks without a loss", &expected, &healthy, complaints);
    let degraded = scene.run("python3", &[&script, &directory, scene.member(0)]);
    compare("locks over a loss", &expected, &without_notices(degraded), complaints);
    fs::remove_file(&script)?;
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}

/// What was stored through mappings before the loss was seen is seen by everybody afterwards, and
/// so is what is stored then.
pub(super) fn mapped(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    const PERIOD: &str = "3600000";
    scene.set("CXLRAID_MAP_PERIOD_MS", PERIOD);
    scene.make(complaints);
    let (script, plain) = (scene.beside("mapped.py"), scene.beside("plain"));
    fs::write(&script, include_str!("mapped.py"))?;
    fs::create_dir(&plain)?;
    let expected = scene.run("python3", &[&script, &plain, Path::new("-")]);
    if !expected.succeeded() || expected.stdout.is_empty() {
        complaints.push(with_output("the reference", &expected));
    }
    let directory = scene.data("file").with_file_name("");
    let found = scene.run("python3", &[&script, &directory, scene.member(0)]);
    compare("stores through mappings over a loss", &expected, &without_notices(found), complaints);
    fs::remove_dir_all(&plain)?;
    fs::remove_file(&script)?;
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}

pub(super) fn first_shut(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    shut(scene, 0, complaints)
}

pub(super) fn later_shut(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    shut(scene, 1, complaints)
}

/// A member's file system is shut down under a program: what it maps and hands on from then on
/// comes from the others.
fn shut(scene: &mut Scene<'_>, slot: usize, complaints: &mut Complaints) -> io::Result<Outcome> {
    const IMAGE_BYTES: u64 = 64 << 20;
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount an ext4 file system"));
    }
    let (image, disk) = (scene.beside("image"), scene.beside("disk"));
    fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
    fs::create_dir(&disk)?;
    must(scene.array.place.run("mkfs.ext4").arg("-q").arg(&image))?;
    let Ok(mount) = Mount::of(&image, scene.array.place, &disk, "ext4", "loop") else {
        return Ok(Outcome::NotRun("needs loop devices, to mount an ext4 file system"));
    };
    let member = disk.join("member");
    fs::create_dir(&member)?;
    scene.array.members[slot] = member;
    scene.make(complaints);
    let (script, plain) = (scene.beside("shut.py"), scene.beside("plain"));
    fs::write(&script, include_str!("shut.py"))?;
    fs::create_dir(&plain)?;
    let expected = scene.run("python3", &[&script, &plain, Path::new("-")]);
    if !expected.succeeded() || expected.stdout.is_empty() || expected.stdout_text().contains("False") {
        complaints.push(with_output("the reference", &expected));
    }
    let directory = scene.data("file").with_file_name("");
    let found = scene.run("python3", &[&script, &directory, &disk]);
    compare("a file system that is shut down under a program", &expected, &without_notices(found), complaints);
    drop(mount);
    for made in [&script, &image] {
        fs::remove_file(made)?;
    }
    fs::remove_dir_all(&plain)?;
    Ok(Outcome::Ran)
}

/// The first program after a loss says so, and no other does.
pub(super) fn told_once(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    scene.array.lose(0)?;
    for expected in [1, 0, 0] {
        let found = scene.run("cat", &[&scene.data("file")]);
        let text = String::from_utf8_lossy(&found.stderr).into_owned();
        let count = text.lines().filter(|line| line.contains("is missing (no such directory); the array is degraded")).count();
        if !found.succeeded() || count != expected {
            complaints.push(format!("{count} lines instead of {expected} about the loss, exit status {}: {text}", found.status));
        }
    }
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}
