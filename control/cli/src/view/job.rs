//! What an operator is shown of a job: a rebuild, a replacement, a re-add or a scrub that runs.

use super::{bytes_text, counted, shown};
use serde::Serialize;

/// A rebuild, a replacement, a re-add or a scrub that runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct JobView {
    /// "rebuild", "replacement", "re-add" or "scrub".
    pub(crate) kind: &'static str,
    /// Of a scrub: "check" or "repair". Of a re-add: "changes" or, if all of the member is made
    /// anew, "everything".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    /// Of a re-add: why all of the member is made anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// "preparing" (members get names and tables), "running", "giving-way" (programs are busy),
    /// "paused" or "ending".
    pub(crate) state: &'static str,
    pub(crate) paused: bool,
    /// The members that are made anew.
    pub(crate) members: Vec<String>,
    pub(crate) files_done: u64,
    pub(crate) files_total: u64,
    /// Bytes of data of files: holes are none.
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    pub(crate) bytes_left: u64,
    pub(crate) bytes_per_second: u64,
    /// What is left at that rate; null while nothing is done.
    pub(crate) seconds_left: Option<u64>,
    /// The rate that was asked for.
    pub(crate) bytes_per_second_max: Option<u64>,
    /// Tells whether it gives way to programs that are busy.
    pub(crate) gives_way: bool,
    pub(crate) workers: u32,
    /// The process that runs it, and the user whose process that is.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// When it began, in nanoseconds since 1970 (UTC), and the same for people (RFC 3339).
    pub(crate) begun_ns: u64,
    pub(crate) begun: String,
}

impl JobView {
    /// Returns what `status` prints of it.
    pub(crate) fn text(&self) -> String {
        let members: String = self.members.iter().map(|member| format!(" of {}", shown(member))).collect();
        let mode = if self.mode == Some("repair") { " with --repair" } else { "" };
        let members = match &self.reason {
            Some(reason) => format!("{members} (all of it is made anew: {reason})"),
            None => members,
        };
        let who = format!("process {} of user {}", self.pid, self.uid);
        if self.state == "preparing" {
            return format!("{}{mode}{members}: it is being prepared; {who}", self.kind);
        }
        let state = match self.state {
            "paused" => ", paused",
            "ending" => ", about to end",
            "giving-way" => ", giving way to programs",
            _ => "",
        };
        let files = format!("{} of {}", self.files_done, counted(self.files_total as usize, "file", "files"));
        let bytes = format!("{} of {}", bytes_text(self.bytes_done), bytes_text(self.bytes_total));
        let pace =
            self.seconds_left.map(|seconds| format!(", {}/s, {} to go", bytes_text(self.bytes_per_second), time_text(seconds)));
        format!("{}{mode}{members}{state}: {files}, {bytes}{}; {who}", self.kind, pace.unwrap_or_default())
    }
}

/// "1 h 2 min", "2 min 3 s", "3 s".
fn time_text(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}
