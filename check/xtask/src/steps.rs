//! Running commands one after the other, with a title and a time for each.
//!
//! Commands see neither an array nor an interposed library of the caller's environment.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// A directory that nobody makes.
const NO_CONFIGURATION: &str = "target/no-configuration";

/// What a task gives back: why it failed.
pub(crate) type Outcome = Result<(), String>;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    // Cargo sets it for what it runs: this crate's directory, two below the root.
    let own = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("check/xtask"), PathBuf::from);
    own.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned()
}

/// A program run in the repository's root.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).env_remove("LD_PRELOAD");
    for (variable, _) in env::vars_os() {
        if variable.to_string_lossy().starts_with("CXLRAID_") {
            command.env_remove(variable);
        }
    }
    // Nor the names of arrays that the machine or the user has.
    command.env("CXLRAID_SYSTEM_ARRAYS", root().join(NO_CONFIGURATION)).env("XDG_CONFIG_HOME", root().join(NO_CONFIGURATION));
    command
}

/// Cargo, with words separated by blanks and further arguments. It takes the dependencies that
/// Cargo.lock names, and no others.
pub(crate) fn cargo(words: &str, rest: &[String]) -> Command {
    let mut cargo = command(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    let (verb, words) = words.split_once(' ').unwrap_or((words, ""));
    cargo.arg(verb);
    // cargo fmt looks at no dependency, and does not know the option.
    if verb != "fmt" {
        cargo.arg("--locked");
    }
    cargo.args(words.split_whitespace()).args(rest);
    cargo
}

/// An optimised build of something other than the library. What makes the library fast (one unit,
/// link-time optimisation over everything) makes builds slow, and those programs spend their time
/// elsewhere.
pub(crate) fn cargo_release(words: &str, rest: &[String]) -> Command {
    let (verb, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut cargo = cargo(&format!("{verb} --quiet --release {words}"), rest);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "false").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    cargo
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Outcome {
    let shown = show(&command);
    run_as(&shown, command)
}

fn run_as(shown: &str, mut command: Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// Runs a command, $1.., that sees a /dev/shm of its own, and fails if it leaves anything of
/// cxlraid's there: runtime segments, shared copies, members.
const APART: &str = r#"
mount -t tmpfs cxlraid-test /dev/shm || exit
"$@" || exit
left=$(cd /dev/shm && ls -d cxlraid-* 2>&-)
[ -z "$left" ] && exit
echo "left behind in /dev/shm:" $left >&2
exit 1
"#;

/// Runs a command to its end, with a /dev/shm of its own in which it must leave nothing: in the
/// machine's it could not be told from what other arrays use at the same time. Where that is not
/// permitted it runs in the machine's, and nobody looks.
pub(crate) fn run_apart(command: Command) -> Outcome {
    let shown = show(&command);
    run_as(&shown, apart(command))
}

/// Runs a command as [`run_apart`] does. Returns its exit status.
pub(crate) fn status_apart(command: Command) -> Result<u8, String> {
    let shown = show(&command);
    let status = apart(command).status().map_err(|error| format!("{shown}: {error}"))?;
    status.code().and_then(|code| u8::try_from(code).ok()).ok_or_else(|| format!("{shown}: {status}"))
}

/// The command with a /dev/shm of its own, where that is permitted.
fn apart(command: Command) -> Command {
    let probe = Command::new("unshare").args(["--mount", "sh", "-c", APART, "sh", "true"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("    not looked at whether anything is left in /dev/shm: mounting is not permitted");
        return command;
    }
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "sh", "-c", APART, "sh"]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        apart.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    apart
}

/// The standard output of a command.
pub(crate) fn output(mut command: Command) -> Result<Vec<u8>, String> {
    let shown = show(&command);
    match command.stderr(std::process::Stdio::inherit()).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(format!("{shown}: {}", output.status)),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The steps of a long task.
pub(crate) struct Steps {
    begun: Instant,
    passed: usize,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), passed: 0 }
    }

    /// One step; prints its title before and its time after.
    pub(crate) fn step(&mut self, title: &str, action: impl FnOnce() -> Outcome) -> Outcome {
        println!("==> {title}");
        let begun = Instant::now();
        match action() {
            Ok(()) => {
                self.passed += 1;
                println!("    {title}: done in {:.1} s", begun.elapsed().as_secs_f64());
                Ok(())
            }
            Err(message) => {
                println!("steps: {} passed, 1 failed", self.passed);
                Err(format!("{title}: {message}"))
            }
        }
    }

    /// The closing lines.
    pub(crate) fn finish(&self) {
        println!("everything took {:.0} s", self.begun.elapsed().as_secs_f64());
        println!("steps: {} passed, 0 failed", self.passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_take_the_dependencies_that_are_locked() {
        let words = |command: Command| show(&command).split_once(' ').unwrap_or_default().1.to_owned();
        assert_eq!(words(cargo("test --quiet -p a -- --b", &["c".to_owned()])), "test --locked --quiet -p a -- --b c");
        assert_eq!(words(cargo_release("run -p a --", &[])), "run --locked --quiet --release -p a --");
        assert_eq!(words(cargo("fmt --all", &[])), "fmt --all");
    }

    #[test]
    fn what_a_step_leaves_in_shared_memory_is_a_failure() {
        let shell = |script: &str| {
            let mut shell = command("sh");
            shell.args(["-c", script]).env("NAME", "cxlraid-left");
            shell
        };
        assert_eq!(run_apart(shell("exit 0")), Ok(()));
        assert_eq!(run_apart(shell("exit 3")), Err("sh -c exit 3: exit status: 3".to_owned()));
        assert_eq!(status_apart(shell("exit 3")), Ok(3));
        let is_apart = run_apart(shell("[ -z \"$(ls -A /dev/shm)\" ]")).is_ok();
        assert_eq!(run_apart(shell(": > /dev/shm/$NAME && rm /dev/shm/$NAME")), Ok(()));
        if is_apart {
            assert!(run_apart(shell(": > /dev/shm/$NAME")).is_err());
            assert!(!Path::new("/dev/shm/cxlraid-left").exists());
        }
    }
}
