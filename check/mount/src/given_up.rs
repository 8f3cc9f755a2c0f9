//! Programs that are executed by processes which have given up root's rights, and may not use the
//! array: what they inherit is the mount's, and its names are closed to them.

use crate::{
    Options,
    ground::{Ground, succeed},
    handed::{compare, run, tools},
    peer::Programs,
};
use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

/// Becomes the user that it names, and executes what comes behind. `true` must succeed by it, or the
/// machine lacks it.
const WAYS: [(&str, &[&str]); 4] = [
    ("setpriv", &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"]),
    ("runuser", &["runuser", "-u", "nobody", "--", "sh", "-c"]),
    ("su", &["su", "-s", "/bin/sh", "nobody", "-c"]),
    ("sudo", &["sudo", "-n", "-u", "nobody", "sh", "-c"]),
];

/// `u` executes a command of sh as a user without rights. `$S` is a static program.
const SCRIPT: &str = r#"
u 'echo one; echo two' >out; cat out
printf 'one\ntwo\nthree\n' >in; chmod 600 in
u 'read -r a; echo "<$a>"; cat' <in
u cat <in >copy; cat copy
{ u 'read -r a; echo "<$a>"'; read -r b; echo "<$b>"; u cat; } <in
u 'echo more' >>out; cat out
{ u 'echo a'; echo b; u 'echo c; (echo d); echo e'; echo f; } >both; cat both
exec 7<>rw; echo hello world >&7; u 'echo by seven >&7'; echo after >&7; cat rw; exec 7>&-
echo old >gone; exec 7<gone; rm gone; u 'cat <&7' ; exec 7<&-
u "cat '$PWD/in'" 2>/dev/null || echo closed
u "echo x >'$PWD/out'" 2>/dev/null || echo closed
u "'$S' w1; '$S' w1; echo end" >static; cat static
u "'$S' h0; cat" <in
head -c 3000000 /dev/zero | tr '\0' x >large; u 'cat' <large >copy; cmp large copy
"#;

/// A process that has given up rights starts several programs, and goes on.
const SEVERAL: &str = r#"python3 -u -c '
import os
fd = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
plain = os.open("plain", os.O_RDWR | os.O_CREAT, 0o600)
closed = os.open("closed", os.O_WRONLY | os.O_CREAT, 0o600)
for number in fd, plain, closed:
    os.set_inheritable(number, True)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.close(closed)
def start():
    if os.fork() == 0:
        os.execv("/bin/sh", ["sh", "-c", "echo child >&%d; echo again >&%d" % (fd, plain)])
    os.wait()
start(); os.write(plain, b"between\n"); start()
try:
    os.execv("/nonexistent", ["nothing"])
except FileNotFoundError:
    os.write(fd, b"failed\n"); os.write(plain, b"failed\n")
start(); os.write(fd, b"last\n"); os.write(plain, b"last\n")
'; cat log plain"#;

/// Lets everybody into the directories above the array, and nobody into its members.
fn open_ways(ground: &Ground<'_>) -> Result<(), String> {
    let mode = |name: &str, mode| fs::set_permissions(ground.path(name), fs::Permissions::from_mode(mode));
    mode("", 0o755).and_then(|()| mode("data", 0o755)).map_err(|error| error.to_string())?;
    ["m0", "m1", "m2"].iter().try_for_each(|name| mode(name, 0o700)).map_err(|error| error.to_string())
}

/// What a program inherits that may not use the array is the mount's, if other users may use that.
pub(crate) fn given_up(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    let mut tools = tools(&ground, programs)?;
    open_ways(&ground)?;
    let fixed = ground.path("fixed");
    fs::copy(&tools.fixed, &fixed).map_err(|error| error.to_string())?;
    tools.fixed = fixed;
    ground.mount_at(&ground.data(), &["--allow-other"])?;
    for (name, words) in WAYS {
        if succeed(Command::new(words[0]).args(&words[1..]).arg("true")).is_err() {
            println!("NOT RUN: {name}: it is not there, or does not work here");
            continue;
        }
        let script = format!("u() {{ {} \"$1\"; }}\n{SCRIPT}", words.join(" "));
        compare(&ground, &tools, &script).map_err(|why| format!("{name}: {why}"))?;
    }
    compare(&ground, &tools, SEVERAL).map_err(|why| format!("several programs: {why}"))?;
    ground.unmount()?;
    // Without a mount such a program's calls are answered by an error, and nothing is stored on one
    // member alone.
    let script = "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'echo lost' >unmounted; echo $?; wc -c <unmounted";
    let output = run(&ground, &tools, &ground.data(), script, true)?;
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !said.ends_with("\n0\n") || said.starts_with("0\n") || !told.contains("cxlraid:") {
        return Err(format!("without a mount: it said {said:?} and {told:?}"));
    }
    ground.conclude()
}
