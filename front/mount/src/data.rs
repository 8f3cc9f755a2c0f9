//! Requests that open files and directories, read, write, and change space.

use crate::{
    attributes::tell_modified,
    caller,
    handles::{Handle, Listed},
    names::{inside, opened_again},
    session::{Answer, Done, Session},
    wire::{
        self, CreateIn, CreateOut, EntryHead, FallocateIn, FlushIn, FsyncIn, Header, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn,
        ReleaseIn, WriteIn, WriteOut, op,
    },
};
use file::{Cached, FileRef};
use linux_raw_sys::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use namespace::{Access, AtFlags, Node as Kind, OFlags, Opened, ProgramPath};
use std::{thread, time::Duration};
use sys::rustix::fs::{CWD, Dir, Mode, openat};
use sys::{AsFd as _, OsError, Result};

/// A file that the kernel opens to execute it (__FMODE_EXEC).
const FOR_EXECUTION: u32 = 0o40;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// The length of a name in a directory's answer counts in whole words.
const WORD_BYTES: usize = 8;
/// How far the kind of a file lies behind the bits of its mode in what a directory tells.
const KIND_SHIFT: u32 = 12;
/// So often it is looked whether a writer is out of the way, each time after a moment.
const PATIENCE_COUNT: u32 = 100;
const MOMENT: Duration = Duration::from_millis(1);
/// How many times an opening asks whether a mapping of the other door has ended, and how long it waits
/// before it asks again.
const RELEASE_COUNT: u32 = 100;
const RELEASE_MOMENT: Duration = Duration::from_millis(2);

impl Session {
    pub(crate) fn open(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<OpenIn>(body)?;
        let flags = OFlags::from_bits_retain(asked.flags);
        // The caller's rights are those of the file itself; what is opened then is the array's,
        // with all rights.
        let wanted = match flags & OFlags::RWMODE {
            _ if asked.flags & FOR_EXECUTION != 0 => Access::EXEC_OK,
            OFlags::RDONLY if flags.contains(OFlags::TRUNC) => Access::READ_OK | Access::WRITE_OK,
            OFlags::RDONLY => Access::READ_OK,
            OFlags::WRONLY => Access::WRITE_OK,
            _ => Access::READ_OK | Access::WRITE_OK,
        };
        self.on_node(header.node, |fd, kind| self.names.access_open(fd, kind, wanted, AtFlags::EACCESS))?;
        let kept = flags & (OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK);
        let opened = caller::as_root(|| {
            let again = || self.on_node(header.node, |fd, kind| self.names.reopen(fd, kind, kept | OFlags::CLOEXEC, 0));
            match again() {
                // Its making was cut short, which is made good when it is opened by its name.
                Err(OsError::IO | OsError::STALE) => {
                    let path = self.names.logical_path_of(self.nodes.get(header.node)?.fd())?.ok_or(OsError::STALE)?;
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    match self.names.open(ProgramPath::known(&path), flags, 0) {
                        // The name is another file's since it was looked up, or nobody's. After this
                        // error the kernel looks it up once more.
                        Err(OsError::NOENT) => return Err(OsError::STALE),
                        opened => inside(opened?)?,
                    };
                    again()
                }
                opened => opened,
            }
        })?;
        let cached = cached(&opened, flags)?;
        if let (Kind::File(file), true) = (&opened.node, flags.contains(OFlags::TRUNC)) {
            caller::losing_set_id(asked.open_flags & wire::OPEN_KILL_SET_ID != 0, || file.truncate(0))?;
            tell_modified(file, opened.anchor.as_fd());
        }
        answer.put(&self.handle(header.node, opened, flags, cached))
    }

    fn handle(&self, node: u64, opened: Opened, opened_with: OFlags, cached: Option<Cached>) -> OpenOut {
        let flags = if matches!(opened.node, Kind::File(_)) { wire::OPEN_DIRECT_IO } else { 0 };
        OpenOut { handle: self.handles.enter(node, opened, opened_with, cached), flags, padding: 0 }
    }

    /// Makes a file, or opens the one that another has made meanwhile; or makes a file without a
    /// name (O_TMPFILE).
    pub(crate) fn create(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<CreateIn>(body)?;
        let kept = OFlags::RWMODE | OFlags::APPEND | OFlags::EXCL | OFlags::TRUNC | OFlags::NONBLOCK;
        let flags = OFlags::from_bits_retain(asked.flags) & kept | OFlags::CLOEXEC;
        caller::mask(asked.umask);
        let opened = if header.operation == op::TMPFILE {
            self.names.reopen(self.nodes.get(header.node)?.fd(), &Kind::Path(None), flags | OFlags::TMPFILE, asked.mode)?
        } else {
            let child = self.nodes.child(header.node, wire::split_name(rest)?.0)?;
            inside(self.names.open(child.path(), flags | OFlags::CREATE | OFlags::NOFOLLOW, asked.mode)?)?
        };
        answer.is_settled = true;
        // The anchor's member may fail at any time.
        let entry = self.over_losses(|| {
            let open = |link: &[u8]| openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            self.entry(self.names.with_link(opened.anchor.as_fd(), &opened.node, open)?, None)
        })?;
        let flags = OFlags::from_bits_retain(asked.flags);
        let cached = cached(&opened, flags);
        let cached = cached.inspect_err(|_| self.nodes.forget(entry.node, 1))?;
        answer.put(&CreateOut { entry, open: self.handle(entry.node, opened, flags, cached) })
    }

    /// Runs `act` on an open file.
    fn on_file<T>(&self, handle: u64, act: impl FnOnce(&FileRef, &Handle) -> Result<T>) -> Result<T> {
        let opened = self.handles.get(handle)?;
        match &opened.node {
            Kind::File(file) => act(file, &opened),
            Kind::Directory(_) => Err(OsError::ISDIR),
            _ => Err(OsError::INVAL),
        }
    }

    pub(crate) fn read(&self, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<ReadIn>(body)?;
        require_range(asked.offset, asked.bytes.into())?;
        self.on_file(asked.handle, |file, opened| {
            answer.fill(asked.bytes as usize, |buffer| {
                let within = |position: u64| file.size().saturating_sub(position).min(buffer.len() as u64);
                let (position, bytes) = opened.place(file, asked.offset, within);
                let is_call = asked.read_flags & wire::READ_LOCK_OWNER != 0;
                let done = if is_call { file.read_slice(position, buffer) } else { read_pages(file, position, buffer) };
                opened.has_moved(file, (asked.offset, position), bytes, done.unwrap_or(0) as u64);
                done
            })
        })
    }

    pub(crate) fn write(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<WriteIn>(body)?;
        let bytes = rest.get(..asked.bytes as usize).ok_or(OsError::INVAL)?;
        require_range(asked.offset, asked.bytes.into())?;
        let flags = OFlags::from_bits_retain(asked.flags);
        let is_cached = asked.write_flags & wire::WRITE_CACHE != 0;
        if header.user != 0 && !is_cached && asked.write_flags & wire::WRITE_KILL_SET_ID == 0 {
            // Other users than root have to lose set-ID bits, unless they have a capability.
            caller::take_set_id_right(header);
        }
        self.on_file(asked.handle, |file, opened| {
            let store = || {
                if is_cached {
                    store_pages(file, asked.offset, bytes)
                } else if flags.contains(OFlags::APPEND) {
                    let (start, done) = file.append_slice(bytes)?;
                    opened.has_appended(file, asked.offset, done as u64, start + done as u64);
                    Ok(done)
                } else {
                    let (position, reserved) = opened.place(file, asked.offset, |_| bytes.len() as u64);
                    let done = file.write_slice(position, bytes);
                    opened.has_moved(file, (asked.offset, position), reserved, *done.as_ref().unwrap_or(&0) as u64);
                    done
                }
            };
            let written = caller::losing_set_id(asked.write_flags & wire::WRITE_KILL_SET_ID != 0, store);
            if flags.contains(OFlags::APPEND) && !is_cached && written.is_err() {
                self.handles.note_refused(header, asked.handle, asked.offset);
            }
            let written = written?;
            tell_modified(file, opened.anchor.as_fd());
            if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
                file.sync()?;
            }
            answer.put(&WriteOut { bytes: written as u32, padding: 0 })
        })
    }

    pub(crate) fn allocate(&self, body: &[u8]) -> Result<Done> {
        const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        const ZERO_KEEP: u32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
        let (asked, _) = wire::split::<FallocateIn>(body)?;
        require_range(asked.offset, asked.length)?;
        self.on_file(asked.handle, |file, opened| {
            let (offset, length) = (asked.offset, asked.length);
            match asked.mode {
                0 => file.allocate(offset, length, false),
                FALLOC_FL_KEEP_SIZE => file.allocate(offset, length, true),
                PUNCH | ZERO_KEEP => file.punch(offset, length, false),
                FALLOC_FL_ZERO_RANGE => file.punch(offset, length, true),
                _ => return Err(OsError::OPNOTSUPP),
            }?;
            tell_modified(file, opened.anchor.as_fd());
            Ok(Done::Answered)
        })
    }

    pub(crate) fn seek(&self, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<LseekIn>(body)?;
        self.on_file(asked.handle, |file, _| match asked.whence {
            SEEK_DATA | SEEK_HOLE if asked.offset <= i64::MAX as u64 => {
                answer.put(&LseekOut { offset: file.seek_extent(asked.offset, asked.whence == SEEK_DATA)? })
            }
            SEEK_DATA | SEEK_HOLE => Err(OsError::NXIO),
            _ => Err(OsError::INVAL),
        })
    }

    pub(crate) fn sync(&self, body: &[u8]) -> Result<Done> {
        let (asked, _) = wire::split::<FsyncIn>(body)?;
        self.on_file(asked.handle, |file, _| {
            // Programs that have the file mapped first see to what they have stored there.
            file.call_writers().and_then(|()| file.sync()).map(|()| Done::Answered)
        })
    }

    /// A program has closed a descriptor: its locks by fcntl(2) on the file go, and the program is told
    /// the times now that the file keeps. The handle is released later.
    pub(crate) fn flush(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let (asked, _) = wire::split::<FlushIn>(body)?;
        self.locks.forget_owner(header.node, asked.lock_owner);
        if let Ok(opened) = self.handles.get(asked.handle)
            && let (Kind::File(file), true) = (&opened.node, opened.is_for_writing)
        {
            caller::as_root(|| file.settle_at_close());
        }
        Ok(Done::Answered)
    }

    pub(crate) fn release(&self, body: &[u8]) -> Result<Done> {
        let (asked, _) = wire::split::<ReleaseIn>(body)?;
        caller::become_root();
        self.locks.forget_handle(asked.handle);
        self.handles.remove(asked.handle);
        Ok(Done::Answered)
    }

    pub(crate) fn open_directory(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<OpenIn>(body)?;
        let here = self.nodes.itself(header.node)?;
        let kept = OFlags::from_bits_retain(asked.flags) & OFlags::NOATIME;
        let flags = kept | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match self.names.open(here.path(), flags, 0) {
            // The path leads through the directory itself. Who may read a directory may list it, also
            // without the right to go through it.
            Err(OsError::ACCESS) => {
                self.on_node(header.node, |fd, kind| self.names.access_open(fd, kind, Access::READ_OK, AtFlags::EACCESS))?;
                caller::as_root(|| self.names.open(here.path(), flags - OFlags::NOATIME, 0))?
            }
            opened => opened?,
        };
        answer.put(&self.handle(header.node, inside(opened)?, OFlags::RDONLY, None))
    }

    /// Names in a directory, from a position on. Reading from the beginning reads the directory
    /// anew, on the member that answers now.
    pub(crate) fn read_directory(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<ReadIn>(body)?;
        let handle = self.handles.get(asked.handle)?;
        let mut listed = handle.listed();
        if asked.offset == 0 {
            // The right to read it was asked for when it was opened.
            *listed = caller::as_root(|| self.names_in(header.node))?;
        }
        let start = usize::try_from(asked.offset).unwrap_or(usize::MAX);
        for (index, Listed { name, inode, kind }) in listed.iter().enumerate().skip(start) {
            let padding = name.len().next_multiple_of(WORD_BYTES) - name.len();
            if answer.len() + size_of::<EntryHead>() + name.len() + padding > asked.bytes as usize {
                break;
            }
            let (offset, kind) = (index as u64 + 1, kind.as_raw_mode() >> KIND_SHIFT);
            answer.put(&EntryHead { inode: *inode, offset, name_bytes: name.len() as u32, kind })?;
            answer.put_bytes(name)?;
            answer.put_bytes(&[0; WORD_BYTES][..padding])?;
        }
        Ok(Done::Answered)
    }

    fn names_in(&self, directory: u64) -> Result<Vec<Listed>> {
        let node = self.nodes.get(directory)?;
        let path = self.names.logical_path_of(node.fd())?.unwrap_or_default();
        let opened = opened_again(node.fd(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        let mut listed = Vec::new();
        for entry in Dir::new(opened)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes().to_vec();
            if !self.names.hides(&path, &name) {
                listed.push(Listed { name, inode: entry.ino(), kind: entry.file_type() });
            }
        }
        Ok(listed)
    }

    pub(crate) fn sync_directory(&self, header: &Header) -> Result<Done> {
        let node = self.nodes.get(header.node)?;
        self.names.sync_directory(node.fd()).map(|()| Done::Answered)
    }
}

/// Refuses what no kernel sends: a range that ends after the largest offset of a file.
pub(crate) fn require_range(offset: u64, bytes: u64) -> Result<()> {
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64);
    if fits { Ok(()) } else { Err(OsError::INVAL) }
}

/// Reads pages for the kernel's cache. The program that waits for them may be the writer who is in
/// the way: it writes to the file from memory that is a mapping of the file.
fn read_pages(file: &FileRef, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    for _ in 0..PATIENCE_COUNT {
        if let Some(done) = file.read_slice_at_once(offset, buffer, false)? {
            return Ok(done);
        }
        thread::sleep(MOMENT);
    }
    match file.read_slice_at_once(offset, buffer, true)? {
        Some(done) => Ok(done),
        None => file.read_slice(offset, buffer),
    }
}

/// Stores pages of the kernel's cache, which a program has stored to through a mapping. A file that
/// the other door has cut meanwhile does not grow by that: to the kernel all of them are stored.
fn store_pages(file: &FileRef, offset: u64, bytes: &[u8]) -> Result<usize> {
    let within = file.size().saturating_sub(offset).min(bytes.len() as u64) as usize;
    let mut done = 0;
    while done < within {
        let rest = &bytes[done..within];
        match file.write_slice(offset + done as u64, rest)? {
            0 => return Err(OsError::IO),
            count => done += count,
        }
    }
    Ok(bytes.len())
}

/// Lets the kernel cache a file that is opened for reading and writing, so that the program can map
/// it shared and writable: no program of the library can do so until the opening ends. The kernel
/// says nothing of mmap(2), so each such opening counts.
///
/// # Errors
/// `BUSY` if a program of the library may store to the file by a shared mapping, and goes on so for a
/// while: neither mapping would show the stores of the other, and the kernel would write whole pages
/// over them.
fn cached(opened: &Opened, flags: OFlags) -> Result<Option<Cached>> {
    let Kind::File(file) = &opened.node else { return Ok(None) };
    if flags & OFlags::RWMODE != OFlags::RDWR {
        return Ok(None);
    }
    let mut tries = 0;
    loop {
        match caller::as_root(|| Cached::new(file)) {
            // A mapping ends a moment after munmap(2), or the death of its process.
            Err(OsError::BUSY) if tries < RELEASE_COUNT => thread::sleep(RELEASE_MOMENT),
            cached => return cached.map(Some),
        }
        tries += 1;
    }
}
