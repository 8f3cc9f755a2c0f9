//! An array under test, and the plain directory it is compared with: both run programs in the
//! directory under test.

use crate::place::Place;
use stage::{
    report::{Complaints, with_output},
    run::Run,
};
use std::{ffi::OsString, fs, path::PathBuf};

/// The word that makes this program look at the array of its environment.
pub(crate) const SCRUB: &str = "scrub";

/// Makes an empty directory to work in, enters it, and becomes the program of the arguments.
const ENTER: &str = r#"cd / && rm -rf "$DATA"/* && mkdir "$DATA/tmp" && cd "$DATA/tmp" && export TMPDIR=$DATA/tmp && exec "$@""#;

/// Level, members, and what is special about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    level: &'static str,
    /// Whether a member is taken away before programs run.
    is_degraded: bool,
    journal: &'static str,
}

impl Shape {
    const MEMBER_COUNT: usize = 3;
    pub(crate) const ALL: [Self; 4] = [
        Self { label: "raid5", level: "5", is_degraded: false, journal: "" },
        Self { label: "missing", level: "5", is_degraded: true, journal: "" },
        Self { label: "raid1", level: "1", is_degraded: false, journal: "" },
        Self { label: "journal", level: "5", is_degraded: false, journal: "internal" },
    ];
}

/// The directory under test, as programs see it.
pub(crate) enum Tested<'a> {
    Plain(&'a Place),
    Array(Array<'a>),
}

impl<'a> Tested<'a> {
    /// A program that works in a new, empty directory of the one under test.
    pub(crate) fn run(&self, program: &str) -> Run<'a> {
        let place = self.place();
        let shell = place.run("bash").args(["-c", ENTER, "bash", program]).env("DATA", &place.data);
        match self {
            Self::Plain(_) => shell,
            Self::Array(array) => array.with_variables(shell).env("LD_PRELOAD", &place.library),
        }
    }

    pub(crate) const fn place(&self) -> &'a Place {
        match self {
            Self::Plain(place) => place,
            Self::Array(array) => array.place,
        }
    }
}

/// Members, and the environment that makes programs see them as an array. Removed when dropped.
pub(crate) struct Array<'a> {
    place: &'a Place,
    shape: Shape,
    members: Vec<PathBuf>,
    pub(crate) is_kept: bool,
}

impl<'a> Array<'a> {
    pub(crate) fn new(place: &'a Place, shape: Shape) -> Result<Self, String> {
        let directory = place.members(shape.label);
        let members: Vec<PathBuf> = (0..Shape::MEMBER_COUNT).map(|slot| directory.join(format!("m{slot}"))).collect();
        for member in &members {
            fs::create_dir_all(member).map_err(|error| format!("{}: {error}", member.display()))?;
        }
        let array = Self { place, shape, members, is_kept: false };
        // The first program that names the array makes it.
        let made = array
            .with_variables(place.run("bash"))
            .env("LD_PRELOAD", &place.library)
            .args(["-c", r#"mkdir -p "$1""#, "bash"])
            .arg(&place.data)
            .output();
        if !made.succeeded() {
            return Err(with_output("making the array", &made));
        }
        if shape.is_degraded {
            let away = directory.join("away");
            fs::rename(&array.members[1], &away).map_err(|error| format!("{}: {error}", away.display()))?;
        }
        Ok(array)
    }

    fn variables(&self) -> [(&'static str, OsString); 4] {
        let mounts = self.members.iter().map(|member| member.as_os_str()).collect::<Vec<_>>().join(":".as_ref());
        [
            ("CXLRAID_LEVEL", self.shape.level.into()),
            ("CXLRAID_MOUNTS", mounts),
            ("CXLRAID_PATHS", self.place.data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", "64K".into()),
        ]
    }

    fn with_variables(&self, run: Run<'a>) -> Run<'a> {
        let run = self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value));
        if self.shape.journal.is_empty() { run } else { run.env("CXLRAID_JOURNAL", self.shape.journal) }
    }

    /// What must hold when no program uses the array.
    pub(crate) fn check(&self) -> Complaints {
        let mut complaints = Complaints::new();
        let this = std::env::current_exe().unwrap_or_default();
        let scrub = self.with_variables(self.place.run(this)).arg(SCRUB).output();
        if !scrub.succeeded() || !scrub.stderr.is_empty() {
            complaints.push(with_output("redundancy", &scrub));
        }
        let leaked = stage::scrub::leaked(&self.place.data);
        if !leaked.is_empty() {
            complaints.push(format!("on the host, beside the array: {}", leaked.join(", ")));
        }
        complaints
    }
}

impl Drop for Array<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            self.place.janitor.keep();
            return println!("       kept: {}", self.place.members(self.shape.label).display());
        }
        stage::segment::forget(&self.members);
        // What cannot be removed now the janitor removes later.
        let _ = stage::remove(&self.place.members(self.shape.label));
    }
}
