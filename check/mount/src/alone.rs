//! `cxlraid run --mount`: a mount that one program and those that it starts see.

use crate::{
    Options,
    ground::{Ground, wait, within},
    peer::{Peer, Programs},
};
use std::{
    fs,
    io::Read as _,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::Path,
    process::{Command, Output, Stdio},
};

/// A scene whose error begins so could not be run, which is neither success nor failure.
pub(crate) const NOT_RUN: &str = "NOT RUN: ";

/// What a shell under the library and static programs do with an array at `$1`, each seeing what the
/// other has done. `$2` is the static peer, `$3` the static program that is handed descriptors.
const BOTH: &str = r#"
at=$1 peer=$2 handed=$3
cd "$at" || exit
echo from the library >a
printf 'o 0 %s/a w\nr 0 0 16\nw 0 0 STAT\no 1 %s/b wc\nw 1 0 made\n' "$at" "$at" | env -i "$peer"
cat a b; echo
{ echo before; "$handed" w1; echo after; } >c; cat c
mkdir sub; cd sub; "$handed" p mmade; ls; cd ..
rm b
printf 'o 0 %s/c wa\nw 0 0 more\no 1 %s/b r\n' "$at" "$at" | "$peer"
cat c; echo; ls
"#;
/// What comes of it, with the array's directory in the place of `@`.
const BOTH_SAYS: &str = "0\nfrom the library\n4\n0\n4\nSTAT the library\nmade\nbefore\nstatic\nafter\n\
                         in @/sub\nmmade 0 \nmade\n0\n4\nE2\nbefore\nstatic\nafter\nmore\na\nc\nsub\n";

/// Sends `$1` to the process that serves the mount of the array `$2`.
const SERVING: &str = r#"
signal() {
    for process in /proc/[0-9]*; do
        case $({ tr '\0' ' ' <$process/cmdline; } 2>/dev/null) in "cxlraid mount --foreground"*" --private "*"-- $2 ") kill -$1 ${process#/proc/};; esac
    done
}
"#;

/// Kills it: `$2` is the static peer, `$5` the array's name.
const KILLED: &str = r#"
at=$1 peer=$2 name=$5
echo kept >"$at/kept"
signal KILL "$name"
until printf 'o 0 %s/kept r\n' "$at" | "$peer" | grep -x E107; do sleep 0.01; done
echo on >"$at/on"; cat "$at/kept" "$at/on"
"#;

/// Asks it to end, which it does with the mount. `$1` is the array's directory.
const ASKED: &str = r#"
signal TERM "$5"; signal INT "$5"; signal HUP "$5"; sleep 0.3
printf 'o 0 %s/asked wc\nw 0 0 served\n' "$1" | "$2"; cat "$1/asked"; echo
"#;

/// What a program that the library does not serve does with an array at `$1`, and what comes of it.
const BY_MOUNT: &str = r#"
grep -c libcxlraid /proc/self/maps; stat -f -c %T "$1"
cd "$1" && mkdir -p sub && echo made >sub/made && cat sub/made && ls"#;
const BY_MOUNT_SAYS: &str = "0\nfuseblk\nmade\nsub\n";

/// Leaves the namespace with things of the array open, the last one in it, and goes on as a program
/// (`$2` and what follows).
const LEAVES: &str = r#"
cd "$1/sub" && echo first >file && exec 3<. 4<file 5>>file && shift && exec unshare --mount "$@""#;
/// What that program does.
const HAS_LEFT: &str = r#"
echo second >&5; cat <&4; echo third >>file; cat file; pwd; ls; ls /proc/self/fd/3/; rm file"#;
const HAS_LEFT_SAYS: &str = "first\nsecond\nfirst\nsecond\nthird\n@/sub\nfile\nmade\nfile\nmade\n";

/// This is what root gets: a mount namespace alone.
pub(crate) fn alone(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let data = ground.data();
    refused(&ground, "there is no such directory")?;
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    let at = data.display().to_string();
    let words = |ground: &Ground<'_>, script: &str| {
        let mut command = ground.alone("sh");
        command.args(["-c", script, "sh", &at]).args([&programs.fixed, &programs.handed, &options.command]).arg(ground.name());
        command
    };
    says(&mut words(&ground, BOTH), &BOTH_SAYS.replace('@', &at))?;
    is_gone(&ground)?;
    ends(&ground)?;
    says(&mut words(&ground, &[SERVING, KILLED].concat()), "E107\nkept\non\n")?;
    left_behind(&ground, programs)?;
    ended_by_force(&ground)?;
    // A program in the directory of the array stays in it, without the library too.
    let mut here = ground.alone(&programs.handed.display().to_string());
    says(here.args(["p", "mhere"]).current_dir(&data), &format!("in {at}\nmhere 0 \n"))?;
    // Another user, with that user's rights: a static program, which is stored on the array.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(data.parent().unwrap_or(Path::new("/")), open).map_err(|error| error.to_string())?;
    let other = r#"
        cp "$2" "$1/peer" && cd / || exit
        printf 'o 0 %s/a r\nr 0 0 4\no 1 %s/a w\no 1 %s/new wc\n' "$1" "$1" "$1" |
            setpriv --reuid 1 --regid 1 --clear-groups "$1/peer"
        rm "$1/peer""#;
    says(&mut words(&ground, other), "0\nSTAT\nE13\nE13\n")?;
    // That user is the first who changes anything through a mount.
    says(&mut words(&ground, r#"cp "$2" "$1/peer" && mkdir -m 777 "$1/open""#), "")?;
    let first = r#"printf 'o 0 %s/open/first wc\nw 0 0 made\n' "$1" | setpriv --reuid 1 --regid 1 --clear-groups "$1/peer""#;
    says(&mut words(&ground, first), "0\n4\n")?;
    says(&mut words(&ground, r#"cat "$1/open/first" && rm -r "$1/peer" "$1/open""#), "made")?;
    // One within another uses the outer one's.
    let inner = r#""$4" run --mount "$5" -- sh -c 'grep -c " $1 " /proc/self/mountinfo; cat "$1/on"' sh "$1""#;
    says(&mut words(&ground, inner), "1\non\n")?;
    // A mount that all see is used.
    ground.mount_at(&data, &["--allow-other"])?;
    says(
        &mut words(
            &ground,
            "grep -c \" $1 \" /proc/self/mountinfo; \"$3\" e /bin/cat $1/on; \"$4\" status $5 | grep -c alone; true",
        ),
        "1\non\n0\n",
    )?;
    ground.unmount()?;
    ground.conclude()
}

/// Programs leave the namespace for one with a copy of the mount. The namespace ends, the mount goes
/// on.
pub(crate) fn apart(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "5", 3)?;
    let data = ground.data();
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    let at = data.display().to_string();
    let handed = programs.handed.display().to_string();
    says(ground.alone(&handed).args(["n", "e", "/bin/sh", "-c", BY_MOUNT, "sh", &at]), BY_MOUNT_SAYS)?;
    // The library leaves it, with the members open there.
    let expected = HAS_LEFT_SAYS.replace('@', &at);
    let leaving = |words: &[&str]| {
        let mut command = ground.alone("sh");
        command.args(["-c", LEAVES, "sh", &at]).args(words).args(["-c", HAS_LEFT]);
        command
    };
    says(&mut leaving(&["sh"]), &expected)?;
    says(&mut leaving(&[&handed, "e", "/bin/sh"]), &expected)?;
    let mut peer = Peer::start(ground.alone(&programs.dynamic.display().to_string()), &data)?;
    for (line, expected) in [
        ("o 1 @/sub r", "0"),
        ("9", "0"),
        ("D @/sub", "0"),
        ("d inner", "0"),
        ("o 0 new wc", "0"),
        ("w 0 0 text", "4"),
        ("s @/sub/new", "100644 4"),
        ("D inner", "0"),
        ("o 0 new wc", "0"),
        ("w 0 0 text", "4"),
        ("s @/sub/inner/new", "100644 4"),
    ] {
        let answer = peer.ask(line)?;
        if answer != expected {
            return Err(format!("after it has left its namespace {line:?} gave {answer:?}, not {expected:?}"));
        }
    }
    let (id, status) = (peer.id(), ground.good(&["status", "--json", ground.name()])?);
    let processes = status.split_once("\"processes\": [").and_then(|(_, rest)| rest.split_once(']')).unwrap_or_default().0;
    if !processes.split(',').any(|process| process.trim() == id.to_string()) {
        return Err(format!("status knows processes {processes:?}, and not {id}"));
    }
    ground.refused(&["stop", ground.name()], &id.to_string())?;
    drop(peer);
    is_gone(&ground)?;
    ground.conclude()
}

/// The ways in which the command may be started, and what it leaves as it was.
pub(crate) fn started(options: &Options, programs: &Programs) -> Result<(), String> {
    let (ground, other) = (Ground::new(options, programs, "5", 3)?, Ground::new(options, programs, "1", 2)?);
    for ground in [&ground, &other] {
        fs::create_dir(ground.data()).map_err(|error| error.to_string())?;
    }
    let at = ground.data().display().to_string();
    let shell = |script: &str| {
        let mut command = ground.alone("sh");
        command.args(["-c", script, "sh", &at]).args([&programs.fixed, &programs.handed, &options.command]).arg(ground.name());
        command
    };
    let status = |names: &str| {
        let mut command = ground.alone("grep");
        command.args(["-E", names, "/proc/self/status"]);
        command
    };
    // SIGCHLD is ignored, and stays so; it is blocked, and none is pending.
    let mut ignored = within(&["env", "--ignore-signal=CHLD"], &status("^SigIgn:.*[13579bdf][0-9a-f]{4}$"));
    says(ignored.arg("--quiet"), "")?;
    let none = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";
    says(&mut within(&["env", "--block-signal=CHLD"], &status("^S.*Pnd")), none)?;
    // Rights that are handed on, and another array's journal.
    let rights = ["setpriv", "--inh-caps=-all,+chown", "--ambient-caps=-all,+chown"];
    says(&mut within(&rights, &status("^Cap(Inh|Amb)")), "CapInh:\t0000000000000001\nCapAmb:\t0000000000000001\n")?;
    says(shell("\"$3\" e /bin/ls \"$1\"; echo $CXLRAID_JOURNAL").env("CXLRAID_JOURNAL", "/none/such"), "\n")?;
    // The first process of a container.
    let script = format!("echo $$; \"$3\" e /bin/sh -c '{BY_MOUNT}' sh \"$1\"");
    let expected = format!("1\n{BY_MOUNT_SAYS}");
    says(&mut within(&["unshare", "--pid", "--fork", "--mount-proc"], &shell(&script)), &expected)?;
    // A service manager asks all processes of a service to end.
    says(&mut shell(&[SERVING, ASKED].concat()), "0\n6\nserved\n")?;
    // The library of one array would serve the process that serves the other's mount.
    let inner = other.alone("echo");
    let variables = inner.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.display(), value?.display())));
    let mut outer = ground.alone("env");
    outer.args(variables).arg(inner.get_program()).args(inner.get_args());
    let output = outer.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(126) || !said.contains("say it outside of 'cxlraid run'") || said.lines().count() != 1 {
        return Err(format!("for another array it gave {}, and said {said:?}", output.status));
    }
    is_gone(&ground)?;
    ground.conclude()?;
    other.conclude()
}

/// Two static programs with a mount each and one that the library serves use an array at once. They see
/// each other's changes and locks, also when a member is lost, and when the last of them is killed
/// what it has stored in a mapping is not lost.
pub(crate) fn twice(options: &Options, programs: &Programs) -> Result<(), String> {
    const COUNT: usize = 200;
    let ground = Ground::new(options, programs, "5", 3)?;
    let data = ground.data();
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    let start = |program: &Path| Peer::start(ground.alone(&program.display().to_string()), &data);
    let mut peers = vec![start(&programs.fixed)?, start(&programs.fixed)?, start(&programs.dynamic)?];
    let play = |peers: &mut [Peer], steps: &[(usize, &str, &str)]| {
        steps.iter().try_for_each(|&(index, line, expected)| match peers[index].ask(line)? {
            answer if answer == expected => Ok(()),
            answer => Err(format!("program {index}: {line:?} gave {answer:?}, not {expected:?}")),
        })
    };
    let together = [
        (0, "o 0 @/file wc", "0"),
        // The kernel caches the file for the one, so that it may map it.
        (1, "o 0 @/file w", "E16"),
        (1, "o 0 @/file W", "0"),
        (1, "o 3 @/file r", "0"),
        (2, "o 0 @/file w", "0"),
        (0, "w 0 0 abcdef", "6"),
        (1, "r 3 0 9", "abcdef"),
        (1, "w 0 3 XYZW", "4"),
        (0, "r 0 0 9", "abcXYZW"),
        (2, "w 0 0 new", "3"),
        (0, "r 0 0 9", "newXYZW"),
        (1, "r 3 0 9", "newXYZW"),
        (1, "t 0 4", "0"),
        (0, "z 0", "4"),
        (0, "f 0 x", "0"),
        (1, "f 0 x", "E11"),
        (2, "f 0 x", "E11"),
        (0, "f 0 u", "0"),
        (1, "f 0 x", "0"),
        (0, "f 0 s", "E11"),
        (1, "f 0 u", "0"),
        (0, "l 0 x 0 4", "0"),
        (1, "l 0 x 2 1", "E11"),
        (2, "l 0 s 2 1", "E11"),
        (0, "l 0 u 0 0", "0"),
        (1, "l 0 x 2 1", "0"),
        (1, "m @/file @/moved", "0"),
        (0, "s @/moved", "100644 4"),
        (0, "s @/file", "E2"),
        (2, "s @/file", "E2"),
        (0, "o 1 @/log wc", "0"),
        (0, "o 2 @/mapped wc", "0"),
        (0, "t 2 8192", "0"),
        (0, "M 2 8192", "0"),
        (0, "S 2 0 before", "0"),
    ];
    play(&mut peers, &together)?;
    for (index, peer) in peers.iter_mut().enumerate() {
        peer.tell(&format!("C @/log who{index} {COUNT}"))?;
    }
    fs::rename(ground.path("m1"), ground.path("away")).map_err(|error| error.to_string())?;
    for peer in &mut peers {
        let answer = peer.answer()?;
        if answer != COUNT.to_string() {
            return Err(format!("appending gave {answer}"));
        }
    }
    let bytes = (3 * COUNT * "who0 000000 ..................\n".len()).to_string();
    let bytes = bytes.as_str();
    play(&mut peers, &[(0, "z 1", bytes), (1, "o 1 @/log r", "0"), (1, "z 1", bytes)])?;
    // One that starts when the member is lost.
    peers.push(start(&programs.fixed)?);
    play(&mut peers, &[(3, "o 1 @/log r", "0"), (3, "z 1", bytes), (3, "d @/sub", "0"), (2, "s @/sub", "40755 0")])?;
    peers.truncate(1);
    // Nobody asks for it to be written.
    play(&mut peers, &[(0, "8 2 5000 stored", "0")])?;
    drop(peers);
    is_gone(&ground)?;
    let mut looking = [ground.intercepted()?];
    let log = format!("100644 {bytes}");
    let left = [(0, "o 0 @/mapped r", "0"), (0, "r 0 0 6", "before"), (0, "r 0 5000 6", "stored"), (0, "s @/log", log.as_str())];
    play(&mut looking, &left)?;
    drop(looking);
    fs::rename(ground.path("away"), ground.path("m1")).map_err(|error| error.to_string())?;
    ground.good(&["stop", ground.name()])?;
    ground.good(&["rebuild", ground.name()])?;
    ground.conclude()
}

/// Where the system forbids namespaces nothing is begun, and a line says so.
pub(crate) fn forbidden(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "5", 3)?;
    let data = ground.data();
    fs::create_dir(&data).map_err(|error| error.to_string())?;
    // Limits of a user namespace count within it; who has no right to mount needs one more.
    let limit = |name: &str| format!("echo 0 >/proc/sys/user/max_{name}_namespaces; exec \"$@\"");
    let without_right = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
    for (limit, words, why) in [
        (limit("mnt"), &without_right[..0], "a mount namespace of its own is refused"),
        (limit("user"), &without_right[..], "user namespaces are used up or forbidden"),
    ] {
        let mut command = within(&["unshare", "--user", "--map-root-user", "sh", "-c", &limit, "sh"], &{
            let program = ground.alone("echo");
            if words.is_empty() { program } else { within(words, &program) }
        });
        let output = command.arg("started").stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_right = output.status.code() == Some(126) && output.stdout.is_empty() && said.lines().count() == 1;
        if !is_right || !said.contains(why) || !said.contains("'cxlraid mount' with --allow-other") {
            return Err(format!("{}, said {said:?} and not {why:?}", output.status));
        }
    }
    is_gone(&ground)?;
    // Root without the right to mount, where user namespaces are allowed.
    let expected = format!("{BY_MOUNT_SAYS}0\n");
    let script = format!("{BY_MOUNT}; stat -c %u sub/made");
    let mut command = ground.alone(&programs.handed.display().to_string());
    command.args(["e", "/bin/sh", "-c", &script, "sh"]).arg(&data);
    says(&mut within(&without_right, &command), &expected)?;
    is_gone(&ground)?;
    ground.conclude()
}

/// Without root: the user namespace of a user whose array it is.
pub(crate) fn without_root(options: &Options, programs: &Programs) -> Result<(), String> {
    let home = tempfile::Builder::new().prefix("alone.").tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
    let told = |error: std::io::Error| error.to_string();
    let path = |name: &str| home.path().join(name);
    for name in ["m0", "m1", "m2", "data", "dev", "state", "config"] {
        fs::create_dir(path(name)).map_err(told)?;
    }
    let programs = [&programs.fixed, &programs.handed, &options.command, &options.library];
    for (program, name) in programs.iter().zip(["peer", "handed", "cxlraid", "libcxlraid.so"]) {
        fs::copy(program, path(name)).map_err(told)?;
    }
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", AS_USER, "sh"])
        .arg(home.path())
        .args([BOTH, &[SERVING, KILLED].concat()])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    if output.status.code() == Some(99) {
        return Err(format!("{NOT_RUN}a user without rights may not make user namespaces here"));
    }
    let at = path("data").display().to_string();
    let expected = format!(
        "refused 126: cxlraid: {at}: there is no such directory\n{}E107\nkept\non\nstatus 7\n1234 1234\n0\nnobody may not\n4\nended\nstopped\n",
        BOTH_SAYS.replace('@', &at)
    );
    is_as_expected(&output, &expected)
}

/// `$1` is the home; `$2` and `$3` are scripts. The user is 1234.
const AS_USER: &str = r#"
home=$1 both=$2 killed=$3
umask 022
chmod 755 "$home" && chown 1234:1234 "$home" "$home"/* || exit
mount -t tmpfs -o mode=755 none "$home/dev" && mknod "$home/dev/fuse" c 10 229 && chmod 666 "$home/dev/fuse" || exit
mount --bind "$home/dev/fuse" /dev/fuse || exit
exec setpriv --reuid 1234 --regid 1234 --clear-groups --inh-caps=-all env HOME="$home" XDG_CONFIG_HOME="$home/config" \
    XDG_STATE_HOME="$home/state" CXLRAID_SYSTEM_ARRAYS="$home/system" CXLRAID_LIB="$home/libcxlraid.so" sh -c '
unshare --user true 2>/dev/null || exit 99
home=$1 command=$1/cxlraid mine=mine-$$
"$command" create "$mine" --level 5 --chunk 4K --at "$home/data" "$home/m0" "$home/m1" "$home/m2" >/dev/null 2>&1 || exit
alone() { "$command" run --mount "$mine" -- "$@"; }
scene() { script=$1; alone sh -c "$script" sh "$home/data" "$home/peer" "$home/handed" "$command" "$mine"; }
rmdir "$home/data"
said=$(alone true 2>&1); echo "refused $?: $(echo "$said" | cut -d, -f1)"
mkdir "$home/data"
scene "$2"
scene "$3"
alone sh -c "exit 7"; echo "status $?"
alone sh -c "echo \$(stat -c %u:%g $home/data/a | tr : \" \")"
alone "$home/handed" e /bin/sh -c "grep -c libcxlraid /proc/self/maps; chown 1 $home/data/a 2>&-" || echo nobody may not
alone grep -cE "^Cap(Inh|Prm|Eff|Amb):.0+\$" /proc/self/status
mountpoint -q "$home/data" || echo ended
"$command" stop "$mine" | sed "s/.*: //"
' sh "$home" "$both" "$killed"
"#;

/// Mounts the array `$2` at `$3` for all in a user namespace, asks the process to end, and mounts
/// once more.
const IN_NAMESPACE: &str = r#"
command=$1 name=$2 at=$3
mounted() { grep -c " $at " /proc/self/mountinfo; }
for signal in TERM INT; do
    "$command" mount --foreground "$name" "$at" >&2 &
    until [ "$(mounted)" = 1 ]; do sleep 0.02; done
    echo $signal >>"$at/file"
    serving=$!
    grep -h ^CapEff /proc/$serving/task/*/status | sort | uniq | wc -l
    # Threads that serve may not unmount; none has another right than that and to look into programs.
    grep -hE "^Cap(Eff|Prm)" /proc/$serving/task/*/status | grep -cvE "0000000000(08|28)0000$"
    kill -$signal $serving
    wait $serving
    echo "status $?, mounted $(mounted)"
done
"$command" mount "$name" "$at" >&2 && cat "$at/file" && mounted
"$command" unmount "$name" >&2
echo "status $?, mounted $(mounted)"
ls "$at"
"#;

/// `cxlraid mount` in a user namespace: a signal ends it, and `cxlraid unmount`, and neither leaves
/// a dead mount.
pub(crate) fn in_namespace(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "5", 3)?;
    let mounted = ground.mounted().display().to_string();
    let command = ground.command(&[ground.name(), &mounted]);
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_NAMESPACE, "sh"];
    let output = within(&words, &command).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let ended = "2
0
status 0, mounted 0
";
    let expected = format!(
        "{ended}{ended}TERM
INT
1
status 0, mounted 0
"
    );
    if said != expected {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}, said {said:?} and not {expected:?}; errors {errors:?}", output.status));
    }
    ground.good(&["stop", ground.name()])?;
    ground.conclude()
}

/// The program's end is that of the command: its status, the signal, and its number.
fn ends(ground: &Ground<'_>) -> Result<(), String> {
    let status = |script: &str| {
        let mut command = ground.alone("sh");
        command.args(["-c", script]).stdin(Stdio::null()).status().map_err(|error| error.to_string())
    };
    let (exit, signal) = (status("exit 7")?, status("kill -TERM $$")?);
    if exit.code() != Some(7) || signal.signal() != Some(15) {
        return Err(format!("exit 7 gave {exit}, SIGTERM {signal}"));
    }
    let none = ground.alone("/none/such").stderr(Stdio::null()).status().map_err(|error| error.to_string())?;
    if none.code() != Some(127) {
        return Err(format!("a program that is not there gave {none}"));
    }
    // It is the process that was started, and has no child that it does not know.
    let script = "echo $$; read -r own children </proc/$$/task/$$/children; echo $own";
    let mut command = ground.alone("sh");
    let child = command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let child = child.map_err(|error| error.to_string())?;
    let expected = format!("{}\n\n", child.id());
    is_as_expected(&child.wait_with_output().map_err(|error| error.to_string())?, &expected)
}

/// A program that is left behind keeps the mount, and the last one's end ends it.
fn left_behind(ground: &Ground<'_>, programs: &Programs) -> Result<(), String> {
    let mut command = ground.alone("sh");
    command.args(["-c", "exec 3<&0; \"$0\" <&3 & exit 0"]).arg(&programs.fixed);
    let mut left = Peer::start(command, &ground.data())?;
    if left.ask("o 0 @/left wc")? != "0" {
        return Err("what is left behind does not see the array".into());
    }
    // The program that the command has become has ended.
    left.await_end()?;
    ground.refused(&["stop", ground.name()], "in use by")?;
    if left.ask("w 0 0 late")? != "4" || left.ask("r 0 0 9")? != "late" {
        return Err("what is left behind does not see the array any more".into());
    }
    drop(left);
    is_gone(ground)
}

/// Nothing is left of a program that was killed, and `stop` waits for the process that serves its
/// mount, which here does not run for a while.
fn ended_by_force(ground: &Ground<'_>) -> Result<(), String> {
    let mut command = ground.alone("sleep");
    let mut child = command.arg("1000").spawn().map_err(|error| error.to_string())?;
    let mut serving = None;
    let begun = wait(|| {
        let text = ground.good(&["status", ground.name()]).unwrap_or_default();
        serving = text.split_once("alone: served by process ").and_then(|(_, rest)| rest.lines().next()?.parse::<u32>().ok());
        serving.is_some()
    });
    let signal = "kill -STOP $1; echo; sleep 0.5; kill -CONT $1";
    let words = ["-c", signal, "sh", &serving.unwrap_or_default().to_string()];
    let halted = begun.and_then(|()| {
        let halted = Command::new("sh").args(words).stdout(Stdio::piped()).spawn();
        let mut halted = halted.map_err(|error| error.to_string())?;
        let told = halted.stdout.as_mut().map(|told| told.read_exact(&mut [0]));
        told.transpose().map_err(|error| error.to_string()).map(|_| halted)
    });
    let killed = child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string());
    let mut halted = halted?;
    killed?;
    let gone = is_gone(ground);
    halted.wait().map_err(|error| error.to_string())?;
    gone
}

/// Nobody sees a mount, and the array can be stopped.
pub(crate) fn is_gone(ground: &Ground<'_>) -> Result<(), String> {
    let data = ground.data();
    if fs::read_dir(&data).map_err(|error| error.to_string())?.next().is_some() {
        return Err("the mount is seen outside".into());
    }
    // The command waits for the process that has served the mount.
    ground.good(&["stop", ground.name()]).map(drop)
}

/// `run --mount` is refused, and the program is not started.
fn refused(ground: &Ground<'_>, why: &str) -> Result<(), String> {
    let output = ground.alone("echo").arg("started").output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_right =
        output.status.code() == Some(126) && output.stdout.is_empty() && said.lines().count() == 1 && said.contains(why);
    if is_right { Ok(()) } else { Err(format!("{}, said {said:?} and not {why:?}", output.status)) }
}

pub(crate) fn says(command: &mut Command, expected: &str) -> Result<(), String> {
    is_as_expected(&command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?, expected)
}

fn is_as_expected(output: &Output, expected: &str) -> Result<(), String> {
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && text == expected && errors.is_empty() {
        return Ok(());
    }
    Err(format!("{}, said {text:?} and not {expected:?}; errors {errors:?}", output.status))
}
