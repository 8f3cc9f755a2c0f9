//! Places of the array that a program would give the kernel for good, and mounts that somebody
//! outside has made in a member's tree.

use super::{
    Outcome,
    scene::{Scene, is_root},
    space::Mount,
};
use crate::{
    process::Output,
    report::{Complaints, compare, with_output},
};
use std::{fs, io, path::Path};

/// What `c/keeps.c` prints on an array.
const ANSWERS: &str = include_str!("given.txt");

/// Mounts, swap files, accounting, quotas, clones: refused, and no member goes out. Binding one
/// directory of the array onto another works.
pub(super) fn refused(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount"));
    }
    scene.make(complaints);
    let (keeps, host) = (scene.array.place.ground.assets.join("bin/keeps"), scene.beside("host"));
    fs::create_dir(&host)?;
    // What should not be refused is undone with the mount namespace.
    let arguments = [Path::new("-m"), &keeps, &scene.array.place.data, &host];
    let found = scene.run("unshare", &arguments);
    if found.stderr_text().contains("unshare failed") {
        return Ok(Outcome::NotRun("needs the right to make a mount namespace"));
    }
    let expected = Output { stdout: ANSWERS.into(), stderr: Vec::new(), status: "0".into() };
    compare("what would keep a place of the array", &expected, &Output { stderr: Vec::new(), ..found.clone() }, complaints);
    if found.stderr_text().matches("the kernel would take one member's; use a").count() < 20 {
        complaints.push(with_output("each refusal says what to do", &found));
    }
    scene.expect_content("file", "before\n", complaints);
    scene.expect_content("one/file", "one", complaints);
    let arguments = ["-m", "bash", "-c", BOUND].map(Path::new).into_iter().chain([scene.array.place.data.as_path()]);
    let found = scene.run("unshare", &arguments.collect::<Vec<_>>());
    if found.stdout != b"one\nfile\n" || !found.stderr.is_empty() {
        complaints.push(with_output("what is bound within the array, by relative paths", &found));
    }
    Ok(Outcome::Ran)
}

/// Binds a directory of the array onto another, and looks into it, all by paths from the working
/// directory.
const BOUND: &str = "export LIBMOUNT_FORCE_MOUNT2=always; cd \"$0\" && mkdir bound && mount -c --bind one bound && cat bound/file && echo && ls bound | grep file \
    && umount -c bound && ls bound && rmdir bound";

/// Changes of every kind below the mount: none may reach it, or any member.
const CHANGES: &str = r#"
cd "$1"; exec 2>/dev/null
for change in "cat d/x" "cp file d/x" "touch d/new" "mkdir d/sub" "rm d/y" "mv file d/moved" "mv d/y moved" "mv d dd" "ln file d/link" \
    "rm -r d" "chmod 700 d" "cp file file"; do
    $change && echo "$change works"
done
"#;

/// A file system that somebody outside mounts in a member's tree is no part of it, and the member
/// no less in use.
pub(super) fn foreign_mount(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    if !is_root() {
        return Ok(Outcome::NotRun("needs root, to mount"));
    }
    scene.make(complaints);
    let data = scene.array.place.data.clone();
    scene.run("bash", &[Path::new("-c"), Path::new("cd \"$0\" && mkdir d && echo x >d/x && echo y >d/y"), &data]);
    for slot in [0, 1] {
        let at = scene.member(slot).join(data.strip_prefix("/").unwrap_or(&data)).join("d");
        let mount = Mount::new(scene.array.place, &at, "tmpfs", "size=1m")?;
        scene.run("bash", &[Path::new("-c"), Path::new(CHANGES), Path::new("bash"), &data]);
        let found = scene.run("cat", &[&scene.data("d/x")]);
        let says = format!("{}: a file system is mounted there, in a member of the array, and is no part of it", at.display());
        if !found.stderr_text().contains(&says) || !found.stderr_text().contains("Input/output error") {
            complaints.push(with_output(&format!("it must say \"{says}\""), &found));
        }
        let relative = scene.run("bash", &[Path::new("-c"), Path::new("cd \"$0\" && exec cat d/x"), &data]);
        if !relative.stderr_text().contains("Input/output error") {
            complaints.push(with_output("a relative path below the mount", &relative));
        }
        if fs::read_dir(&at)?.next().is_some() {
            complaints.push(format!("something was made in what is mounted at {}", at.display()));
        }
        drop(mount);
        scene.expect_content("d/x", "x\n", complaints);
        scene.expect_content("d/y", "y\n", complaints);
        let names = scene.run("ls", &[&scene.data("d")]);
        if names.stdout != b"x\ny\n" {
            complaints.push(with_output("names after the mount is gone", &names));
        }
        let status = scene.array.command().arg("status").output();
        if !status.succeeded() {
            complaints.push(with_output("all members are in use", &status));
        }
    }
    Ok(Outcome::Ran)
}

/// The script [`DEEP`] prints these lines when it runs on an array.
const DEEP_ANSWERS: &str = "too deep: File name too long
create File name too long
mkdir File name too long
getcwd File name too long
rename File name too long
stat File name too long
a shell: tried
create by a descriptor File name too long
write 5
read b'before after'
create File name too long
create further up None
back before after
";
const DEEP: &str = include_str!("deep.py");

/// Directories that lie deeper than the kernel tells: what would act on one member alone is
/// refused.
pub(super) fn deep_directories(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let script = scene.beside("deep.py");
    fs::write(&script, DEEP)?;
    let found = scene.run("python3", &[&script, &scene.array.place.data]);
    let expected = Output { stdout: DEEP_ANSWERS.into(), stderr: Vec::new(), status: "0".into() };
    compare("directories that lie too deep", &expected, &found, complaints);
    Ok(Outcome::Ran)
}
