//! `cxlraid mount` by two commands at once, and what `cxlraid run --mount` refuses.

mod bench;

use bench::Bench;

/// Runs in a mount namespace of its own: `$1` is the command.
const SCRIPT: &str = r#"
[ -c /dev/fuse ] || exit 99
command=$1
mkdir mnt
"$command" create db --level 5 --at /data m0 m1 m2 >/dev/null 2>&1 || exit 1
for round in 1 2 3 4 5 6 7 8; do
    for one in 1 2; do
        ("$command" mount db "$PWD/mnt" >/dev/null 2>err$one; echo $? >status$one) &
    done
    wait
    echo $(cat status1 status2 | sort) $(grep -c " $PWD/mnt " /proc/self/mountinfo) $(cat err1 err2)
    while grep -q " $PWD/mnt " /proc/self/mountinfo; do "$command" unmount "$PWD/mnt" >/dev/null || exit 1; done
done
"$command" stop db
"#;

#[test]
fn two_at_once_mount_one_directory_once() {
    let bench = Bench::new();
    let Some(output) = bench.with_own_mounts("two_at_once_mount_one_directory_once", SCRIPT, |_| {}) else { return };
    let place = bench.path("mnt").display().to_string();
    let round =
        format!("0 1 1 cxlraid: {place}: array db is mounted there already; say 'cxlraid unmount' and the directory first");
    let (text, says) = (bench::out(&output), bench::err(&output));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, [&[round.as_str(); 8][..], &["db: stopped"]].concat(), "{says}");
}

#[test]
fn a_mount_for_one_program_is_refused_before_it_starts() {
    let bench = Bench::new();
    let data = bench.path("data");
    let words = ["create", "db", "--level", "5", "--at", data.to_str().unwrap(), "m0", "m1", "m2"];
    assert!(bench.run(&words).status.success());
    // The library is looked for first; it need not be one.
    std::fs::write(bench.path("libcxlraid.so"), "").unwrap();
    let refused = |words: &[&str]| {
        let output = bench.command(words).env("CXLRAID_LIB", bench.path("libcxlraid.so")).output().unwrap();
        assert_eq!(bench::out(&output), "");
        (output.status.code(), bench::err(&output))
    };
    let run = ["run", "--mount", "db", "--", "echo", "started"];
    let line = |what: &str| (Some(126), format!("cxlraid: {}: {what}\n", data.display()));
    assert_eq!(refused(&run), line("there is no such directory, on which --mount could mount the array; make it"));
    std::fs::write(&data, "").unwrap();
    assert_eq!(refused(&run), line("is not a directory; put one there"));
    let (status, says) = refused(&["run", "--mount", "--", "echo", "started"]);
    assert!(status == Some(2) && says.contains("<NAME>") && says.lines().count() == 1, "{status:?}: {says}");
    let (status, says) = refused(&["run", "--mount", "none", "--", "echo", "started"]);
    assert!(status == Some(1) && says.contains("no array has this name"), "{status:?}: {says}");
}
