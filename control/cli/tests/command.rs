//! The built command as an operator uses it: what it prints where, and its exit status.

mod bench;

use bench::{Bench, err, out, refused, refused_after_warnings, snapshot};
use std::{fs, path::Path, process::Command};

#[test]
fn usage_errors_exit_with_2_and_one_line() {
    let bench = Bench::new();
    let cases: &[(&[&str], &str)] = &[
        (&[], "a command is needed; see 'cxlraid --help'"),
        (&["journal"], "a command is needed; see 'cxlraid journal --help'"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["create", "db", "--at", "/data", "m0"], "--level <LEVEL>"),
        (&["create", "db", "--level", "7", "--at", "/data", "m0"], "unknown RAID level"),
        (&["create", "db", "--level", "1", "--chunk", "3K", "--at", "/data", "m0"], "a chunk is a power of two"),
        (&["create", "../db", "--level", "1", "--at", "/data", "m0"], "a name has 1 to 63 letters"),
        (&["create", "db", "--level", "5", "--at", "/data", "m0", "m1"], "needs at least 3 members, 2 given"),
        (&["create", "db", "--level", "5", "--at", "/data", "m0", "m1", "./m0"], "given twice"),
        (&["create", "db", "--level", "1", "--at", "data", "m0"], "not an absolute path"),
        (&["create", "db", "--level", "1", "--at", "/data", "m:0"], "contains ':'"),
        (&["run", "db"], "<PROGRAM>"),
        (&["run", "--", "true"], "none named"),
        (&["info"], "none named"),
    ];
    for (arguments, expected) in cases {
        let (status, line) = refused(&bench.run(arguments));
        assert_eq!(status, 2, "{line}");
        assert!(line.contains(expected), "{line:?} lacks {expected:?}");
    }
    assert!(!bench.path("config").exists());
    assert!(fs::read_dir(bench.path("m0")).unwrap().next().is_none());
}

#[test]
fn help_goes_to_standard_output() {
    let bench = Bench::new();
    for arguments in [&["--help"][..], &["help"], &["help", "create"], &["status", "--help"], &["--version"]] {
        let output = bench.run(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(out(&output).contains("cxlraid"));
        assert_eq!(err(&output), "");
    }
    assert!(out(&bench.run(&["completions", "bash"])).contains("complete -F _cxlraid"));
}

#[test]
fn unknown_names_are_errors() {
    let bench = Bench::new();
    for arguments in [&["status", "db"][..], &["info", "db"], &["run", "db", "--", "true"], &["stop", "db"], &["forget", "db"]] {
        let (status, line) = refused(&bench.run(arguments));
        assert_eq!(status, 1);
        assert!(line.starts_with("cxlraid: db: no array has this name; "), "{line}");
    }
}

#[test]
fn mount_points_of_new_file_systems_become_members() {
    let bench = Bench::new();
    for member in ["m0", "m1", "m2"] {
        fs::create_dir(bench.path(member).join("lost+found")).unwrap();
    }
    let created = bench.create();
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    assert_eq!(out(&bench.run(&["stop", "db"])), "db: stopped\n");
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
}

#[test]
fn an_array_is_created_named_degraded_and_forgotten() {
    let bench = Bench::new();
    let created = bench.create();
    assert_eq!(created.status.code(), Some(0), "{}", err(&created));
    assert!(out(&created).starts_with("db: in sync, RAID 5, chunk 64K, 3 of 3 members work, 1 more may fail\n"));
    assert_eq!(err(&created).lines().filter(|line| line.contains("warning: is on one device")).count(), 2);
    let file = fs::read_to_string(bench.path("config/cxlraid/arrays/db.toml")).unwrap();
    assert!(file.contains("level = \"5\"\nchunk = \"64K\"\n") && file.contains("paths = [\"/data\"]\n"), "{file}");

    assert_eq!(out(&bench.run(&["stop", "db"])), "db: stopped\n");
    assert_eq!(out(&bench.run(&["stop", "db"])), "db: was not running\n");
    assert!(refused(&bench.create()).1.contains("exists; choose another name"));
    let examined = out(&bench.run(&["examine", "m1"]));
    assert!(examined.contains("├─ Name: db\n") && examined.contains("├─ Slot: 1\n"), "{examined}");
    assert!(out(&bench.run(&["info", "db"])).contains("Paths\n└─ /data\n"));
    assert_eq!(bench.run(&["status"]).status.code(), Some(0));

    fs::rename(bench.path("m1"), bench.path("away")).unwrap();
    let degraded = bench.run(&["status", "db"]);
    assert_eq!(degraded.status.code(), Some(3));
    assert!(out(&degraded).contains("missing: no such directory"), "{}", out(&degraded));
    fs::create_dir(bench.path("m1")).unwrap();
    let unmounted = bench.run(&["status", "--json"]);
    assert_eq!(unmounted.status.code(), Some(3));
    assert!(out(&unmounted).contains("\"note\": \"the directory is empty; is its device mounted?\""));
    fs::rename(bench.path("m2"), bench.path("away2")).unwrap();
    let failed = bench.run(&["status", "db"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(out(&failed).starts_with("db: failed, "));

    assert_eq!(bench.run(&["forget", "db"]).status.code(), Some(0));
    assert!(!bench.path("config/cxlraid/arrays/db.toml").exists());
    assert!(bench.path("away/.cxlraid/superblock").exists());
}

#[test]
fn a_refused_create_changes_nothing() {
    let bench = Bench::new();
    fs::write(bench.path("m2").join("mine"), "precious").unwrap();
    let before = snapshot(bench.home.path());
    let (status, line) = refused_after_warnings(&bench.create());
    assert_eq!(status, 1);
    assert!(line.contains("m2: "), "{line}");
    assert_eq!(snapshot(bench.home.path()), before);

    fs::remove_dir_all(bench.path("m2")).unwrap();
    let before = snapshot(bench.home.path());
    assert!(refused_after_warnings(&bench.create()).1.contains("no such directory"));
    fs::write(bench.path("m2"), "").unwrap();
    assert!(refused_after_warnings(&bench.create()).1.contains("not a directory"));
    fs::remove_file(bench.path("m2")).unwrap();
    assert_eq!(snapshot(bench.home.path()), before);
}

#[test]
fn looking_changes_nothing() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let before = snapshot(bench.home.path());
    for arguments in [&["status"][..], &["status", "db", "--json"], &["info", "db"], &["examine", "m0"]] {
        assert_eq!(bench.run(arguments).status.code(), Some(0));
    }
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let by_environment =
        |arguments: &[&str]| bench.command(arguments).env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", &members).output().unwrap();
    assert!(out(&by_environment(&["info"])).contains("Paths\n├─ /home\n└─ /root\n"));
    assert!(out(&by_environment(&["status"])).starts_with("db: in sync"));
    assert_eq!(snapshot(bench.home.path()), before);
}

#[test]
fn run_hands_over_the_environment() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    // A library that does nothing: what is tested here is what the program is given.
    let library = bench.path("libcxlraid.so");
    let compiled = Command::new("gcc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library).status();
    assert!(compiled.unwrap().success());
    let mut command = bench.command(&["run", "db", "--", "sh", "-c", "env; exit 7"]);
    let output = command.env("CXLRAID_LIB", &library).env("CXLRAID_JOURNAL", "/old").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let text = out(&output);
    let has = |line: &str| text.lines().any(|found| found == line);
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    assert!(has("CXLRAID_LEVEL=5") && has("CXLRAID_STRIPE_SIZE=65536") && has("CXLRAID_PATHS=/data/"), "{text}");
    assert!(has("CXLRAID_NAME=db") && has(&format!("CXLRAID_MOUNTS={members}")), "{text}");
    assert!(has(&format!("LD_PRELOAD={}", library.display())), "{text}");
    assert!(!text.contains("CXLRAID_JOURNAL"), "{text}");

    let mut command = bench.command(&["run", "db", "--", "no-such-program"]);
    let output = command.env("CXLRAID_LIB", &library).output().unwrap();
    assert_eq!(refused(&output).0, 127);
    let mut command = bench.command(&["run", "db", "--", "/dev/null"]);
    let output = command.env("CXLRAID_LIB", &library).output().unwrap();
    assert_eq!(refused(&output).0, 126);
    let mut command = bench.command(&["run", "db", "--", "true"]);
    let output = command.env("CXLRAID_LIB", "/none/libcxlraid.so").output().unwrap();
    assert!(refused(&output).1.ends_with("no such library; correct or unset CXLRAID_LIB"));
}

/// Mistakes of an operator with whole members: what is not there is not made anew, and what is
/// there does not pass for what it is not.
#[test]
fn members_that_are_unmounted_emptied_old_or_used_apart_do_no_harm() {
    let bench = Bench::new();
    let made = bench.run(&["create", "db", "--level", "1", "--at", "/data", "m0", "m1"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let add = |content: &str, name: &str| {
        fs::write(bench.path("host"), content).unwrap();
        bench.run(&["add", "-a", "db", "host", &format!("/data/{name}")]).status.code()
    };
    let get = |name: &str| {
        let output = bench.run(&["retrieve", "-a", "db", &format!("/data/{name}"), "back"]);
        fs::read_to_string(bench.path("back")).map_err(|_| err(&output))
    };
    let stop = || assert_eq!(bench.run(&["stop", "db"]).status.code(), Some(0));
    let rename = |from: &str, to: &str| fs::rename(bench.path(from), bench.path(to)).unwrap();
    assert_eq!(add("one", "file"), Some(0));
    stop();

    // Nothing is mounted: no new array is made in the place of this one.
    for member in ["m0", "m1"] {
        rename(member, &format!("{member}.off"));
        fs::create_dir(bench.path(member)).unwrap();
    }
    assert!(refused(&bench.run(&["add", "-a", "db", "host", "/data/lost"])).1.contains("mount its devices"));
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(1));
    for member in ["m0", "m1"] {
        // It is still empty.
        fs::remove_dir(bench.path(member)).unwrap();
        rename(&format!("{member}.off"), member);
    }

    // The lowest member is emptied but for .cxlraid.
    let copy = |from: &str, to: &str| {
        let copied = Command::new("cp").arg("-a").args([bench.path(from), bench.path(to)]).status().unwrap();
        assert!(copied.success());
    };
    copy("m0", "copy");
    fs::remove_dir_all(bench.path("m0/data")).unwrap();
    assert!(out(&bench.run(&["status", "db"])).contains("it was emptied"));
    assert_eq!(get("file").as_deref(), Ok("one"));
    fs::remove_dir_all(bench.path("m0")).unwrap();
    copy("copy", "m0");
    stop();

    // The lowest member is put back from a copy that is older than the last use.
    assert_eq!(add("two", "file"), Some(0));
    stop();
    rename("m0", "away");
    rename("copy", "m0");
    assert_eq!(get("file").as_deref(), Ok("two"));
    assert!(out(&bench.run(&["status", "db"])).contains("stale"));
    fs::remove_dir_all(bench.path("m0")).unwrap();
    rename("away", "m0");
    stop();

    // Each half of the mirror is used alone.
    for (gone, content) in [("m1", "of m0"), ("m0", "of m1")] {
        rename(gone, "away");
        assert_eq!(add(content, "file"), Some(0));
        stop();
        rename("away", gone);
    }
    let refusal = refused(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"]));
    assert!(refusal.1.contains("assemble --prefer"), "{}", refusal.1);
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(1));
    assert!(refused(&bench.run(&["assemble", "db", "--prefer", "other"])).1.contains("not a member"));
    let decided = bench.run(&["assemble", "db", "--prefer", "m0"]);
    assert_eq!(decided.status.code(), Some(0), "{}", err(&decided));
    assert_eq!(get("file").as_deref(), Ok("of m0"));
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(3));
    stop();
}

#[test]
fn one_file_with_a_mistake_does_not_hide_the_other_arrays() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("config/cxlraid/arrays/bad.toml"), "name = ").unwrap();
    std::os::unix::fs::symlink("nowhere", bench.path("config/cxlraid/arrays/dangling.toml")).unwrap();
    let status = bench.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(out(&status).starts_with("db: in sync"), "{}", out(&status));
    let said = err(&status);
    assert!(said.lines().count() == 2 && said.contains("bad.toml") && said.contains("dangling.toml"), "{said}");
    let json = bench.run(&["status", "--json"]);
    assert!(out(&json).contains("\"db\"") && json.status.code() == Some(1));
}

/// An array whose file is not believed is listed with the reason, and the status is that of one
/// that cannot start: a script would not hear of it otherwise.
#[test]
fn an_array_whose_file_is_not_believed_is_listed() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let (directory, file) = (bench.path("config/cxlraid/arrays"), bench.path("config/cxlraid/arrays/db.toml"));
    let said = |what: &str| {
        for arguments in [&["status"][..], &["status", "db"], &["status", "--json"], &["info", "db"]] {
            let (status, line) = refused(&bench.run(arguments));
            assert!(status == 1 && line.contains(what) && line.contains("db"), "{arguments:?}: {line}");
        }
        assert!(!out(&bench.run(&["status"])).contains("no arrays"));
    };
    for (path, mode, usual) in [(&file, 0o664, 0o644), (&directory, 0o757, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        said(&format!("cxlraid: db: {} is not believed: others than its owner may write to it; ", path.display()));
        fs::set_permissions(path, fs::Permissions::from_mode(usual)).unwrap();
    }
    let text = fs::read_to_string(&file).unwrap();
    fs::rename(&file, bench.path("elsewhere.toml")).unwrap();
    symlink(bench.path("elsewhere.toml"), &file).unwrap();
    said("is a symbolic link, and such a file is not followed; put the file itself there");
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    said("not a regular file; remove it");
    fs::remove_file(&file).unwrap();
    fs::write(&file, text).unwrap();
    assert_eq!(bench.run(&["status"]).status.code(), Some(0));
}

/// A file without a UUID would say nothing of which array is meant: a start would make a new one
/// where the members' devices are not mounted.
#[test]
fn a_file_without_a_uuid_is_refused() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let file = bench.path("config/cxlraid/arrays/db.toml");
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|line| line.starts_with("uuid = ")).unwrap();
    for member in ["m0", "m1", "m2"] {
        fs::rename(bench.path(member), bench.path(&format!("{member}.away"))).unwrap();
        fs::create_dir(bench.path(member)).unwrap();
    }
    fs::write(bench.path("host"), "x").unwrap();
    for (uuid, what) in [
        ("uuid = \"\"", "uuid: \"\" is no array's UUID"),
        ("uuid = \"xyz\"", "uuid: \"xyz\" is no array's UUID"),
        ("", "missing field `uuid`"),
    ] {
        fs::write(&file, text.replace(line, uuid)).unwrap();
        for arguments in [&["status"][..], &["add", "-a", "db", "host", "/data/x"], &["run", "db", "--", "true"]] {
            let (status, said) = refused(&bench.run(arguments));
            assert!(status == 1 && said.contains("db.toml: ") && said.contains(what), "{arguments:?}: {said}");
        }
        assert!(["m0", "m1", "m2"].iter().all(|member| snapshot(&bench.path(member)).is_empty()));
    }
    for member in ["m0", "m1", "m2"] {
        fs::remove_dir(bench.path(member)).unwrap();
        fs::rename(bench.path(&format!("{member}.away")), bench.path(member)).unwrap();
    }
}

#[test]
fn one_more_name_for_an_array_says_so_and_makes_its_path() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let other = bench.run(&["create", "other", "--level", "5", "--at", "/other", "m0", "m1", "m2"]);
    assert!(other.status.success() && err(&other).contains("one more name"), "{}", err(&other));
    assert!(["m0", "m1", "m2"].iter().all(|member| bench.path(member).join("other").is_dir()));
}

/// The thesis calls it so (4.14).
#[test]
fn repair_is_another_name_of_rebuild() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let [rebuilt, repaired] = ["rebuild", "repair"].map(|command| bench.run(&[command, "db"]));
    assert!(repaired.status.success(), "{}", err(&repaired));
    assert_eq!(out(&repaired), out(&rebuilt));
    assert!(out(&bench.run(&["--help"])).contains("[alias: repair]"));
}

#[test]
fn status_tells_what_a_start_would_come_to() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("m1/.cxlraid/lanes"), "").unwrap();
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(3), "{}", out(&status));
    let todo = "  to do: 'cxlraid re-add' gives a stale or failed member what it lacks, 'cxlraid rebuild' makes it anew\n";
    for line in [", volatile: .cxlraid/lanes is empty\n", todo] {
        assert!(out(&status).contains(line), "{}", out(&status));
    }
    fs::remove_file(bench.path("m2/.cxlraid/inodes")).unwrap();
    let status = bench.run(&["status", "db"]);
    assert_eq!(status.status.code(), Some(1), "{}", out(&status));
    assert!(out(&status).lines().last().is_some_and(|line| line.starts_with("  no program can start: ")), "{}", out(&status));
    let help = bench.command(&["--help"]).stdout(fs::File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert_eq!(help.status.code(), Some(1));
    assert!(err(&help).starts_with("cxlraid: standard output: "), "{}", err(&help));
}

/// Level and chunk that are not the array's, in the environment and in the file of a named array.
#[test]
fn status_tells_that_an_array_is_another_than_described() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let file = bench.path("config/cxlraid/arrays/db.toml");
    let right = fs::read_to_string(&file).unwrap();
    for (level, chunk, toml, says) in [
        ("1", "64K", right.replace("level = \"5\"", "level = \"1\""), "form a RAID 5 array, not RAID 1"),
        ("5", "8K", right.replace("chunk = \"64K\"", "chunk = \"8K\""), "chunks of 65536 bytes, not 8192"),
    ] {
        let mut command = bench.command(&["status"]);
        command.env("CXLRAID_LEVEL", level).env("CXLRAID_MOUNTS", &members).env("CXLRAID_PATHS", "/data");
        let by_environment = command.env("CXLRAID_STRIPE_SIZE", chunk).output().unwrap();
        assert_ne!(toml, right);
        fs::write(&file, &toml).unwrap();
        let by_name = bench.run(&["status", "db"]);
        fs::write(&file, &right).unwrap();
        for output in [by_environment, by_name] {
            assert_eq!(output.status.code(), Some(1), "{}{}", out(&output), err(&output));
            assert!(out(&output).contains(says), "{}{}", out(&output), err(&output));
        }
    }
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
}

/// What the members lack is said by the commands that use the array, too.
#[test]
fn commands_name_the_members_whose_tables_are_lost() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    for member in ["m1", "m2"] {
        fs::remove_file(bench.path(member).join(".cxlraid/lanes")).unwrap();
    }
    let refusal = refused_after_warnings(&bench.run(&["retrieve", "-a", "db", "/data/file", "back"])).1;
    for member in ["m1", "m2"] {
        let named = format!("{}: .cxlraid/lanes is missing", bench.path(member).display());
        assert!(refusal.contains(&named), "{refusal}");
    }
}

#[test]
fn a_user_without_a_home_is_told_that_his_arrays_are_not_looked_for() {
    if !sys::rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: a_user_without_a_home_is_told_that_his_arrays_are_not_looked_for needs root");
        return;
    }
    let bench = Bench::new();
    // A service of a user whom /etc/passwd does not have.
    let binary = bench.path("cxlraid");
    // Not by this process: a child of another test's thread would have the copy open for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_cxlraid")).arg(&binary).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(bench.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let status = Command::new("setpriv")
        .args(["--reuid", "4242424", "--regid", "4242424", "--clear-groups"])
        .arg(&binary)
        .arg("status")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("CXLRAID_SYSTEM_ARRAYS", bench.path("system"))
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(1), "{}", err(&status));
    assert!(err(&status).contains("arrays of user 4242424 are not looked for, since HOME is not set"), "{}", err(&status));
}

#[test]
fn status_tells_of_names_that_a_member_has_lost() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::create_dir_all(bench.path("host/inner")).unwrap();
    ["host/one", "host/inner/two"].iter().for_each(|file| fs::write(bench.path(file), "some").unwrap());
    assert!(bench.run(&["add", "-a", "db", "-r", "host", "/data/x"]).status.success());
    let status = || {
        let status = bench.run(&["status", "db"]);
        (status.status.code(), out(&status))
    };
    assert_eq!(status().0, Some(0), "{}", status().1);
    let find = |member: &str, name: &str| {
        let found = Command::new("find").arg(bench.path(member)).args(["-name", name]).output().unwrap();
        std::path::PathBuf::from(String::from_utf8(found.stdout).unwrap().trim_end())
    };
    fs::remove_file(find("m1", "one")).unwrap();
    fs::remove_dir_all(find("m1", "inner")).unwrap();
    let (code, text) = status();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.starts_with("db: degraded, ") && text.contains("3 of 3 members work, 0 more may fail"), "{text}");
    assert!(text.contains("in sync, volatile: lacks 2 names that others have, such as /data/x/inner"), "{text}");
    // Nothing was changed: who uses the names restores them on a member that is not the lowest.
    let json = bench.run(&["status", "db", "--json"]);
    assert!(out(&json).contains("\"names_lost\": 2"), "{}", out(&json));
    assert!(bench.run(&["retrieve", "-a", "db", "-r", "/data/x", "back"]).status.success());
    assert_eq!(fs::read(bench.path("back/inner/two")).unwrap(), b"some");
    assert_eq!(status().0, Some(0), "{}", status().1);
}

/// A start says of a member why it is not used, as status does.
#[test]
fn a_start_gives_the_reason_that_status_gives() {
    let (bench, other) = (Bench::new(), Bench::new());
    assert!(bench.create().status.success() && other.create().status.success());
    fs::write(bench.path("file"), "content").unwrap();
    assert!(bench.run(&["add", "-a", "db", "file", "/data/file"]).status.success());
    let foreign = format!("belongs to array {}", other.uuid());
    type Put<'a> = &'a dyn Fn(&Path);
    let bring = "bring it back, or 'cxlraid replace' puts another in its place";
    let rebuild = "'cxlraid rebuild' makes it anew";
    let reasons: [(Put<'_>, &str, &str, &str); 6] = [
        (&|m1| fs::rename(other.path("m1"), m1).unwrap(), "is missing", &foreign, bring),
        (&|_| (), "is missing", "no such directory", bring),
        (&|m1| fs::create_dir(m1).unwrap(), "is missing", "the directory is empty; is its device mounted?", bring),
        (&|m1| fs::create_dir_all(m1.join("data/x")).unwrap(), "is missing", "no superblock", bring),
        (
            &|m1| {
                assert!(Command::new("cp").arg("-a").args([bench.path("away"), m1.to_owned()]).status().unwrap().success());
                fs::write(m1.join(".cxlraid/superblock"), vec![0; 8192]).unwrap();
            },
            "is damaged",
            "not a cxlraid superblock (no magic); check that this path is a member, or create an array on it",
            "put its superblock back, or empty the directory, and 'cxlraid rebuild' makes it anew",
        ),
        (
            &|m1| {
                assert!(Command::new("cp").arg("-a").args([bench.path("away"), m1.to_owned()]).status().unwrap().success());
                fs::remove_dir_all(m1.join("data")).unwrap();
            },
            "is not used",
            "it was emptied: only .cxlraid is left",
            rebuild,
        ),
    ];
    let m1 = bench.path("m1");
    assert!(bench.run(&["stop", "db"]).status.success());
    fs::rename(&m1, bench.path("away")).unwrap();
    for (put, state, reason, remedy) in reasons {
        put(&m1);
        let status = out(&bench.run(&["status", "db"]));
        let retrieved = bench.run(&["retrieve", "-a", "db", "/data/file", "back"]);
        let line = format!("cxlraid: {}: warning: member {state} ({reason}); the array is degraded; {remedy}\n", m1.display());
        assert!(status.contains(&format!(": {reason}\n")), "{reason}: {status}");
        assert!(retrieved.status.success() && err(&retrieved) == line, "{reason}: {}", err(&retrieved));
        assert!(bench.run(&["stop", "db"]).status.success());
        let _ = fs::remove_dir_all(&m1);
    }
}

#[test]
fn a_start_makes_an_array_of_empty_directories_unless_that_is_forbidden() {
    let bench = Bench::new();
    fs::write(bench.path("host"), "some").unwrap();
    let mounts = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let add = |may_create: Option<&str>| {
        let mut command = bench.command(&["add", "host", "/data/file"]);
        command.env("CXLRAID_LEVEL", "5").env("CXLRAID_MOUNTS", &mounts).env("CXLRAID_PATHS", "/data");
        may_create.iter().for_each(|value| _ = command.env("CXLRAID_CREATE", value));
        command.output().unwrap()
    };
    assert!(refused(&add(Some("0"))).1.contains("set CXLRAID_CREATE=1 to make a new array"));
    assert_eq!(fs::read_dir(bench.path("m0")).unwrap().count(), 0);
    assert!(refused(&add(Some("perhaps"))).1.contains("neither 0 nor 1"));
    let made = add(None);
    assert!(made.status.success(), "{}", err(&made));
    // What is there is used.
    assert!(add(Some("0")).status.success());
    let others = ["m0", "m1"].map(|member| (bench.path(member), bench.path(&format!("{member}.off"))));
    for (member, away) in &others {
        fs::rename(member, away).unwrap();
        fs::create_dir(member).unwrap();
    }
    // One that is still there shows that the others are missing.
    assert!(refused(&add(Some("1"))).1.contains("2 of 3 members cannot be used"));
    others.iter().for_each(|(member, _)| assert_eq!(fs::read_dir(member).unwrap().count(), 0));
}

#[test]
fn a_path_that_is_added_to_an_array_is_made() {
    let bench = Bench::new();
    assert_eq!(bench.create().status.code(), Some(0));
    let file = bench.path("config/cxlraid/arrays/db.toml");
    let text = fs::read_to_string(&file).unwrap().replace("[\"/data\"]", "[\"/data\", \"/srv/more\"]");
    fs::write(&file, text).unwrap();
    fs::write(bench.path("host"), "content").unwrap();
    let added = bench.run(&["add", "-a", "db", "host", "/srv/more/deep/er/file"]);
    assert_eq!((added.status.code(), err(&added).as_str()), (Some(0), ""));
    for member in ["m0", "m1", "m2"] {
        assert!(bench.path(member).join("srv/more/deep/er/file").exists(), "{member}");
    }
    // Without a path for it, and outside of the array's: below the array's only path.
    let text = fs::read_to_string(&file).unwrap().replace("\"/data\", ", "");
    fs::write(&file, text).unwrap();
    assert_eq!(bench.run(&["add", "-a", "db", "host"]).status.code(), Some(0));
    let back = bench.run(&["retrieve", "-a", "db", "/srv/more/host", "not/yet/back"]);
    assert_eq!((back.status.code(), err(&back).as_str()), (Some(0), ""));
    assert_eq!(fs::read(bench.path("not/yet/back")).unwrap(), b"content");
    assert_eq!(bench.run(&["status", "db"]).status.code(), Some(0));
}

#[test]
fn files_are_not_used_by_command_and_library_in_one_process() {
    let bench = Bench::new();
    assert!(bench.create().status.success());
    fs::write(bench.path("file"), "content").unwrap();
    let members = ["m0", "m1", "m2"].map(|member| bench.path(member).display().to_string()).join(":");
    let add = |level: &str| {
        let mut command = bench.command(&["add", "-a", "db", "file", "/data/file"]);
        // The loader says that it has not found this library, and goes on.
        command.env("LD_PRELOAD", "/nowhere/libcxlraid.so").env("CXLRAID_LEVEL", level).env("CXLRAID_MOUNTS", &members);
        command.env("CXLRAID_PATHS", "/data").output().unwrap()
    };
    let output = add("5");
    let line = "cxlraid: db: the library of 'cxlraid run' uses the array in this process already, and the two would wait for each other; \
                say it outside of 'cxlraid run'\n";
    assert!(output.status.code() == Some(1) && err(&output).ends_with(line), "{}", err(&output));
    assert!(add("").status.success(), "the library serves no array");

    fs::create_dir(bench.path("other")).unwrap();
    let before = bench.run(&["status", "db"]);
    for (place, arguments) in [
        "scrub db",
        "scrub db --repair",
        "fail db m1",
        "remove db m1",
        "rebuild db",
        "rebuild db m1",
        "re-add db m1",
        "replace db m1 other",
        "mount db other",
        "mount --foreground db other",
        "stop db",
        "access db --mode 660",
        "assemble db --prefer m0",
        "journal add db internal",
        "journal remove db",
        "journal clear db --force",
        "journal replay db",
        "retrieve -a db /data/file back",
        "add -a db file /data/file",
    ]
    .iter()
    .enumerate()
    {
        let mut command = bench.command(&arguments.split(' ').collect::<Vec<_>>());
        command.env("LD_PRELOAD", "/nowhere/libcxlraid.so").env("CXLRAID_LEVEL", "5").env("CXLRAID_PATHS", "/data");
        // A member may have been replaced since the library began.
        let since = members.replace("/m2", "/earlier");
        command.env("CXLRAID_MOUNTS", if place % 2 == 0 { &members } else { &since }).env("CXLRAID_UUID", bench.uuid());
        let output = command.output().unwrap();
        assert!(output.status.code() == Some(1) && err(&output).ends_with(line), "{arguments}: {}{}", out(&output), err(&output));
    }
    assert_eq!(out(&bench.run(&["status", "db"])), out(&before));
}
