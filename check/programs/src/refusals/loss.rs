//! What programs see that were started after the loss of the lowest member, and have descriptors and a directory from before.

use super::{Outcome, scene::Scene};
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

/// What a shell hands to its children after the loss is the array's: nothing that they write is lost, and no path of a member is seen.
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

/// What the kernel holds for a program (descriptors of every kind, directories, watches, texts, links under /proc) serves it as on a plain directory while its lowest member is gone
/// and nobody has noticed.
pub(super) fn held(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    let (script, plain) = (scene.beside("held.py"), scene.beside("plain"));
    fs::write(&script, include_str!("held.py"))?;
    fs::create_dir(&plain)?;
    let expected = scene.run("python3", &[&script, &plain, Path::new("-")]);
    let data = scene.data("file").with_file_name("data");
    let made = scene.run("mkdir", &[&data]);
    let found = scene.run("python3", &[&script, &data, scene.member(0)]);
    if !made.succeeded() || expected.stdout.is_empty() {
        complaints.push(with_output("the reference", &expected));
    }
    compare("what was held over a loss", &expected, &without_notices(found), complaints);
    fs::remove_dir_all(&plain)?;
    fs::remove_file(&script)?;
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}

/// A lock that was taken before the loss excludes whom it excludes on a plain directory: of every kind, held by processes that live, died or executed another
/// program, and by a shell's descriptor; and so does a lock that was taken after it.
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

/// What was stored through mappings before the loss was seen is seen by everybody afterwards, and so is what is stored then.
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

/// The first program after a loss says so, and no other does.
pub(super) fn told_once(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    scene.array.lose(0)?;
    for expected in [1, 0, 0] {
        let found = scene.run("cat", &[&scene.data("file")]);
        let text = String::from_utf8_lossy(&found.stderr).into_owned();
        let count = text.lines().filter(|line| line.contains("is missing; the array is degraded")).count();
        if !found.succeeded() || count != expected {
            complaints.push(format!("{count} lines instead of {expected} about the loss, exit status {}: {text}", found.status));
        }
    }
    scene.array.bring_back(0)?;
    Ok(Outcome::Ran)
}
