//! `cxlraid gc`: what belongs to nobody goes, and nothing that somebody uses or recovery needs.

mod bench;

use array::{Array, Config};
use bench::{Bench, out};
use std::{
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const CHILD: &str = "CXLRAID_TEST_GC_CHILD";

/// Not a test by itself: attaches to the array whose members are below a directory, and waits.
#[test]
fn user_of_an_array() {
    let Ok(scene) = std::env::var(CHILD) else { return };
    let array = attach(Path::new(&scene));
    println!("attached");
    std::io::Read::read(&mut std::io::stdin(), &mut [0]).unwrap();
    drop(array);
    std::process::exit(0);
}

fn attach(home: &Path) -> Array {
    let mounts = ["m0", "m1", "m2"].map(|member| home.join(member).as_os_str().as_bytes().to_vec());
    let config = Config::new(layout::Level::Raid5, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    Array::attach(&config).unwrap()
}

/// The lines about the array's files.
fn lines(bench: &Bench, arguments: &[&str], uuid: &str) -> Vec<String> {
    let output = bench.run(&[&["gc", uuid], arguments].concat());
    let text = out(&output);
    assert!(text.lines().last().unwrap().contains(" files of "), "{text}");
    text.lines().filter(|line| line.contains(uuid)).map(str::to_owned).collect()
}

#[test]
fn what_belongs_to_nobody_goes() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let report = out(&bench.run(&["status", "db", "--json"]));
    let uuid = report.split("\"uuid\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let segment = PathBuf::from(format!("/dev/shm/cxlraid-{uuid}"));
    let copy = PathBuf::from(format!("/dev/shm/cxlraid-{uuid}-map-00000000000000ff"));
    let other = PathBuf::from(format!("/dev/shm/cxlraid-{uuid}-other"));
    for path in [&copy, &other] {
        fs::write(path, "left").unwrap();
    }

    // In use: the segment stays. No copy has that name in it.
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "user_of_an_array", "--nocapture"]).env(CHILD, bench.home.path());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("attached") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut said, &mut line).unwrap(), 0);
    }
    let found = lines(&bench, &["--dry-run"], &uuid);
    assert!(found[0].starts_with(&format!("{} (db): in use by process {}", segment.display(), child.id())), "{found:?}");
    assert!(found[1].contains("-map-00000000000000ff (db): would be removed, "), "{found:?}");
    assert!(copy.exists());
    assert!(lines(&bench, &[], &uuid)[1].contains("(db): removed, "));
    assert!(segment.exists() && !copy.exists() && other.exists());

    // Killed in no change of anything, its members gone: nobody needs the segment.
    child.kill().unwrap();
    child.wait().unwrap();
    for member in ["m0", "m1", "m2"] {
        fs::remove_dir_all(bench.path(member)).unwrap();
    }
    fs::write(&copy, "left").unwrap();
    assert_eq!(lines(&bench, &[], &uuid).len(), 2);
    assert!(!segment.exists() && !copy.exists() && other.exists());
    assert_eq!(lines(&bench, &[], &uuid), [] as [&str; 0]);
    fs::remove_file(other).unwrap();
}

#[test]
fn what_is_no_segment_stays() {
    let bench = Bench::new();
    let uuid = format!("00000000-0000-4000-8000-{:012x}", std::process::id());
    let segment = PathBuf::from(format!("/dev/shm/cxlraid-{uuid}"));
    fs::write(&segment, "something").unwrap();
    assert!(lines(&bench, &[], &uuid)[0].contains("kept: made by another version of cxlraid"));
    let held = fs::File::open(&segment).unwrap();
    held.lock().unwrap();
    assert!(lines(&bench, &[], &uuid)[0].ends_with(": in use"));
    fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &segment).unwrap();
    assert_eq!(lines(&bench, &[], &uuid), [] as [&str; 0]);
    fs::remove_file(segment).unwrap();
}
