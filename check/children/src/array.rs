//! An array under test: its shape, its members, programs that see it, and what must hold when no
//! program uses it.
//!
//! - All members are in sync: `cxlraid status` exits with 0.
//! - Names, modes and owners are the same on all members, and redundancy fits the data
//!   (`stage::scrub`).
//! - Nothing is in the host's directory of the prefix's name: every call was seen.
//! - `cxlraid stop` ends the runtime state, so no process has it; then nothing of the array is left
//!   in `/dev/shm`.

use crate::ground::Place;
use stage::remove;
use stage::{
    report::{Complaints, with_output},
    run::Run,
};
use std::{ffi::OsString, fs, path::PathBuf};

/// The word that makes this program look at the array of its environment.
pub(crate) const SCRUB: &str = "scrub";

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    member_count: usize,
    chunk: &'static str,
}

impl Shape {
    /// Small chunks where files are striped, so that small files extend over many.
    pub(crate) const ALL: [Self; 3] = [
        Self { label: "raid1", level: "1", member_count: 3, chunk: "64K" },
        Self { label: "raid5", level: "5", member_count: 3, chunk: "4K" },
        Self { label: "raid6", level: "6", member_count: 4, chunk: "8K" },
    ];
}

/// Members, and the environment that makes programs see them as an array. Removed when dropped.
pub(crate) struct Array<'a> {
    place: &'a Place<'a>,
    shape: Shape,
    /// The name of the array, for the operator's command.
    name: String,
    members: Vec<PathBuf>,
    directory: PathBuf,
    keep: bool,
}

impl<'a> Array<'a> {
    /// A new array, made by `cxlraid create`. `name` is unique among the arrays of a run.
    pub(crate) fn new(place: &'a Place<'a>, shape: Shape, name: &str) -> Result<Self, String> {
        let directory = place.root.join(shape.label);
        let members: Vec<PathBuf> = (0..shape.member_count).map(|slot| directory.join(format!("m{slot}"))).collect();
        for member in &members {
            fs::create_dir_all(member).map_err(|error| format!("{}: {error}", member.display()))?;
        }
        place.clear().map_err(|error| format!("{}: {error}", place.data.display()))?;
        let array = Self { place, shape, name: format!("{name}-{}", shape.label), members, directory, keep: false };
        let create = array.command("create").args(["--level", shape.level, "--chunk", shape.chunk, "--at"]);
        let made = create.arg(&place.data).args(&array.members).output();
        if made.succeeded() { Ok(array) } else { Err(with_output("cxlraid create", &made)) }
    }

    fn variables(&self) -> [(&'static str, OsString); 4] {
        let mounts = self.members.iter().map(|member| member.as_os_str()).collect::<Vec<_>>().join(":".as_ref());
        [
            ("CXLRAID_LEVEL", self.shape.level.into()),
            ("CXLRAID_MOUNTS", mounts),
            ("CXLRAID_PATHS", self.place.data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", self.shape.chunk.into()),
        ]
    }

    fn with_variables(&self, run: Run<'a>) -> Run<'a> {
        self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// A program that sees the array.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        self.with_variables(self.place.run(program)).env("LD_PRELOAD", &self.place.ground.library)
    }

    /// The operator's command on this array.
    fn command(&self, word: &str) -> Run<'a> {
        self.place.run(&self.place.ground.command).args([word, &self.name])
    }

    /// All that must hold when no program uses the array. The first look is the command's, which
    /// changes nothing.
    pub(crate) fn check(&self, complaints: &mut Complaints) {
        let status = self.command("status").output();
        if !status.succeeded() {
            complaints.push(with_output("cxlraid status", &status));
        }
        let this = std::env::current_exe().unwrap_or_default();
        let scrub = self.with_variables(self.place.run(this)).arg(SCRUB).output();
        if !scrub.succeeded() || !scrub.stderr.is_empty() {
            complaints.push(with_output("redundancy", &scrub));
        }
        let leaked = stage::scrub::leaked(&self.place.data);
        if !leaked.is_empty() {
            complaints.push(format!("on the host, beside the array: {}", leaked.join(", ")));
        }
        let Some(segment) = stage::segment::segment_of(&self.members[0]) else { return };
        let stopped = self.command("stop").output();
        if !stopped.succeeded() {
            complaints.push(with_output("cxlraid stop", &stopped));
        }
        let prefix = segment.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let left: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
        if !left.is_empty() {
            complaints.push(format!("left in /dev/shm: {}", left.join(", ")));
        }
    }

    /// Leaves everything where it is, for a look at what went wrong.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
        self.place.ground.janitor.keep();
        println!("       kept: {}", self.directory.display());
    }
}

impl Drop for Array<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        stage::segment::forget(&self.members);
        // What cannot be removed now the janitor removes later.
        let _ = remove(&self.directory);
        let _ = self.command("forget").output();
    }
}
