//! One file of an array is moved to another level: a copy of that level takes its name.
//!
//! The caller holds the array alone, and all members are in use. The copy has no name until it is
//! whole and durable, so whatever ends this process leaves one file under the name, and nothing else
//! that the next start or the next `migrate` does not remove (`namespace::Namespace::supplant`).
//!
//! A file stays as it is if anything of it could not be kept: its owner, an attribute, another name,
//! a flag that forbids to change it (immutable, append-only). Other flags of inodes (nodump, those of
//! compression) are neither looked at nor kept. The file stays as well if its redundancy does not fit
//! its data: the copy would hold whatever was read, with redundancy that fits.

use crate::{
    drift::is_same,
    failure::Failure,
    files::inside,
    job,
    runtime::capacity,
    tree::{self, CAREFULLY},
};
use file::{FileRef, ScrubMode, Watch};
use format::RuleShape;
use layout::Geometry;
use namespace::{Namespace, Node, OFlags, Opened, ProgramPath, Stat, XattrFlags};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::Path,
};
use sys::{
    OsError,
    rustix::fs::{FileType, IFlags, Timespec, Timestamps, ioctl_getflags},
};
use units::Shown;

/// Blocks of zeros of a striped file are left out of the copy, in units of so many bytes: where
/// members have no hole of the same size, a stripe counts as data as a whole.
const BLOCK_BYTES: usize = 4096;
/// About how many bytes are copied at a time.
const STEP_BYTES: u64 = 4 << 20;
/// The most that are copied at a time, where stripes are long.
const STEP_BYTES_MAX: u64 = 32 << 20;
/// What a file of sums takes beyond the sums.
const SUMS_BYTES: u64 = 8192;

/// What is to become of a file.
pub(crate) enum Outlook {
    /// It has the level and chunk already.
    Same,
    /// It has these, and is to get others.
    Moves(RuleShape),
}

/// Why a file was not moved.
pub(crate) enum Fault {
    /// It stays as it is; other files may be moved.
    Refused(Failure),
    /// The command was told to end.
    Ended,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

/// A file that may be moved, open.
pub(crate) struct Candidate<'n> {
    names: &'n Namespace,
    path: &'n [u8],
    /// Its times are those from before this process read anything of the file.
    stat: Stat,
    opened: Opened,
    file: FileRef,
    wanted: RuleShape,
}

impl<'n> Candidate<'n> {
    /// Looks at the file at a logical path, which is to get the shape `wanted`. The file is opened as
    /// by a program that writes to it, so what waited for that is made good.
    pub(crate) fn look(names: &'n Namespace, path: &'n [u8], wanted: RuleShape) -> Result<(Outlook, Option<Self>), Failure> {
        let failed = |error: io::Error| refused(path, error, "");
        let open = |flags| {
            let opened = inside(names.open(ProgramPath::known(path), flags | OFlags::NOFOLLOW | CAREFULLY, 0))?;
            match &opened.node {
                Node::File(file) => Ok((file.clone(), opened)),
                _ => Err(tree::no_file()),
            }
        };
        let (file, opened) = match open(OFlags::RDWR) {
            Ok(found) => found,
            Err(error) => {
                // Who may not write to a file may hear that nothing is to be done.
                let is_there = open(OFlags::RDONLY).is_ok_and(|(file, _)| is_same(RuleShape::of(file.geometry()), wanted));
                let todo = "who moves a file must be allowed to write to it, and to replace it";
                return if is_there { Ok((Outlook::Same, None)) } else { Err(refused(path, error, todo)) };
            }
        };
        let has = RuleShape::of(file.geometry());
        if is_same(has, wanted) {
            return Ok((Outlook::Same, None));
        }
        // Not by the path, at which somebody may have put another file meanwhile: the copy of one would
        // be given the other's owner and mode. To open a file changes none of its times.
        let stat = names.fstat_surely(opened.anchor.as_fd(), &opened.node);
        let stat = stat.map_err(|error| failed(io::Error::from(error)))?;
        let found = Self { names, path, stat, opened, file, wanted };
        found.require_movable()?;
        Ok((Outlook::Moves(has), Some(found)))
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.size()
    }

    fn refused(&self, what: impl std::fmt::Display, todo: &str) -> Failure {
        refused(self.path, what, todo)
    }

    fn require_movable(&self) -> Result<(), Failure> {
        let links = self.stat.st_nlink;
        if links > 1 {
            let what = format!("has {links} names, of which one alone would lead to the new file");
            return Err(self.refused(what, "remove the others, and link them again when the file is moved"));
        }
        let flags = IFlags::IMMUTABLE | IFlags::APPEND;
        for (slot, backing) in self.file.in_use() {
            let found = backing.fd().and_then(ioctl_getflags).unwrap_or(IFlags::empty());
            if found.intersects(flags) {
                let member = self.names.files().array().members()[slot].shown().to_string();
                let what = format!("may not be replaced: it is immutable or append-only on {member}");
                return Err(self.refused(what, "'chattr -ia' it there"));
            }
        }
        if !self.names.files().is_settled(self.file.attribute()).unwrap_or(false) {
            return Err(
                self.refused("has bytes that wait to be made good", "'cxlraid rebuild' or 'cxlraid scrub' the array first")
            );
        }
        self.require_room()
    }

    /// Refuses a file whose copy has no room on some member.
    fn require_room(&self) -> Result<(), Failure> {
        let (files, members) = (self.names.files(), self.names.files().array().members());
        let geometry = Geometry::new(self.wanted.level, members.len(), self.wanted.chunk)
            .map_err(|error| self.refused(error, "choose another level or chunk"))?;
        let mut needed = 0_u64;
        self.each_data(&mut |from, to| {
            let start = geometry.member_offset(geometry.stripe_of(from)) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            needed += geometry.member_bytes(to).next_multiple_of(BLOCK_BYTES as u64).saturating_sub(start);
            Ok(())
        })
        .map_err(|error| self.refused(io::Error::from(error), ""))?;
        if files.array().has_sums() {
            needed += needed / (BLOCK_BYTES as u64 / 8) + SUMS_BYTES;
        }
        // Members may lie on one file system.
        let mut devices: BTreeMap<u64, (u64, &array::Member)> = BTreeMap::new();
        for member in members {
            devices.entry(member.device).or_insert((0, member)).0 += needed;
        }
        for (needed, member) in devices.values() {
            let room = capacity(Path::new(OsStr::from_bytes(&member.path))).map(|(_, free)| free);
            if room.is_some_and(|room| room < *needed) {
                let what = format!(
                    "its copy has no room on {}: {} are needed, and {} are free",
                    member.shown(),
                    crate::view::bytes_text(*needed),
                    crate::view::bytes_text(room.unwrap_or(0))
                );
                return Err(self.refused(what, "make room there"));
            }
        }
        Ok(())
    }

    /// Calls `act` with each range of the file that is no hole.
    fn each_data(&self, act: &mut dyn FnMut(u64, u64) -> sys::Result<()>) -> sys::Result<()> {
        let (mut at, size) = (0, self.file.size());
        while at < size {
            let from = match self.file.seek_extent(at, true) {
                Err(OsError::NXIO) => break,
                found => found?,
            };
            at = self.file.seek_extent(from, false)?;
            act(from, at)?;
        }
        Ok(())
    }

    /// Refuses a file whose redundancy does not fit its data, or data that do not fit their checksums.
    fn require_sound(&self) -> Result<(), Fault> {
        let (mut flaws, mut is_ended) = (0_u64, false);
        let mut found = |_: &array::Mismatch, _| flaws += 1;
        let mut goes_on = |_, _| {
            is_ended = job::is_ended();
            !is_ended
        };
        let scrubbed = self.file.scrub(ScrubMode::Check, &mut Watch { found: &mut found, goes_on: &mut goes_on });
        let scrubbed = scrubbed.map_err(|error| self.refused(io::Error::from(error), ""))?;
        if is_ended {
            return Err(Fault::Ended);
        }
        if flaws > 0 || scrubbed.unsettled_bytes > 0 || !scrubbed.out.is_empty() {
            return Err(self
                .refused("what members hold of it does not fit together", "'cxlraid scrub --repair' the array")
                .into());
        }
        Ok(())
    }

    /// Moves the file.
    pub(crate) fn move_it(self) -> Result<(), Fault> {
        self.require_sound()?;
        let files = self.names.files();
        let failed = |action: &str, error: OsError| {
            let todo = match error {
                OsError::NOSPC | OsError::DQUOT => "make room on the members; the file is as it was",
                OsError::ACCESS | OsError::PERM => "who moves a file must be allowed to write to it, and to replace it",
                _ => "the file is as it was",
            };
            Fault::from(refused(self.path, format!("{action}: {}", io::Error::from(error)), todo))
        };
        let cut = self.path.iter().rposition(|&byte| byte == b'/').unwrap_or(0).max(1);
        let directory = &self.path[..cut];
        let directory_stat = inside(self.names.stat(ProgramPath::known(directory), false))
            .map_err(|error| Fault::from(refused(directory, error, "")))?;
        let shape = files.shape_from(self.wanted).map_err(|error| failed("a file of that level cannot be made", error))?;
        let copy = self.names.make_of(directory, shape).map_err(|error| failed("its copy cannot be made", error))?;
        let Node::File(new) = &copy.node else { return Err(failed("its copy cannot be made", OsError::IO)) };
        self.copy_bytes(new).map_err(|error| match error {
            None => Fault::Ended,
            Some(error) => failed("cannot be copied", error),
        })?;
        new.trim_now().map_err(|error| failed("its copy cannot be cut to its length", error))?;
        self.copy_attributes(&copy)?;
        new.sync().map_err(|error| failed("its copy cannot be made durable", error))?;
        if !files.array().runtime().out().is_empty() {
            return Err(
                refused(self.path, "a member failed meanwhile", "'cxlraid status' says which; the file is as it was").into()
            );
        }
        if job::is_ended() {
            return Err(Fault::Ended);
        }
        let (names, path, old) = (self.names, self.path, self.file.attribute());
        let new = new.clone();
        drop((self.file, self.opened));
        names.supplant(path, old, &new).map_err(|error| failed_to_replace(path, error))?;
        drop((new, copy));
        // Who may not set the directory's times leaves them as those of any change in it.
        let _ = names.utimens(ProgramPath::known(directory), &times_of(&directory_stat), false);
        Ok(())
    }

    /// Copies what is no hole. The error is None if the command is to end.
    fn copy_bytes(&self, new: &FileRef) -> Result<(), Option<OsError>> {
        new.truncate(self.file.size())?;
        let stripe = new.geometry().stripe_bytes();
        let step = if stripe > STEP_BYTES_MAX { STEP_BYTES } else { STEP_BYTES.next_multiple_of(stripe) };
        let may_skip = self.file.geometry().level().has_chunks();
        let (mut buffer, mut is_ended) = (Vec::new(), false);
        self.each_data(&mut |from, to| {
            let mut at = from;
            while at < to {
                if job::is_ended() {
                    is_ended = true;
                    return Err(OsError::INTR);
                }
                let end = to.min((at / step + 1) * step);
                buffer.resize((end - at) as usize, 0);
                let count = self.file.read_slice(at, &mut buffer)?;
                if count as u64 != end - at {
                    return Err(OsError::IO);
                }
                for (start, bytes) in kept(&buffer, at, may_skip) {
                    write_all(new, start, bytes)?;
                }
                job::count_bytes(end - at);
                at = end;
            }
            Ok(())
        })
        .map_err(|error| Some(error).filter(|_| !is_ended))
    }

    /// Gives the copy the owner, extended attributes, mode and times of the file.
    fn copy_attributes(&self, copy: &Opened) -> Result<(), Failure> {
        let (names, fd) = (self.names, copy.anchor.as_fd());
        let lost = |what: String, error: io::Error| {
            let todo = match error.raw_os_error().map(OsError::from_raw_os_error) {
                Some(OsError::NOSPC | OsError::DQUOT) => "make room on the members; the file is as it was",
                Some(OsError::PERM | OsError::ACCESS) => "run it as a user who may set that, as root may",
                _ => "the file is as it was",
            };
            self.refused(format!("{what} cannot be kept: {error}"), todo)
        };
        let owner = |error: OsError| lost("its owner".to_owned(), error.into());
        let made = names.fstat(fd, &copy.node).map_err(owner)?;
        if (made.st_uid, made.st_gid) != (self.stat.st_uid, self.stat.st_gid) {
            names.fchown(fd, &copy.node, self.stat.st_uid, self.stat.st_gid).map_err(owner)?;
        }
        let attributes_of = |opened: &Opened| {
            let listed = tree::attribute_names(|buffer| Ok(names.listxattr_open(opened.anchor.as_fd(), &opened.node, buffer)?));
            listed
                .map(|listed| listed.into_iter().collect::<BTreeSet<_>>())
                .map_err(|error| lost("what it has of attributes".to_owned(), error))
        };
        let value_of = |opened: &Opened, name: &std::ffi::CStr| {
            tree::whole(|buffer| Ok(names.getxattr_open(opened.anchor.as_fd(), &opened.node, name.to_bytes(), buffer)?))
        };
        let wanted = attributes_of(&self.opened)?;
        let called = |name: &std::ffi::CStr| format!("its attribute {}", Shown(name.to_bytes()));
        // A directory gives what is made in it access lists and labels of its own choice.
        for name in attributes_of(copy)?.difference(&wanted) {
            names
                .fremovexattr(fd, &copy.node, name.to_bytes())
                .map_err(|error| lost(format!("that it has not {}", Shown(name.to_bytes())), error.into()))?;
        }
        for name in &wanted {
            let value = value_of(&self.opened, name).map_err(|error| lost(called(name), error))?;
            if value_of(copy, name).is_ok_and(|present| present == value) {
                continue;
            }
            let set = names.fsetxattr(fd, &copy.node, name.to_bytes(), &value, XattrFlags::empty());
            set.map_err(|error| lost(called(name), error.into()))?;
        }
        let mode = |error: OsError| lost("its mode".to_owned(), error.into());
        names.fchmod(fd, &copy.node, self.stat.st_mode & 0o7777).map_err(mode)?;
        names.futimens(fd, &copy.node, &times_of(&self.stat)).map_err(|error| lost("its times".to_owned(), error.into()))?;
        let found = names.fstat(fd, &copy.node).map_err(mode)?;
        let told = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_mtime_nsec);
        if told(&found) != told(&self.stat) || found.st_size != self.stat.st_size {
            return Err(self.refused("its copy does not have its owner, mode, time and length", "the file is as it was"));
        }
        Ok(())
    }
}

fn failed_to_replace(path: &[u8], error: OsError) -> Fault {
    let what = match error {
        OsError::STALE => "another file has its name by now".to_owned(),
        OsError::MLINK => "has several names by now".to_owned(),
        OsError::BUSY => {
            "is in use, or a member does not give its name to another file (the next change of names does that then)".to_owned()
        }
        error => format!("cannot be replaced: {}", io::Error::from(error)),
    };
    let todo = match error {
        OsError::ACCESS | OsError::PERM => "who moves a file must be allowed to write to it, and to replace it",
        _ => "'cxlraid status' says how the members are",
    };
    refused(path, what, todo).into()
}

/// What is said of a file that stays as it is.
pub(crate) fn refused(path: &[u8], what: impl std::fmt::Display, todo: &str) -> Failure {
    Failure::new(Shown(path), what, todo)
}

/// Returns what is to be written of bytes that lie at `at`: all of them, or with `may_skip` the runs of
/// blocks that are not zeros alone.
fn kept(bytes: &[u8], at: u64, may_skip: bool) -> Vec<(u64, &[u8])> {
    if !may_skip {
        return vec![(at, bytes)];
    }
    let (mut runs, mut begun, mut offset) = (Vec::new(), None, 0);
    while offset < bytes.len() {
        let within = ((at + offset as u64) % BLOCK_BYTES as u64) as usize;
        let end = bytes.len().min(offset + BLOCK_BYTES - within);
        let is_zero = bytes[offset..end].iter().all(|&byte| byte == 0);
        match (is_zero, begun) {
            (true, Some(start)) => {
                runs.push((at + start as u64, &bytes[start..offset]));
                begun = None;
            }
            (false, None) => begun = Some(offset),
            _ => {}
        }
        offset = end;
    }
    runs.extend(begun.map(|start| (at + start as u64, &bytes[start..])));
    runs
}

fn write_all(file: &FileRef, mut offset: u64, mut bytes: &[u8]) -> sys::Result<()> {
    while !bytes.is_empty() {
        let count = file.write_slice(offset, bytes)?;
        if count == 0 {
            return Err(OsError::IO);
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Returns what kind of file a stat(2) is of.
pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_are_left_out_where_they_may_be() {
        let mut bytes = vec![0; 5 * BLOCK_BYTES + 10];
        bytes[BLOCK_BYTES + 5] = 1;
        bytes[3 * BLOCK_BYTES] = 2;
        bytes[5 * BLOCK_BYTES + 9] = 3;
        let spans = |at, may_skip| kept(&bytes, at, may_skip).iter().map(|(at, run)| (*at, run.len())).collect::<Vec<_>>();
        assert_eq!(spans(0, false), [(0, bytes.len())]);
        assert_eq!(spans(0, true), [(4096, 4096), (12288, 4096), (20480, 10)]);
        // Blocks are those of the file.
        assert_eq!(spans(4096 + 100, true)[0], (4096 + 100 + 3996, 4096));
        assert!(kept(&[0; 9000], 77, true).is_empty());
    }
}
