//! The file that `cxlraid monitor --prometheus` keeps, in Prometheus' text format.
//!
//! Names of metrics and labels are an interface: they are added, never renamed or removed. The file
//! is written beside its place under another name and then put there, so nobody reads half of one.

use crate::{
    failure::Failure,
    records,
    view::{ArrayState, ArrayView, MemberState},
};
use array::{
    Way,
    runtime::counters::{AllCounted, Kind},
};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use units::MemberSet;

const ARRAY_STATES: [(ArrayState, &str); 4] = [
    (ArrayState::New, "new"),
    (ArrayState::InSync, "in-sync"),
    (ArrayState::Degraded, "degraded"),
    (ArrayState::Failed, "failed"),
];
const MEMBER_STATES: [(MemberState, &str); 6] = [
    (MemberState::New, "new"),
    (MemberState::InSync, "in-sync"),
    (MemberState::Missing, "missing"),
    (MemberState::Rebuilding, "rebuilding"),
    (MemberState::Stale, "stale"),
    (MemberState::Failed, "failed"),
];
/// Events that are counted from the first one on: what never happened is 0, not absent.
const EVENTS: [&str; 13] = [
    "DegradedArray",
    "Fail",
    "Healed",
    "Mismatch",
    "ReAdd",
    "RebuildFinished",
    "RebuildStarted",
    "Removed",
    "Rotten",
    "ScrubFinished",
    "ScrubStarted",
    "SpareUsed",
    "Unreadable",
];

/// One array, as the file tells of it.
pub(crate) struct Sample<'a> {
    pub(crate) name: &'a str,
    /// None: the array could not be looked at.
    pub(crate) view: Option<&'a ArrayView>,
    /// What its programs have counted; None where there is nothing to be read.
    pub(crate) counted: Option<&'a AllCounted>,
    /// How many lines of each kind its log has.
    pub(crate) events: &'a BTreeMap<String, u64>,
}

/// A file that is kept.
pub(crate) struct Kept {
    path: PathBuf,
    /// Whether the last attempt to write it has failed: that is said once.
    has_failed: bool,
    /// The device and the number of the file that was written last.
    written: (u64, u64),
}

impl Kept {
    /// Makes the file.
    pub(crate) fn new(path: PathBuf, samples: &[Sample<'_>]) -> Result<Self, Failure> {
        let todo = "name a file in a directory where you may make files";
        if path.is_dir() {
            return Err(Failure::new(path.display(), "is a directory", todo));
        }
        let written = write(&path, &text(samples)).map_err(|error| Failure::new(path.display(), error, todo))?;
        Ok(Self { path, has_failed: false, written })
    }

    /// Writes it anew. A failure is printed, and it is tried again the next time.
    pub(crate) fn renew(&mut self, samples: &[Sample<'_>]) {
        let written = write(&self.path, &text(samples));
        if let Ok(file) = written {
            self.written = file;
        }
        if let (Err(error), false) = (&written, self.has_failed) {
            say!("{}", Failure::new(self.path.display(), error, "see to it that the file can be written"));
        }
        self.has_failed = written.is_err();
    }
}

impl Drop for Kept {
    /// Nobody watches any more, unless another monitor has written the file since.
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.written) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the file anew. Returns the device and the number of the new one.
fn write(path: &Path, text: &str) -> io::Result<(u64, u64)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    // The collector reads what ends in ".prom".
    let beside = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let _ = fs::remove_file(&beside);
    let make = || {
        let mut file: File = File::options().write(true).create_new(true).mode(0o644).open(&beside)?;
        file.write_all(text.as_bytes())?;
        let found = file.metadata()?;
        fs::rename(&beside, path)?;
        Ok((found.dev(), found.ino()))
    };
    make().inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// The lines of one metric after the other: all lines of a metric stand together.
struct Metrics {
    text: String,
}

impl Metrics {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP cxlraid_{name} {help}\n# TYPE cxlraid_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.text, "cxlraid_{name}{{{}}} {value}", labels.join(","));
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The whole file.
pub(crate) fn text(samples: &[Sample<'_>]) -> String {
    let mut all = Metrics { text: String::new() };
    let views = || samples.iter().filter_map(|sample| Some((sample.name, sample.view?)));
    all.begin("array_looked_at", "gauge", "1 if the array could be looked at last time.");
    for sample in samples {
        all.line("array_looked_at", &[("array", sample.name)], u8::from(sample.view.is_some()));
    }
    all.begin("array_state", "gauge", "1 for the state that the array is in.");
    for (name, view) in views() {
        let (uuid, level) = (view.uuid.as_deref().unwrap_or(""), view.level.to_string());
        for (state, text) in ARRAY_STATES {
            let labels = [("array", name), ("uuid", uuid), ("level", level.as_str()), ("state", text)];
            all.line("array_state", &labels, u8::from(view.state() == state));
        }
    }
    all.begin("array_failures_left", "gauge", "How many more members may fail, whichever they are.");
    for (name, view) in views() {
        all.line("array_failures_left", &[("array", name)], view.failures_left());
    }
    all.begin("array_processes", "gauge", "Processes that use the array, as far as they can be seen.");
    for (name, view) in views() {
        all.line("array_processes", &[("array", name)], view.processes.len());
    }
    all.begin("member_state", "gauge", "1 for the state that the member is in.");
    for (name, view) in views() {
        for member in &view.members {
            let slot = member.slot.to_string();
            for (state, text) in MEMBER_STATES {
                let labels = [("array", name), ("slot", slot.as_str()), ("member", member.path.as_str()), ("state", text)];
                all.line("member_state", &labels, u8::from(member.state == state));
            }
        }
    }
    for (metric, help, of) in [
        (
            "member_size_bytes",
            "Bytes of the member's file system.",
            (|member| member.bytes_total) as fn(&crate::view::MemberView) -> _,
        ),
        ("member_free_bytes", "Bytes that an ordinary user may still fill there.", |member| member.bytes_free),
    ] {
        all.begin(metric, "gauge", help);
        for (name, view) in views() {
            for member in &view.members {
                if let Some(bytes) = of(member) {
                    all.line(metric, &[("array", name), ("slot", &member.slot.to_string()), ("member", &member.path)], bytes);
                }
            }
        }
    }
    files(&mut all, &views().collect::<Vec<_>>());
    all.begin("spare_ready", "gauge", "1 for a spare that can take a member's place.");
    for (name, view) in views() {
        for spare in &view.spares {
            all.line("spare_ready", &[("array", name), ("spare", &spare.path)], u8::from(spare.state.works()));
        }
    }
    jobs(&mut all, &views().collect::<Vec<_>>());
    calls(&mut all, samples);
    all.begin("last_scrub_timestamp_seconds", "gauge", "When the last scrub of the whole array ended, in seconds since 1970.");
    for (name, view) in views() {
        if let Some(scrub) = &view.last_scrub {
            all.line("last_scrub_timestamp_seconds", &[("array", name)], scrub.ns / 1_000_000_000);
        }
    }
    all.begin("last_scrub_wrong", "gauge", "How many things did not fit in the last scrub of the whole array.");
    for (name, view) in views() {
        if let Some(scrub) = &view.last_scrub {
            all.line("last_scrub_wrong", &[("array", name)], scrub.wrong);
        }
    }
    all.begin("events_total", "counter", "Events in the array's log, by kind; a log that is begun anew counts on.");
    for sample in samples {
        let others = sample.events.keys().map(String::as_str).filter(|kind| !EVENTS.contains(kind));
        for kind in EVENTS.into_iter().chain(others) {
            let labels = [("array", sample.name), ("event", kind)];
            all.line("events_total", &labels, sample.events.get(kind).copied().unwrap_or(0));
        }
    }
    all.text
}

/// What programs did on the arrays, from the counters that 'cxlraid top' shows.
fn calls(all: &mut Metrics, samples: &[Sample<'_>]) {
    let counted = || samples.iter().filter_map(|sample| Some((sample, sample.counted?)));
    all.begin("calls_total", "counter", "Calls of programs on the array that did not fail, by what they do.");
    for (sample, counted) in counted() {
        for (kind, name) in [(Kind::Read, "read"), (Kind::Write, "write"), (Kind::Sync, "sync"), (Kind::Other, "other")] {
            all.line("calls_total", &[("array", sample.name), ("kind", name)], counted.all.calls(kind));
        }
    }
    const WAYS: [(Way, &str); 2] = [(Way::Read, "read"), (Way::Write, "write")];
    all.begin("bytes_total", "counter", "Bytes that such calls have read and written.");
    for (sample, counted) in counted() {
        for (way, name) in WAYS {
            all.line("bytes_total", &[("array", sample.name), ("kind", name)], counted.all.bytes(way));
        }
    }
    for (metric, help) in [
        ("member_calls_total", "Calls that moved bytes on the member, estimated from some of them."),
        ("member_bytes_total", "Bytes that such calls moved there, parity and copies included, estimated."),
    ] {
        all.begin(metric, "counter", help);
        for (sample, counted) in counted() {
            for member in sample.view.iter().flat_map(|view| &view.members) {
                // As they were counted: what is scaled to all calls may fall.
                let Some(moved) = counted.members.get(member.slot) else { continue };
                let numbers = if metric == "member_calls_total" { moved.calls } else { moved.bytes };
                for (way, name) in WAYS {
                    let slot = member.slot.to_string();
                    let labels = [("array", sample.name), ("slot", &slot), ("member", &member.path), ("kind", name)];
                    all.line(metric, &labels, numbers[way as usize]);
                }
            }
        }
    }
}

/// Files with less redundancy than they should have, and files that cannot be read whole.
fn files(all: &mut Metrics, views: &[(&str, &ArrayView)]) {
    all.begin(
        "files",
        "gauge",
        "Files with bytes: all, those with less redundancy than they should have, and those that cannot be read whole.",
    );
    for (name, view) in views {
        let Some((count, degraded, lost)) = count_files(view) else { continue };
        for (state, count) in [("all", count), ("degraded", degraded), ("lost", lost)] {
            all.line("files", &[("array", name), ("state", state)], count);
        }
    }
}

/// By the inode table of a member that holds everything; None if there is none, or this user may
/// not read it.
fn count_files(view: &ArrayView) -> Option<(u64, u64, u64)> {
    let whole = view.members.iter().find(|member| member.state == MemberState::InSync)?;
    let meta = Path::new(&whole.path).join(format::DIRECTORY.to_str().ok()?);
    let out: MemberSet = view.members.iter().filter(|member| !member.state.works()).map(|member| member.slot).collect();
    let (mut count, mut degraded, mut lost) = (0, 0, 0);
    records::each(&meta, |record| {
        if record.size == 0 {
            return;
        }
        count += 1;
        let lacking = out.union(record.resync.map_or(MemberSet::EMPTY, |resync| resync.lost));
        if !record.geometry().survives(lacking) {
            lost += 1;
        } else if !lacking.is_empty() {
            degraded += 1;
        }
    })?;
    Some((count, degraded, lost))
}

fn jobs(all: &mut Metrics, views: &[(&str, &ArrayView)]) {
    all.begin("jobs", "gauge", "Rebuilds, replacements, re-adds and scrubs that run.");
    for (name, view) in views {
        for kind in ["rebuild", "replacement", "re-add", "scrub"] {
            let count = view.jobs.iter().filter(|job| job.kind == kind).count();
            all.line("jobs", &[("array", name), ("kind", kind)], count);
        }
    }
    type Of = fn(&crate::view::JobView) -> u64;
    let metrics: [(&str, &str, Of); 6] = [
        ("job_paused", "1 while the job is paused.", |job| u64::from(job.paused)),
        ("job_files_done", "Files that the job has done.", |job| job.files_done),
        ("job_files", "Files that the job is to do in all.", |job| job.files_total),
        ("job_done_bytes", "Bytes of data that the job has done.", |job| job.bytes_done),
        ("job_bytes", "Bytes of data that the job is to do in all.", |job| job.bytes_total),
        ("job_bytes_per_second", "Bytes of data that the job does in a second.", |job| job.bytes_per_second),
    ];
    for (metric, help, of) in metrics {
        all.begin(metric, "gauge", help);
        for (name, view) in views {
            for job in &view.jobs {
                all.line(metric, &[("array", name), ("kind", job.kind)], of(job));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::array;
    use layout::Level;

    #[test]
    fn what_is_known_is_told_in_the_format_of_prometheus() {
        let mut view = array(Level::Raid5, &[MemberState::InSync, MemberState::Missing, MemberState::InSync]);
        view.members[1].path = "/mnt/a \"b\"\\\n".to_owned();
        let events = BTreeMap::from([("Fail".to_owned(), 2), ("Later".to_owned(), 1)]);
        let samples = [
            Sample { name: "db", view: Some(&view), counted: Some(&AllCounted::default()), events: &events },
            Sample { name: "gone", view: None, counted: None, events: &BTreeMap::new() },
        ];
        let text = text(&samples);
        for line in [
            "cxlraid_array_looked_at{array=\"db\"} 1",
            "cxlraid_array_looked_at{array=\"gone\"} 0",
            "cxlraid_array_state{array=\"db\",uuid=\"6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001\",level=\"5\",state=\"degraded\"} 1",
            "cxlraid_member_state{array=\"db\",slot=\"1\",member=\"/mnt/a \\\"b\\\"\\\\\\n\",state=\"missing\"} 1",
            "cxlraid_array_failures_left{array=\"db\"} 0",
            "cxlraid_events_total{array=\"db\",event=\"Fail\"} 2",
            "cxlraid_events_total{array=\"db\",event=\"Later\"} 1",
            "cxlraid_events_total{array=\"gone\",event=\"Fail\"} 0",
            "cxlraid_jobs{array=\"db\",kind=\"scrub\"} 0",
            "cxlraid_calls_total{array=\"db\",kind=\"sync\"} 0",
            "cxlraid_bytes_total{array=\"db\",kind=\"write\"} 0",
            "cxlraid_member_bytes_total{array=\"db\",slot=\"0\",member=\"/mnt/a\",kind=\"read\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        // Each metric is described once, before its lines, which stand together.
        let mut described = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => described.push(rest.split(' ').next().unwrap().to_owned()),
                None if line.starts_with('#') => {}
                None => assert_eq!(Some(line.split('{').next().unwrap()), described.last().map(String::as_str), "{line}"),
            }
        }
        let count = described.len();
        described.sort();
        described.dedup();
        assert_eq!(described.len(), count);
    }
}
