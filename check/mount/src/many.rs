//! More directories than the process that serves a mount has descriptors.

use crate::{
    Options,
    alone::{is_gone, says},
    ground::{Ground, succeed, wait, within},
    peer::{Peer, Programs},
};
use std::{
    fs,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The process may not raise its limit, which is far below the number of directories.
const LIMITED: [&str; 3] = ["prlimit", "--nofile=256:256", "--"];

/// What is done in a directory, `$1`, with 2,070 directories. What it says must be the same as on a
/// plain one.
const WORK: &str = r#"
cd "$1" || exit
all=$(seq 0 44)
for a in $all; do
    mkdir d$a $(seq -f d$a/s%g 0 44) || exit
    for b in $all; do echo $a/$b >d$a/s$b/first || exit; done
done
find . | wc -l
ls -lR . | grep -c first
for a in $all; do for b in $all; do echo later >d$a/s$b/second || exit; done; done
for a in $all; do mv d$a/s$a d$(((a + 1) % 45))/moved$a || exit; done
for a in $all; do mv d$a e$a || exit; done
cat e*/s*/first e*/moved*/first e*/s*/second | cksum
for a in $all; do
    some=$(for b in $(seq 0 3 44); do [ $a = $b ] || echo e$a/s$b; done)
    rm $(echo "$some" | sed 's:$:/first:') $(echo "$some" | sed 's:$:/second:') && rmdir $some || exit
done
rmdir e1 2>&1 | sed 's/.*: //'
find . | sort | cksum
cat e*/*/first | cksum
"#;

/// Root's daemon, which may open directories by their file handles.
pub(crate) fn as_root(options: &Options, programs: &Programs) -> Result<(), String> {
    mounted(options, programs, "--bounding-set=-sys_resource")
}

/// A daemon that may not, as in a container.
pub(crate) fn by_names(options: &Options, programs: &Programs) -> Result<(), String> {
    mounted(options, programs, "--bounding-set=-sys_resource,-dac_read_search")
}

/// That of a mount without root.
pub(crate) fn without_root(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "5", 3)?;
    fs::create_dir(ground.data()).map_err(|error| error.to_string())?;
    let expected = on_plain(&ground)?;
    let mut command = ground.alone(&programs.handed.display().to_string());
    command.args(["e", "/bin/sh", "-c", WORK, "sh"]).arg(ground.data());
    let without = ["setpriv", "--bounding-set=-sys_admin,-sys_resource", "--inh-caps=-all"];
    says(&mut within(&[&without[..], &LIMITED[..]].concat(), &command), &expected)?;
    is_gone(&ground)?;
    ground.conclude()
}

/// The lines that the work prints on a plain directory.
fn on_plain(ground: &Ground<'_>) -> Result<String, String> {
    let plain = ground.path("plain");
    fs::create_dir(&plain).map_err(|error| error.to_string())?;
    let output = Command::new("sh").args(["-c", WORK, "sh"]).arg(&plain).output().map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn mounted(options: &Options, programs: &Programs, rights: &str) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let expected = on_plain(&ground)?;
    let (data, root) = (ground.data().display().to_string(), ground.mounted());
    ground.mount_by(&[&["setpriv", rights][..], &LIMITED[..]].concat(), &root, &[])?;
    says(Command::new("sh").args(["-c", WORK, "sh"]).arg(&root), &expected)?;
    let look = |line: &str| succeed(Command::new("sh").args(["-c", line]).current_dir(&root));
    let on_other_door = |line: &str| {
        let line = format!("cd {data} && {line}");
        ground.run(Command::new("sh").args(["-c", &line]))
    };
    // The descriptors of what these programs work in, and have open, are closed meanwhile.
    let rest = || look("find . -type d -exec stat -c %n {} + >/dev/null && ls -R . >/dev/null");
    let mut peers = Vec::new();
    for directory in ["e3/s7", "e4/s5", "e6/s7", "e8/s5", "e9/s4"] {
        let mut peer = ground.through_mount()?;
        says_to(&mut peer, "o 1 @/e12/s1/first r", "0")?;
        says_to(&mut peer, &format!("D @/{directory}"), "0")?;
        peers.push(peer);
    }
    rest()?;
    on_other_door("mv e3 f3 && mv e4/s5 e5/away && mkdir e4/s5 && rm -r e6/s7 && mkdir e6/s7 && mv e9 f9 && mv f9/s4 f9/s100")?;
    on_other_door("mkdir -p up/up && mv f9 up/up && mv e12/s1/first up/first && : >e12/s1/first")?;
    rest()?;
    for peer in &mut peers {
        says_to(peer, "r 1 0 4", "12/1")?;
        says_to(peer, "z 1", "5")?;
    }
    // They are where they were, whatever has their names.
    for (index, place) in [(0, "f3/s7"), (1, "e5/away"), (3, "e8/s5"), (4, "up/up/f9/s100")] {
        says_to(&mut peers[index], "o 0 here wc", "0")?;
        says_to(&mut peers[index], "w 0 0 text", "4")?;
        on_other_door(&format!("test \"$(cat {place}/here)\" = text"))?;
        says_to(&mut peers[index], "d inner", "0")?;
        rest()?;
        says_to(&mut peers[index], "s inner", "40755 0")?;
    }
    // Another directory is not taken for one that is gone.
    let gone = peers[2].ask("o 0 here wc")?;
    if !matches!(gone.as_str(), "E116" | "E2") {
        return Err(format!("a file was made in a directory that is gone: {gone}"));
    }
    on_other_door("test -z \"$(ls e6/s7)\"")?;
    // The member that answers is lost.
    rest()?;
    fs::rename(ground.path("m0"), ground.path("away")).map_err(|error| error.to_string())?;
    on_other_door("mv f3 g3 && mv e5/away e7/away")?;
    for (index, place) in [(0, "g3/s7"), (1, "e7/away"), (3, "e8/s5"), (4, "up/up/f9/s100")] {
        says_to(&mut peers[index], "o 0 after wc", "0")?;
        on_other_door(&format!("test -f {place}/after"))?;
    }
    rest()?;
    drop(peers);
    let names = ground.path("names").display().to_string();
    let list =
        |at: &Path| format!("cd {} && find . | sort >{names}.$$; cksum <{names}.$$ >>{names}; rm {names}.$$", at.display());
    look(&list(&root))?;
    on_other_door(&list(Path::new(&data)))?;
    let sums = fs::read_to_string(&names).map_err(|error| error.to_string())?;
    match sums.lines().collect::<Vec<_>>()[..] {
        [one, other] if one == other => {}
        _ => return Err(format!("the doors list different names: {sums}")),
    }
    ground.unmount()?;
    wait(|| ground.good(&["stop", ground.name()]).is_ok())
}

/// Programs work in directories, each in the next one, that the other door removes. A daemon that may
/// not open directories by their file handles searches for them, and is done with that soon.
pub(crate) fn removed(options: &Options, programs: &Programs) -> Result<(), String> {
    const DEPTH: usize = 20;
    /// Far longer than one search takes, and far shorter than one for each directory of each path.
    const LIMIT: Duration = Duration::from_secs(2);
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let (data, root) = (ground.data().display().to_string(), ground.mounted());
    let rights = ["setpriv", "--bounding-set=-sys_resource,-dac_read_search"];
    ground.mount_by(&[&rights[..], &LIMITED[..]].concat(), &root, &[])?;
    let on_other_door = |line: &str| {
        let line = format!("cd {data} && {line}");
        ground.run(Command::new("sh").args(["-c", &line]))
    };
    on_other_door("for a in $(seq 0 44); do mkdir d$a $(seq -f d$a/s%g 0 44) || exit; done")?;
    let deepest = "/chain".repeat(DEPTH);
    succeed(Command::new("mkdir").arg("-p").arg(format!("{}{deepest}", root.display())))?;
    let mut peers = Vec::new();
    for depth in [DEPTH, DEPTH, DEPTH - 1] {
        let mut peer = ground.through_mount()?;
        says_to(&mut peer, &format!("D @{}", "/chain".repeat(depth)), "0")?;
        peers.push(peer);
    }
    let look = "find . -maxdepth 2 -type d -exec stat -c %n {} + >/dev/null && ls -R d* >/dev/null";
    succeed(Command::new("sh").args(["-c", look]).current_dir(&root))?;
    on_other_door("rm -r chain")?;
    for mut peer in peers {
        // A call that the mount does not answer cannot be killed.
        let (done, is_done) = mpsc::channel();
        let begun = Instant::now();
        thread::spawn(move || done.send(peer.ask("s .")));
        match is_done.recv_timeout(5 * LIMIT) {
            Ok(Ok(answer)) if begun.elapsed() < LIMIT && matches!(answer.as_str(), "E116" | "E2") => {}
            answer => return Err(format!("a directory that is gone gave {answer:?} after {:?}", begun.elapsed())),
        }
    }
    ground.unmount()?;
    ground.conclude()
}

fn says_to(peer: &mut Peer, line: &str, expected: &str) -> Result<(), String> {
    let answer = peer.ask(line)?;
    if answer == expected { Ok(()) } else { Err(format!("'{line}' gave {answer}, not {expected}")) }
}
