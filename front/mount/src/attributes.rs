//! Requests that read and change what files and directories are like.

use crate::{
    caller,
    session::{Answer, Done, Session},
    wire::{self, AttributesOut, GetattrIn, GetxattrIn, GetxattrOut, Header, SetattrIn, SetxattrIn, StatxIn, StatxOut, valid},
};
use file::FileRef;
use namespace::{Access, AtFlags, FileType, Namespace, Node as Kind, OFlags, StatxFlags, Timestamps, XattrFlags, handover};
use std::{thread, time::Duration};
use sys::rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT, fstat};
use sys::{AsFd as _, BorrowedFd, OsError, Result};

/// Values and lists of extended attributes are at most this long (xattr(7)).
const XATTR_BYTES_MAX: usize = 65536;
/// So often a change of what is stale is tried again, each time after a moment.
const STALE_TRY_COUNT: u32 = 20;
const MOMENT: Duration = Duration::from_millis(1);
/// Leaves an owner or a group as it is (chown(2)).
const UNCHANGED: u32 = u32::MAX;

impl Session {
    /// Runs `act` on a descriptor of what a request is about: the open file that it names, else the
    /// descriptor that only names the thing. What is open and no file is looked at by the latter,
    /// too, which follows when another member answers.
    fn on<T>(&self, header: &Header, handle: Option<u64>, mut act: impl FnMut(BorrowedFd<'_>, &Kind) -> Result<T>) -> Result<T> {
        match handle.map(|handle| self.handles.get(handle)) {
            Some(Ok(opened)) if matches!(opened.node, Kind::File(_)) => act(opened.anchor.as_fd(), &opened.node),
            _ => self.on_node(header.node, act),
        }
    }

    /// Runs `act` on the descriptor that names something. A file without a name that is open can be
    /// reached by that alone once the member of the descriptor has failed.
    pub(crate) fn on_node<T>(&self, node: u64, mut act: impl FnMut(BorrowedFd<'_>, &Kind) -> Result<T>) -> Result<T> {
        match self.nodes.get(node).and_then(|found| act(found.fd(), &Kind::Path(None))) {
            Err(error) if Namespace::may_be_failure(error) => match self.handles.file_of(node) {
                Some(opened) => act(opened.anchor.as_fd(), &opened.node),
                None => match caller::as_root(|| self.nodes.find_anew(node)) {
                    Some(again) => act(again.fd(), &Kind::Path(None)),
                    None => Err(error),
                },
            },
            result => result,
        }
    }

    pub(crate) fn get_attributes(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<GetattrIn>(body)?;
        let handle = (asked.flags & wire::GETATTR_HANDLE != 0).then_some(asked.handle);
        self.tell_attributes(header, handle, answer)
    }

    fn tell_attributes(&self, header: &Header, handle: Option<u64>, answer: &mut Answer) -> Result<Done> {
        let stat = self.on(header, handle, |fd, kind| caller::as_root(|| self.names.fstat_surely(fd, kind)))?;
        answer.put(&AttributesOut { attributes: (&stat).into(), ..AttributesOut::default() })
    }

    /// Tells what a program asks for that wants the time of birth (statx(2)).
    pub(crate) fn tell_more(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<StatxIn>(body)?;
        let handle = (asked.flags & wire::GETATTR_HANDLE != 0).then_some(asked.handle);
        let (flags, mask) = (AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        let stat = self.on(header, handle, |fd, kind| caller::as_root(|| self.names.fstatx_surely(fd, kind, flags, mask)))?;
        answer.put(&StatxOut::from(&stat))
    }

    pub(crate) fn set_attributes(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<SetattrIn>(body)?;
        let has = |field: u32| asked.valid & field != 0;
        let handle = has(valid::HANDLE).then_some(asked.handle);
        if answer.is_cut_by_kernel {
            return self.tell_attributes(header, handle, answer);
        }
        let change = |fd: BorrowedFd<'_>, kind: &Kind| {
            if !has(valid::CHANGES) {
                match self.names.fchown(fd, kind, UNCHANGED, UNCHANGED) {
                    // The kernel announces a change of bytes in this way, too, which takes the bits
                    // away by itself.
                    Err(OsError::PERM) => {}
                    result => result?,
                }
            }
            if has(valid::MODE) {
                self.names.fchmod(fd, kind, asked.mode)?;
            }
            if has(valid::USER | valid::GROUP) {
                let id = |field: u32, id: u32| if has(field) { id } else { UNCHANGED };
                self.names.fchown(fd, kind, id(valid::USER, asked.user), id(valid::GROUP, asked.group))?;
            }
            if has(valid::SIZE) {
                match kind {
                    Kind::File(file) => {
                        file.truncate(asked.size)?;
                        tell_modified(file, fd);
                    }
                    kind => self.truncate(fd, kind, asked.size)?,
                }
            }
            if has(valid::ACCESS | valid::MODIFICATION) {
                let time = |field: u32, now: u32, seconds: u64, nanoseconds: u32| match () {
                    () if has(now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                    () if has(field) => Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds.into() },
                    () => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                };
                let times = Timestamps {
                    last_access: time(valid::ACCESS, valid::ACCESS_NOW, asked.access, asked.access_ns),
                    last_modification: time(
                        valid::MODIFICATION,
                        valid::MODIFICATION_NOW,
                        asked.modification,
                        asked.modification_ns,
                    ),
                };
                self.names.futimens(fd, kind, &times)?;
            }
            Ok(())
        };
        while_stale(|| caller::losing_set_id(has(valid::KILL_SET_ID), || self.on(header, handle, change)))?;
        while_stale(|| self.tell_attributes(header, handle, answer))
    }

    /// Truncates what a descriptor only names. The caller's right to write decides; what the array
    /// needs of the file to do it the caller need not be allowed to read.
    fn truncate(&self, fd: BorrowedFd<'_>, kind: &Kind, bytes: u64) -> Result<()> {
        if FileType::from_raw_mode(self.names.fstat(fd, kind)?.st_mode) != FileType::RegularFile {
            return self.names.truncate_open(fd, kind, bytes);
        }
        self.names.access_open(fd, kind, Access::WRITE_OK, AtFlags::EACCESS)?;
        let opened = match caller::as_root(|| self.names.reopen(fd, kind, OFlags::WRONLY | OFlags::CLOEXEC, 0)) {
            // Somebody has replaced or removed the file after it was looked up.
            Err(OsError::STALE) if caller::as_root(|| self.names.is_gone(fd))? => return Ok(()),
            opened => opened?,
        };
        let Kind::File(file) = &opened.node else { return Err(OsError::INVAL) };
        file.truncate(bytes)?;
        tell_modified(file, opened.anchor.as_fd());
        Ok(())
    }

    pub(crate) fn get_xattr(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<GetxattrIn>(body)?;
        let name = wire::split_name(rest)?.0;
        if name == handover::PATH.to_bytes() {
            return give(asked.bytes, answer, |buffer| self.on_node(header.node, |fd, _| self.tell_path(fd, buffer)));
        }
        give(asked.bytes, answer, |buffer| self.on_node(header.node, |fd, kind| self.names.getxattr_open(fd, kind, name, buffer)))
    }

    /// Tells where in the array a node is now.
    fn tell_path(&self, fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
        if fstat(fd)?.st_nlink == 0 {
            return Err(OsError::NOENT);
        }
        let path = self.names.logical_path_of(fd)?.ok_or(OsError::NODATA)?;
        if !buffer.is_empty() {
            buffer.get_mut(..path.len()).ok_or(OsError::RANGE)?.copy_from_slice(&path);
        }
        Ok(path.len())
    }

    pub(crate) fn list_xattrs(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<GetxattrIn>(body)?;
        let list = |buffer: &mut [u8]| self.on_node(header.node, |fd, kind| self.names.listxattr_open(fd, kind, buffer));
        if caller::sees_trusted_names(header) {
            return give(asked.bytes, answer, list);
        }
        // Which trusted names there are only who administers the machine is told (CAP_SYS_ADMIN). To
        // the members this process asks, which may know.
        let mut all = vec![0; XATTR_BYTES_MAX];
        let bytes = list(&mut all)?;
        let told = all[..bytes].split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(b"trusted."));
        let told: Vec<u8> = told.flatten().copied().collect();
        match asked.bytes as usize {
            0 => answer.put(&GetxattrOut { bytes: told.len() as u32, padding: 0 }),
            room if room < told.len() => Err(OsError::RANGE),
            _ => answer.put_bytes(&told),
        }
    }

    pub(crate) fn set_xattr(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let (asked, rest) = wire::split::<SetxattrIn>(body)?;
        let (name, rest) = wire::split_name(rest)?;
        let value = rest.get(..asked.bytes as usize).ok_or(OsError::INVAL)?;
        let flags = XattrFlags::from_bits_retain(asked.flags);
        self.on_node(header.node, |fd, kind| self.names.fsetxattr(fd, kind, name, value, flags))?;
        Ok(Done::Answered)
    }

    pub(crate) fn remove_xattr(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let name = wire::split_name(body)?.0;
        self.on_node(header.node, |fd, kind| self.names.fremovexattr(fd, kind, name))?;
        Ok(Done::Answered)
    }
}

/// Runs `act`, and again for a moment as long as it is stale: a file without a name whose last user
/// closes it now can be found no more, and is not gone yet.
fn while_stale<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..STALE_TRY_COUNT {
        match act() {
            Err(OsError::STALE) => thread::sleep(MOMENT),
            result => return result,
        }
    }
    act()
}

/// Answers with a value, or with its length if the program has room for none.
fn give(room: u32, answer: &mut Answer, get: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Done> {
    if room == 0 {
        return answer.put(&GetxattrOut { bytes: get(&mut [])? as u32, padding: 0 });
    }
    answer.fill((room as usize).min(XATTR_BYTES_MAX), get)
}

/// Tells those who watch a file (inotify(7)) that it was modified: members' files need not change
/// with it.
pub(crate) fn tell_modified(file: &FileRef, anchor: BorrowedFd<'_>) {
    if file.may_be_watched() {
        file.tell_modified(anchor);
    }
}
