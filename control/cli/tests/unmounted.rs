//! An empty directory on which a file system is to be mounted, and none is, does not become a
//! member: what was put there would be on another device, and covered by the mount.

mod bench;

use bench::{
    Bench, err,
    filled::{assert_bears, filled},
    out,
};
use std::fs;

/// Runs a script in which `$1` is the command, with a table of file systems of its own that has a
/// line for each of `points`.
fn with_table(test: &str, bench: &Bench, points: &[&str], script: &str) -> Option<String> {
    let line = |point: &&str| format!("none {} tmpfs defaults 0 0\n", bench.path(point).display());
    fs::write(bench.path("fstab"), points.iter().map(line).collect::<String>()).unwrap();
    let script = format!("mount --bind fstab /etc/fstab || exit 99; set -x; {script}");
    let done = bench.with_own_mounts(test, &script, |_| {})?;
    assert!(done.status.success(), "{}{}", out(&done), err(&done));
    Some(out(&done) + &err(&done))
}

#[test]
fn a_spare_is_taken_only_while_its_device_is_mounted() {
    let bench = filled();
    fs::create_dir(bench.path("spare")).unwrap();
    let script = "mount -t tmpfs none spare || exit 99
        \"$1\" add db --spare spare || exit 1
        \"$1\" status db | grep 'spare, ready' || exit 2
        umount spare
        \"$1\" status db | grep 'spare, missing: a file system is to be mounted at' || exit 3
        \"$1\" fail db m1 || exit 4
        \"$1\" rebuild db --spares
        [ -z \"$(ls -A spare)\" ] || exit 5
        mount -t tmpfs none spare
        \"$1\" rebuild db --spares || exit 6
        [ -e spare/.cxlraid/superblock ] || exit 7
        \"$1\" status db || exit 8
        \"$1\" stop db";
    with_table("a_spare_is_taken_only_while_its_device_is_mounted", &bench, &["spare"], script);
}

#[test]
fn nothing_is_put_on_a_mount_point_without_its_mount() {
    let bench = filled();
    fs::create_dir(bench.path("new")).unwrap();
    let script = "\"$1\" add db --spare new && exit 1
        \"$1\" replace db m1 new && exit 2
        \"$1\" fail db m1 || exit 3
        \"$1\" replace db m1 new && exit 4
        [ -z \"$(ls -A new)\" ] || exit 5
        \"$1\" rebuild db || exit 6
        \"$1\" stop db";
    let name = "nothing_is_put_on_a_mount_point_without_its_mount";
    let Some(text) = with_table(name, &bench, &["new"], script) else { return };
    let expected = "/new: a file system is to be mounted at ";
    assert_eq!(text.matches(expected).count(), 3, "{text}");
    assert_bears(&bench, "m0");
}

/// The member itself is whole, and lies on the device that is not mounted.
#[test]
fn a_member_whose_device_is_not_mounted_is_not_made_anew_on_its_mount_point() {
    let bench = filled();
    fs::rename(bench.path("m1"), bench.path("device")).unwrap();
    fs::create_dir(bench.path("m1")).unwrap();
    let script = "for what in 'rebuild db' 'rebuild db m1'; do
            \"$1\" $what && exit 1
            [ -z \"$(ls -A m1)\" ] || exit 2
        done
        \"$1\" stop db
        mount --bind device m1 || exit 99
        \"$1\" status db || exit 3
        \"$1\" stop db";
    let name = "a_member_whose_device_is_not_mounted_is_not_made_anew_on_its_mount_point";
    let Some(text) = with_table(name, &bench, &["m1"], script) else { return };
    assert_eq!(text.matches("/m1: a file system is to be mounted at ").count(), 2, "{text}");
    fs::remove_dir(bench.path("m1")).unwrap();
    fs::rename(bench.path("device"), bench.path("m1")).unwrap();
    assert_bears(&bench, "m0");
}
