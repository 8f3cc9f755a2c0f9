//! The runs: reference, then arrays, on each file system, for each user.

use crate::Options;
use crate::outcome::{Outcome, Verdict};
use crate::place::{Place, difference};
use crate::users::{self, User};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Far longer than any run takes.
const LIMIT: Duration = Duration::from_secs(300);
/// Where programs see the array.
const PREFIX: &str = "/cxlraid-posix";

/// An array that cases run on.
struct Shape {
    label: &'static str,
    level: &'static str,
    /// The slot of a member that is missing at start.
    missing: Option<usize>,
}

const MEMBER_COUNT: usize = 3;
const SHAPES: [Shape; 3] = [
    Shape { label: "raid1", level: "1", missing: None },
    Shape { label: "raid5", level: "5", missing: None },
    Shape { label: "raid5 without a member", level: "5", missing: Some(0) },
];

/// What all runs share.
struct Ground<'a> {
    options: &'a Options,
    program: PathBuf,
    library: PathBuf,
    /// Of what is printed.
    home: Place,
    users: &'a [User; 2],
}

/// A file system, and as whom cases run on it.
struct Setting<'a> {
    label: String,
    place: Place,
    /// On another file system, for cases that cross the border.
    second: Place,
    configuration: PathBuf,
    user: Option<&'a User>,
}

/// Runs everything. Whether all is well.
pub(crate) fn all(program: &Path, options: &Options) -> Result<bool, String> {
    let users = users::two()?;
    let is_root = fs::metadata("/proc/self").map_err(|error| format!("/proc: {error}"))?.uid() == 0;
    let ground = Ground::new(program, options, &users).map_err(|error| error.to_string())?;
    let mut good = true;
    let (disk, memory) = (options.disk.as_path(), Path::new("/dev/shm"));
    for (kind, directory, second) in [("disk", disk, memory), ("tmpfs", memory, disk)] {
        if options.quick && kind == "disk" {
            continue;
        }
        let own = if is_root { ("root", None) } else { ("this user", None) };
        let other = is_root.then_some((users[0].name.as_str(), Some(&users[0])));
        for (name, user) in [Some(own), other].into_iter().flatten() {
            let place = |directory: &Path| Place::new(directory).map_err(|error| format!("{}: {error}", directory.display()));
            let (place, second) = (place(directory)?, place(second)?);
            let configuration = place.root.join("pjdfstest.toml");
            let setting = Setting { label: format!("{kind}, {name}"), place, second, configuration, user };
            good &= ground.compare(&setting)?;
            if options.mount && kind == "tmpfs" && setting.user.is_none() {
                good &= ground.compare_mounted(&setting)?;
            }
        }
    }
    if !is_root {
        println!("cases that need root were not run");
    }
    Ok(good)
}

impl<'a> Ground<'a> {
    /// Program and library are copied to where every user can read them.
    fn new(program: &Path, options: &'a Options, users: &'a [User; 2]) -> std::io::Result<Self> {
        let home = Place::new(&std::env::temp_dir())?;
        let copy = |from: &Path, name: &str| {
            let to = home.root.join(name);
            fs::copy(from, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).map(|()| to)
        };
        let (program, library) = (copy(program, "pjdfstest")?, copy(&options.library, "libcxlraid.so")?);
        Ok(Self { options, program, library, home, users })
    }

    /// Runs the reference and all arrays on one file system.
    fn compare(&self, setting: &Setting<'_>) -> Result<bool, String> {
        let failed = |error: std::io::Error| error.to_string();
        let owner = setting.user.map(|user| (user.user, user.group));
        let plain = setting.place.directory("plain", owner).map_err(failed)?;
        let second = setting.second.directory("second", owner).map_err(failed)?;
        fs::write(&setting.configuration, configuration_text(self.users, &second)).map_err(failed)?;
        let reference = self.run(setting, "reference", &plain, &[])?;
        println!("{:<18} {:<24} {}", setting.label, "reference", summary(&reference));
        let mut good = true;
        for shape in &SHAPES {
            let members = setting.place.members(&shape.label.replace(' ', "-"), MEMBER_COUNT, owner).map_err(failed)?;
            let begun = Instant::now();
            let outcome = self.run_on(setting, shape, &members)?;
            let seconds = begun.elapsed().as_secs_f64();
            let mut complaints = outcome.worse_than(&reference);
            let in_use: Vec<PathBuf> = members.into_iter().filter(|member| member.is_dir()).collect();
            complaints.extend(difference(&in_use).map_err(failed)?);
            println!("{:<18} {:<24} {} in {seconds:.1} s", setting.label, shape.label, summary(&outcome));
            complaints.iter().for_each(|complaint| println!("    {complaint}"));
            good &= complaints.is_empty();
        }
        Ok(good)
    }

    /// Runs all cases on a directory and through a mount of a RAID 5: without interception.
    fn compare_mounted(&self, setting: &Setting<'_>) -> Result<bool, String> {
        let failed = |error: std::io::Error| error.to_string();
        let reference = self.run(setting, "reference of the mount", &setting.place.root.join("plain"), &[])?;
        let members = setting.place.members("mounted", MEMBER_COUNT, None).map_err(failed)?;
        let (home, mounted) = (setting.place.directory("home", None), setting.place.directory("mount", None));
        let (home, mounted) = (home.map_err(failed)?, mounted.map_err(failed)?);
        let cxlraid = |words: &[&str], paths: &[PathBuf]| {
            let mut command = self.command(&crate::beside_us("cxlraid"), setting, &[]);
            for variable in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "CXLRAID_SYSTEM_ARRAYS"] {
                command.env(variable, &home);
            }
            if words[0] == "stop" {
                // Until the process that served the mount has detached, it is asked again.
                command.stderr(Stdio::null());
            }
            match command.args(words).args(paths).stdout(Stdio::null()).status() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("cxlraid {words:?}: {status}")),
                Err(error) => Err(format!("cxlraid: {error}")),
            }
        };
        cxlraid(&["create", "posix", "--level", "5", "--at", PREFIX], &members)?;
        cxlraid(&["mount", "--allow-other", "posix"], std::slice::from_ref(&mounted))?;
        let begun = Instant::now();
        let outcome = self.run(setting, "mount", &mounted, &[]);
        cxlraid(&["unmount", "--lazy", "posix"], &[])?;
        while cxlraid(&["stop", "posix"], &[]).is_err() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(100));
        }
        let outcome = outcome?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut complaints = outcome.worse_than(&reference);
        complaints.extend(difference(&members).map_err(failed)?);
        println!("{:<18} {:<24} {} in {seconds:.1} s", setting.label, "raid5, mounted", summary(&outcome));
        complaints.iter().for_each(|complaint| println!("    {complaint}"));
        Ok(complaints.is_empty())
    }

    fn run_on(&self, setting: &Setting<'_>, shape: &Shape, members: &[PathBuf]) -> Result<Outcome, String> {
        let mounts: Vec<String> = members.iter().map(|member| member.to_string_lossy().into_owned()).collect();
        let mounts = mounts.join(":");
        let library = self.library.to_string_lossy();
        let variables =
            [("LD_PRELOAD", &*library), ("CXLRAID_LEVEL", shape.level), ("CXLRAID_MOUNTS", &mounts), ("CXLRAID_PATHS", PREFIX)];
        if let Some(slot) = shape.missing {
            // The first program makes the array.
            let mut first = self.command(Path::new("/bin/true"), setting, &variables);
            first.status().map_err(|error| format!("/bin/true: {error}"))?;
            let away = members[slot].with_extension("away");
            fs::rename(&members[slot], away).map_err(|error| error.to_string())?;
        }
        self.run(setting, shape.label, Path::new(PREFIX), &variables)
    }

    fn command(&self, program: &Path, setting: &Setting<'_>, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CXLRAID_")) {
            command.env_remove(name);
        }
        command.env_remove("LD_PRELOAD").env("NO_COLOR", "1").envs(variables.iter().copied());
        command.current_dir("/").stdin(Stdio::null()).process_group(0);
        if let Some(user) = setting.user {
            command.uid(user.user).gid(user.group);
        }
        command
    }

    /// One run of pjdfstest on `directory`.
    fn run(&self, setting: &Setting<'_>, label: &str, directory: &Path, variables: &[(&str, &str)]) -> Result<Outcome, String> {
        let path = self.home.root.join(format!("{}-{label}.out", setting.label).replace([' ', ','], "-"));
        let output = File::create(&path).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let mut command = self.command(&self.program, setting, variables);
        command.arg("-c").arg(&setting.configuration).arg("-p").arg(directory).args(&self.options.names);
        let mut child = command.stdout(output).stderr(errors).spawn().map_err(|error| format!("pjdfstest: {error}"))?;
        let status = wait(&mut child)?;
        let text = fs::read(&path).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&text);
        if self.options.keep {
            let kept = crate::beside_us("../posix").join(path.file_name().unwrap_or_default());
            fs::copy(&path, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        }
        // A failed case gives 1; anything else it did not live to tell.
        if status.code().is_none_or(|code| code > 1) || !text.contains("Summary: ") {
            let last = text.lines().next_back().unwrap_or("");
            return Err(format!("{}, {label}: pjdfstest did not end well ({status}): {last}", setting.label));
        }
        Ok(Outcome::parse(&text))
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("pjdfstest was still running after {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn summary(outcome: &Outcome) -> String {
    let skipped = outcome.count(|verdict| *verdict == Verdict::Skipped);
    let failed = outcome.count(|verdict| matches!(verdict, Verdict::Failed(_)));
    format!("{} passed, {failed} failed, {skipped} skipped", outcome.passed())
}

/// Everything Linux has, but for remounting the file system.
fn configuration_text(users: &[User; 2], second: &Path) -> String {
    let features = ["posix_fallocate", "rename_ctime", "stat_st_birthtime", "utime_now", "utimensat"];
    let features: String = features.iter().map(|feature| format!("{feature} = {{}}\n")).collect();
    let entries: Vec<String> = users.iter().map(|user| format!("[\"{}\", \"{}\"]", user.name, user.group_name)).collect();
    format!(
        "[features]\n{features}secondary_fs = \"{}\"\n[settings]\nnaptime = 0.01\nallow_remount = false\n[dummy_auth]\nentries = [{}]\n",
        second.display(),
        entries.join(", ")
    )
}
