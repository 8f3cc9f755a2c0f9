//! Running commands one after the other, with a title and a time for each.
//!
//! Commands see neither an array nor an interposed library of the caller's environment.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

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
    command
}

/// Cargo, with words separated by blanks and further arguments.
pub(crate) fn cargo(words: &str, rest: &[String]) -> Command {
    let mut cargo = command(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo.args(words.split_whitespace()).args(rest);
    cargo
}

/// An optimised build of something other than the library. What makes the library fast (one unit, link-time optimisation over
/// everything) makes builds slow, and those programs spend their time elsewhere.
pub(crate) fn cargo_release(words: &str, rest: &[String]) -> Command {
    let (verb, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut cargo = cargo(&format!("{verb} --quiet --release {words}"), rest);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "false").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    cargo
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Outcome {
    let shown = show(&command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
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
