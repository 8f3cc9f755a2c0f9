//! An array under test: its shape, its member directories, and members that are taken away and
//! brought back.

use crate::{place::Place, process::Run};
use stage::Watch;
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a program may take whose system calls are under watch.
const WATCHED_LIMIT: Duration = Duration::from_secs(300);

/// The word that makes this program look at the array of its environment.
pub(crate) const SCRUB: &str = "scrub";

/// Level, members and chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) label: &'static str,
    pub(crate) level: &'static str,
    pub(crate) member_count: usize,
    pub(crate) chunk: &'static str,
    /// How many members may be missing.
    pub(crate) bears: usize,
    /// Whether members hold whole files under their own names.
    pub(crate) plain_files: bool,
    /// Whether the prefix exists on the host, as an empty directory.
    pub(crate) prefix_exists: bool,
    /// As in CXLRAID_JOURNAL; empty for none.
    pub(crate) journal: &'static str,
}

const fn shape(label: &'static str, level: &'static str, member_count: usize, chunk: &'static str, bears: usize) -> Shape {
    Shape { label, level, member_count, chunk, bears, plain_files: false, prefix_exists: true, journal: "" }
}

impl Shape {
    pub(crate) const RAID1: Self = Self { plain_files: true, ..shape("raid1", "1", 3, "64K", 2) };
    pub(crate) const RAID5: Self = shape("raid5", "5", 3, "64K", 1);
    pub(crate) const RAID5_SMALL: Self = shape("raid5/4K", "5", 3, "4096", 1);
    pub(crate) const RAID5_LARGE: Self = shape("raid5/1M", "5", 3, "1M", 1);
    pub(crate) const RAID6: Self = Self { prefix_exists: false, ..shape("raid6", "6", 4, "65536", 2) };
    pub(crate) const JOURNAL: Self = Self { label: "journal", journal: "internal", ..Self::RAID5 };
    /// What a case runs on that does not name others.
    pub(crate) const ALL: [Self; 5] = [Self::RAID1, Self::RAID5, Self::RAID5_SMALL, Self::RAID6, Self::JOURNAL];
    /// For what mappings do: their pieces are chunks, and with a journal or a member missing there
    /// are none.
    pub(crate) const PIECES: [Self; 4] = [Self::RAID5, Self::RAID5_SMALL, Self::RAID5_LARGE, Self::JOURNAL];
}

/// Members, and the environment that makes programs see them as an array. Removed when dropped.
pub(crate) struct Array<'a> {
    pub(crate) place: &'a Place<'a>,
    pub(crate) shape: Shape,
    pub(crate) members: Vec<PathBuf>,
    directory: PathBuf,
    watch: Option<Watch>,
    keep: bool,
}

impl<'a> Array<'a> {
    /// Empty member directories. The first program that uses them makes them an array.
    pub(crate) fn new(place: &'a Place<'a>, shape: Shape, name: &str) -> io::Result<Self> {
        let directory = place.root.join(name.replace('/', "-"));
        let members: Vec<PathBuf> = (0..shape.member_count).map(|slot| directory.join(format!("m{slot}"))).collect();
        for member in &members {
            fs::create_dir_all(member)?;
        }
        place.clear()?;
        if !shape.prefix_exists {
            fs::remove_dir(&place.data)?;
        }
        let log = || Watch::new(directory.join("calls")).map_err(io::Error::other);
        let watch = place.ground.watched.then(log).transpose()?;
        Ok(Self { place, shape, members, directory, watch, keep: false })
    }

    /// The variables of the array, without the library.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 5] {
        let mounts = self.members.iter().map(|member| member.as_os_str()).collect::<Vec<_>>().join(":".as_ref());
        [
            ("CXLRAID_LEVEL", self.shape.level.into()),
            ("CXLRAID_MOUNTS", mounts),
            ("CXLRAID_PATHS", self.place.data.clone().into()),
            ("CXLRAID_STRIPE_SIZE", self.shape.chunk.into()),
            ("CXLRAID_JOURNAL", self.shape.journal.into()),
        ]
    }

    /// A program that sees the array.
    pub(crate) fn run(&self, program: &str) -> Run<'a> {
        let mut run = self.place.run(program).env("STRICT", "strict").env("LD_PRELOAD", &self.place.ground.library);
        if let Some(watch) = &self.watch {
            run = run.env(stage::watch::VARIABLE, watch.path()).limit(WATCHED_LIMIT);
        }
        self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// What the watch over system calls saw since it was last asked, if there is one.
    pub(crate) fn seen(&self) -> Option<Result<String, String>> {
        self.watch.as_ref().map(Watch::take)
    }

    /// The operator's command on the array; it needs no interception.
    pub(crate) fn command(&self) -> Run<'a> {
        let run = self.place.run(&self.place.ground.command.to_string_lossy());
        self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// This program, looking at the array from outside; no program may be using it.
    pub(crate) fn scrub(&self) -> Run<'a> {
        let this = std::env::current_exe().unwrap_or_default();
        let run = self.place.run(&this.to_string_lossy()).arg(SCRUB);
        self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value))
    }

    /// Beside the member: it may lie on a file system of its own.
    fn away(&self, slot: usize) -> PathBuf {
        self.members[slot].with_extension("away")
    }

    /// Takes a member away, as an unmounted device.
    pub(crate) fn lose(&self, slot: usize) -> io::Result<()> {
        fs::rename(&self.members[slot], self.away(slot))
    }

    /// Brings it back.
    pub(crate) fn bring_back(&self, slot: usize) -> io::Result<()> {
        fs::rename(self.away(slot), &self.members[slot])
    }

    /// The members that are there.
    pub(crate) fn present(&self) -> impl Iterator<Item = &PathBuf> {
        self.members.iter().filter(|member| member.is_dir())
    }

    /// The directory under test as it lies on a member.
    pub(crate) fn on_member(&self, member: &Path) -> PathBuf {
        member.join(self.place.data.strip_prefix("/").unwrap_or(&self.place.data))
    }

    /// Leaves everything where it is, for a look at what went wrong.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Array<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let away = (0..self.members.len()).map(|slot| self.away(slot));
        stage::segment::forget(self.members.iter().cloned().chain(away));
        // What cannot be removed now the janitor removes later.
        let _ = crate::place::remove(&self.directory);
    }
}
