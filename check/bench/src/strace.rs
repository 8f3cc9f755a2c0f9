//! How many system calls a command makes.

use std::process::{Command, Stdio};

/// How many system calls a command and its children make, as strace counts them.
pub(crate) fn system_calls(command: &Command) -> Result<u64, String> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o", "/dev/stderr"]);
    for (name, value) in command.get_envs() {
        // The library is loaded into the program only.
        if let Some(value) = value {
            strace.arg("-E").arg(format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
        }
    }
    strace.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    let output = strace.output().map_err(|error| format!("strace: {error}; install strace"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("strace: {}: {}", output.status, text.lines().next().unwrap_or_default()));
    }
    let total = text.lines().find_map(|line| line.trim().strip_suffix(" total"));
    total.and_then(|calls| calls.trim().parse().ok()).ok_or_else(|| format!("strace says something else: {text}"))
}
