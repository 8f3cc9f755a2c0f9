//! An array under test, and what must hold when a scene has ended on it.
//!
//! - Names, modes and owners are the same on all members in use, and redundancy fits the data
//!   (`stage::scrub`).
//! - Every file reads the same with each further member away that the level bears.
//! - Each loss was told of at most once, by all processes together.
//! - Nothing is in the host's directory of the prefix's name: every call was seen. When nobody uses
//!   the array, nothing of it is left in `/dev/shm`.

use crate::{
    ground::{Place, unmount},
    shape::{Event, Shape},
};
use stage::{
    remove,
    report::{Complaints, compare, with_output},
    run::{Output, Run},
};
use std::{ffi::OsString, fs, path::PathBuf};

/// The word that makes this program look at the array of its environment.
pub(crate) const SCRUB: &str = "scrub";

/// Names, types, modes, sizes and sums of what lies in $1.
const CONTENT: &str = r#"
cd "$1" || exit 90
find . \( -type d -printf '%y %m %P\n' \) -o \( -type f -printf '%y %m %s links %n %P\n' \) -o -printf '%y %m %P -> %l\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// Lists what lies in the directory under test, with sums; `bash` is a shell that sees the array,
/// or none.
pub(crate) fn content(place: &Place<'_>, bash: Run<'_>) -> Output {
    bash.args(["-c", CONTENT, "content"]).arg(&place.data).output()
}

/// Members, and the environment that makes programs see them as an array. Removed when dropped.
pub(crate) struct Array<'a> {
    place: &'a Place<'a>,
    shape: Shape,
    pub(crate) members: Vec<PathBuf>,
    /// The file systems that some of them have of their own.
    mounted: Vec<PathBuf>,
    directory: PathBuf,
    keep: bool,
}

impl<'a> Array<'a> {
    /// A new array, made by the first program that sees it.
    pub(crate) fn new(place: &'a Place<'a>, shape: Shape, events: &[Event], name: &str) -> Result<Self, String> {
        let directory = place.root.join(name);
        // A directory of a file system of its own can be renamed there, and what mkfs makes is not
        // in it.
        let member = |slot: usize| directory.join(format!("disk{slot}")).join(format!("m{slot}"));
        let members: Vec<PathBuf> = (0..shape.member_count).map(member).collect();
        let mut mounted = Vec::new();
        let needs_mount = |slot| events.iter().any(|event| event.slot == slot && event.what.needs_mount());
        for (slot, member) in members.iter().enumerate() {
            let Some(disk) = member.parent() else { continue };
            let failed = |error: std::io::Error| format!("{}: {error}", member.display());
            fs::create_dir_all(disk).map_err(failed)?;
            if place.ground.can_mount && needs_mount(slot) {
                place.ground.mount(disk)?;
                mounted.push(disk.to_owned());
            }
            fs::create_dir(member).map_err(failed)?;
        }
        let array = Self { place, shape, members, mounted, directory, keep: false };
        let made = array.run("mkdir").args(["-p"]).arg(&place.data).output();
        if made.succeeded() { Ok(array) } else { Err(with_output("the first program on the array", &made)) }
    }

    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mounts = self.members.iter().map(|member| member.as_os_str()).collect::<Vec<_>>().join(":".as_ref());
        vec![
            ("CXLRAID_LEVEL", self.shape.level.into()),
            ("CXLRAID_MOUNTS", mounts),
            ("CXLRAID_PATHS", self.place.data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", self.shape.chunk.into()),
            ("CXLRAID_JOURNAL", if self.shape.journal { "internal" } else { "" }.into()),
        ]
    }

    /// A program that finds the array's variables, but not the library.
    pub(crate) fn beside(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        self.variables().into_iter().fold(self.place.run(program), |run, (name, value)| run.env(name, value))
    }

    /// A program that sees the array.
    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Run<'a> {
        self.beside(program).env("LD_PRELOAD", &self.place.ground.library)
    }

    /// All that must hold when no program uses the array, of which these members are lost.
    /// `expected`: what lies there.
    pub(crate) fn check(&self, lost: &[usize], expected: &Output, complaints: &mut Complaints) {
        compare("the files", expected, &content(self.place, self.run("bash")), complaints);
        // This program, even if another is built in its place meanwhile.
        let this = "/proc/self/exe";
        let scrub = self.beside(this).arg(SCRUB).output();
        if !scrub.succeeded() {
            complaints.push(with_output("redundancy", &scrub));
        }
        for slot in (0..self.members.len()).filter(|slot| !lost.contains(slot)) {
            if self.shape.survives(&[lost, &[slot]].concat()) {
                self.forget_runtime(complaints);
                if let Err(error) = self.without(slot, expected, complaints) {
                    complaints.push(format!("member {slot} away: {error}"));
                }
            }
        }
        self.forget_runtime(complaints);
        let leaked = stage::scrub::leaked(&self.place.data);
        if !leaked.is_empty() {
            complaints.push(format!("on the host, beside the array: {}", leaked.join(", ")));
        }
    }

    fn without(&self, slot: usize, expected: &Output, complaints: &mut Complaints) -> std::io::Result<()> {
        let away = self.members[slot].with_extension("further");
        fs::rename(&self.members[slot], &away)?;
        compare(&format!("the files without member {slot}"), expected, &content(self.place, self.run("bash")), complaints);
        fs::rename(&away, &self.members[slot])
    }

    /// Removes the runtime segment, as the operator's command does if nobody uses the array.
    fn forget_runtime(&self, complaints: &mut Complaints) {
        let Some(segment) = self.members.iter().find_map(|member| stage::segment::segment_of(member)) else { return };
        let stopped = self.beside(&self.place.ground.command).arg("stop").output();
        let left = segment.exists() && !stopped.stderr.contains("no array");
        if !stopped.succeeded() || left {
            complaints.push(with_output("cxlraid stop", &stopped));
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
        if !self.keep {
            for disk in &self.mounted {
                unmount(disk);
            }
            stage::segment::forget(&self.members);
            // What cannot be removed now the janitor removes later.
            let _ = remove(&self.directory);
        }
    }
}
