//! Programs that run without the library: they are given nothing of the array, or are not started.

use super::{
    Outcome,
    scene::{Scene, is_root},
};
use crate::{
    process::Output,
    report::{Complaints, compare, with_output},
};
use std::{io, path::Path};

/// Starts such a program in every way: by a shell, by a child that shares its parent's memory, in the place of its caller.
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
    scene.make(complaints);
    let alone = scene.array.place.ground.assets.join("bin/alone");
    // It begins as a program for another processor, and the kernel cannot execute it.
    let (bad, host) = (scene.beside("bad"), scene.beside("host"));
    std::fs::create_dir(&host)?;
    std::fs::write(&bad, [&b"\x7fELF"[..], &[0; 4096]].concat())?;
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
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
    let says = format!("{}: is linked statically and runs without cxlraid: it starts in /proc/tty/ldisc", alone.display());
    let lines = found.stderr_text().lines().filter(|line| line.contains(&says)).count();
    // By the shell, which has a file open, by the three children, by the last exec; the failed one says it of `bad`.
    if lines != 4 || !found.stderr_text().contains("1 open file of the array is closed for it, and it starts in") {
        complaints.push(with_output(&format!("{lines} lines say \"{says}\""), &found));
    }
    Ok(Outcome::Ran)
}

/// With `CXLRAID_UNREACHED=refuse` such a program is started only if it is given nothing of the array.
pub(super) fn refused(scene: &mut Scene<'_>, complaints: &mut Complaints) -> io::Result<Outcome> {
    scene.make(complaints);
    scene.set("CXLRAID_UNREACHED", "refuse");
    let alone = scene.array.place.ground.assets.join("bin/alone");
    let host = scene.beside("host");
    std::fs::create_dir(&host)?;
    let text = format!(
        "cd '{2}'; '{0}' | sed s/,.*//; cd '{1}'; '{0}'; echo $?; cd '{2}'; exec 3>>'{1}/log'; '{0}'; echo $?; pwd; echo open >&3",
        alone.display(),
        scene.array.place.data.display(),
        host.display()
    );
    let found = scene.run("bash", &[Path::new("-c"), Path::new(&text)]);
    let output = Output { stderr: Vec::new(), ..found.clone() };
    let host = host.display();
    let expected = format!("in {host}\n126\n126\n{host}\n");
    compare("refused programs", &Output { stdout: expected.into(), stderr: Vec::new(), status: "0".into() }, &output, complaints);
    if found.stderr_text().matches("refused, since it is linked statically").count() != 2 {
        complaints.push(with_output("each refusal is one line", &found));
    }
    scene.unset("CXLRAID_UNREACHED");
    scene.expect_content("log", "open\n", complaints);
    Ok(Outcome::Ran)
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
