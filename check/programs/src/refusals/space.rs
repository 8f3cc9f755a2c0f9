//! Cases with a member that is full or read-only. On a full member the program's call fails with
//! ENOSPC, nothing is half written, and all members agree.

use super::{
    Case, Outcome,
    scene::{Scene, is_root, must},
};
use crate::{
    array::Shape,
    matrix,
    place::Place,
    process::{Output, without_notices},
    report::{Complaints, compare, short, with_output},
    snapshot,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const fn case(name: &'static str, shape: Shape) -> Case {
    Case { name, shape, act: full_member }
}

pub(super) const CASES: [Case; 9] = [
    case("member-full-journal", Shape::JOURNAL),
    Case { name: "member-read-only-0", shape: Shape::RAID5, act: first_read_only },
    Case { name: "member-read-only-1", shape: Shape::RAID5, act: later_read_only },
    Case { name: "mount-read-only", shape: Shape::RAID5, act: mount_read_only },
    case("member-full-1", Shape::RAID1),
    case("member-full-5", Shape::RAID5),
    case("member-full-6", Shape::RAID6),
    Case { name: "member-full-made", shape: Shape::RAID5, act: full_when_made },
    Case { name: "journal-full-made", shape: Shape::RAID5, act: no_room_for_the_journal },
];

/// What the script of the case prints.
const EXPECTED: &str = "\
write: ENOSPC
size is what was acknowledged: 1, something was: 1
wrong blocks: 0
within the file: 1000
dd: 1
No space left on device
big
folder
cp: 1
works again
";

/// A file system on a directory, unmounted when dropped.
pub(super) struct Mount<'a> {
    place: &'a Place<'a>,
    at: PathBuf,
}

impl<'a> Mount<'a> {
    pub(super) fn new(place: &'a Place<'a>, at: &Path, kind: &str, options: &str) -> io::Result<Self> {
        Self::of(Path::new("cxlraid-programs"), place, at, kind, options)
    }

    /// Mounts the file system that is in `source`.
    pub(super) fn of(source: &Path, place: &'a Place<'a>, at: &Path, kind: &str, options: &str) -> io::Result<Self> {
        place.ground.janitor.mounted(at);
        must(place.run("mount").args(["-t", kind, "-o", options]).arg(source).arg(at))?;
        Ok(Self { place, at: at.to_owned() })
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // If this fails, the janitor unmounts it.
        let _ = self.place.run("umount").arg(&self.at).output();
    }
}

/// Moves member `slot` to a directory on a file system of its own.
fn small_member<'a>(scene: &mut Scene<'a>, slot: usize, options: &str) -> io::Result<Mount<'a>> {
    let disk = scene.beside("disk");
    fs::create_dir(&disk)?;
    let mount = Mount::new(scene.array.place, &disk, "tmpfs", options)?;
    let member = disk.join(short(scene.member(slot)));
    fs::create_dir(&member)?;
    scene.array.members[slot] = member;
    Ok(mount)
}

fn full_member(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount a small tmpfs"));
    }
    // The journal lies on the first members of the array and takes 65 MiB of the member that is
    // made small.
    let has_journal = scene.array.shape.label == Shape::JOURNAL.label;
    let mount = small_member(scene, 1, if has_journal { "size=71m,mode=755" } else { "size=6m,mode=755" })?;
    scene.make(complaints);
    let removed = scene.run("rm", &[&scene.data("file")]);
    let array = &scene.array;
    let script = array.place.ground.assets.join("cases/space.sh");
    let output = array.run("bash").arg(script).output();
    let expected = Output { stdout: EXPECTED.into(), stderr: Vec::new(), status: "0".into() };
    compare("rm", &Output { status: "0".into(), ..Output::default() }, &removed, complaints);
    compare("with a full member", &expected, &output, complaints);
    matrix::check_host(array, complaints);
    let whole = snapshot::array(array);
    if !whole.succeeded() || !whole.stderr.is_empty() {
        complaints.push(with_output("reading afterwards", &whole));
    }
    matrix::check_members(array, &whole, complaints);
    for slot in 0..array.members.len() {
        array.lose(slot)?;
        let found = without_notices(snapshot::array(array));
        compare(&format!("files without member {slot}"), &whole, &found, complaints);
        array.bring_back(slot)?;
    }
    drop(mount);
    Ok(Outcome::Ran)
}

fn first_read_only(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    read_only(scene, 0, complaints)
}

fn later_read_only(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    read_only(scene, 1, complaints)
}

/// A member whose file system has made itself read-only is out, and the array works on.
fn read_only(scene: &mut Scene<'_>, slot: usize, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount a tmpfs"));
    }
    let mount = small_member(scene, slot, "size=20m,mode=755")?;
    scene.make(complaints);
    let remount = |how: &str| must(scene.array.place.run("mount").args(["-o", how]).arg(&mount.at));
    remount("remount,ro")?;
    scene.expect_warning(
        "written\n",
        &[&scene.shown(slot), "member has failed (read-only file system); the array is degraded"],
        complaints,
    );
    scene.expect_content("file", "before\nwritten\n", complaints);
    // The member that is writable again lacks what was written meanwhile, so the array must not
    // believe it.
    remount("remount,rw")?;
    scene.expect_content("file", "before\nwritten\n", complaints);
    drop(mount);
    Ok(Outcome::Ran)
}

/// A mount that is read-only for one program alone says nothing of the member: the program's start
/// is refused, and no member goes out.
fn mount_read_only(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount"));
    }
    scene.make(complaints);
    let member = scene.member(1).to_owned();
    must(scene.array.place.run("mount").arg("--bind").args([&member, &member]))?;
    scene.array.place.ground.janitor.mounted(&member);
    must(scene.array.place.run("mount").args(["-o", "remount,bind,ro"]).arg(&member))?;
    scene.expect_refusal("EROFS", &[&scene.shown(1), "read-only file system"], complaints);
    must(scene.array.place.run("umount").arg(&member))?;
    scene.expect_content("file", "before\n", complaints);
    let whole = snapshot::array(&scene.array);
    matrix::check_members(&scene.array, &whole, complaints);
    Ok(Outcome::Ran)
}

/// A new array on a member without room for the tables cannot be made: the call fails with ENOSPC,
/// and nothing is left behind.
fn full_when_made(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount a small tmpfs"));
    }
    let mount = small_member(scene, 2, "size=8k,mode=755")?;
    let output = scene.probe("file", "must not arrive");
    let says = output.stderr_text();
    if output.stdout != b"open: ENOSPC\n" || says.lines().count() != 1 || !says.contains(&scene.shown(2)) {
        complaints.push(with_output("making an array on a full member must fail with ENOSPC and name it", &output));
    }
    expect_untouched(scene, complaints);
    drop(mount);
    // Nothing was stored, so the next start begins anew.
    fs::create_dir(scene.member(2))?;
    scene.make(complaints);
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// A new array without room for the journal, on a member or elsewhere, cannot be made: the call
/// fails with ENOSPC, and nothing is left behind.
fn no_room_for_the_journal(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount a small tmpfs"));
    }
    let small = scene.beside("small");
    fs::create_dir(&small)?;
    let elsewhere = Mount::new(scene.array.place, &small, "tmpfs", "size=8m,mode=755")?;
    let member = small_member(scene, 1, "size=24m,mode=755")?;
    for (journal, at) in [
        (small.clone().into_os_string(), small.join("cxlraid.journal")),
        ("internal".into(), scene.member(1).join(".cxlraid/journal")),
    ] {
        scene.set("CXLRAID_JOURNAL", journal);
        let shown = [&at.display().to_string(), "cannot make a journal of 65 MiB: no space left on device", "make room there"];
        let output = scene.probe("file", "must not arrive");
        let says = output.stderr_text();
        let is_said = says.lines().count() == 1 && shown.iter().all(|part| says.contains(part));
        if output.stdout != b"open: ENOSPC\n" || !is_said {
            complaints
                .push(with_output("making an array without room for its journal must fail with ENOSPC and say where", &output));
        }
        expect_untouched(scene, complaints);
    }
    drop((member, elsewhere));
    fs::create_dir(scene.member(1))?;
    scene.make(complaints);
    scene.expect_content("file", "before\n", complaints);
    Ok(Outcome::Ran)
}

/// Complains of every member that has `.cxlraid`, since no array was made.
fn expect_untouched(scene: &Scene<'_>, complaints: &mut Complaints) {
    for member in scene.array.present().filter(|member| member.join(".cxlraid").exists()) {
        complaints.push(format!("{} was left half made", member.display()));
    }
}
