//! Locks of programs: fcntl(2) and flock(2). They lie on the members, where those of programs that
//! the library serves lie, so that both exclude each other.
//!
//! A lock by flock(2) is the open file description's, and is put on the handle's anchor. A lock by
//! fcntl(2) is an *owner's*: a process, or for F_OFD_SETLK a description. Each owner that has locks
//! on a file has an open file description of its own on the file's anchor, and its locks are those
//! of that description.
//!
//! When a process closes any descriptor of a file, all its locks on the file go (flush). The kernel
//! does not say when a description with locks of its own goes. So each owner's description notes
//! the handles by which locks were asked for, and goes with the last of them.
//!
//! Requests that wait are tried again every [`PERIOD`] by one thread, so no worker waits for a
//! program. The kernel says when a waiting process is interrupted.

use crate::{
    handles::Handle,
    names::opened_again,
    session::{Answer, Done, Session},
    wire::{self, Header, InterruptIn, LOCK_FLOCK, LockIn, LockOut, op},
};
use file::{FileLock, LockKind, RESERVED_OFFSET};
use namespace::{Namespace, Node as Kind, OFlags};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use sys::ofd_lock::{self, Held, Wish};
use sys::rustix::fs::{FlockOperation, flock};
use sys::{AsFd as _, BorrowedFd, OsError, OwnedFd, Result};

/// How long a lock that is waited for is left alone.
const PERIOD: Duration = Duration::from_millis(2);
/// How often it is looked whether another member answers than before.
const REST: Duration = Duration::from_millis(50);
/// Interruptions that are remembered: each may come before the request that it is about.
const INTERRUPTED_COUNT_MAX: usize = 64;
const READ: u32 = 0;
const WRITE: u32 = 1;
const UNLOCK: u32 = 2;

/// Whose locks: the file's number, and the kernel's number for the owner.
type Owner = (u64, u64);

struct Description {
    fd: Arc<OwnedFd>,
    /// The handles by which it asked for locks.
    handles: Vec<u64>,
    process: u32,
}

#[derive(Default)]
struct State {
    owners: HashMap<Owner, Description>,
    waiting: Vec<Waiting>,
    interrupted: VecDeque<u64>,
}

/// A request that waits for a lock.
struct Waiting {
    unique: u64,
    wanted: Wanted,
}

#[derive(Clone)]
struct Wanted {
    handle: Arc<Handle>,
    /// None for flock(2).
    description: Option<Arc<OwnedFd>>,
    wish: Wish,
    start: i64,
    bytes: i64,
}

/// All locks of one mount.
#[derive(Default)]
pub(crate) struct Locks {
    state: Mutex<State>,
    changed: Condvar,
}

impl Locks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An owner's locks on a file go. A request of the owner's that waits still may get its lock.
    pub(crate) fn forget_owner(&self, node: u64, owner: u64) {
        let mut state = self.state();
        let State { owners, waiting, .. } = &mut *state;
        let Some(description) = owners.get(&(node, owner)) else { return };
        let is_own = |wanted: &Wanted| wanted.description.as_ref().is_some_and(|fd| Arc::ptr_eq(fd, &description.fd));
        if waiting.iter().any(|waiting| is_own(&waiting.wanted)) {
            let _ = ofd_lock::set(description.fd.as_fd(), Wish::None, 0, RESERVED_OFFSET);
        } else {
            owners.remove(&(node, owner));
        }
    }

    /// A handle goes, and with it the owners that have used no other.
    pub(crate) fn forget_handle(&self, handle: u64) {
        self.state().owners.retain(|_, description| {
            let count = description.handles.len();
            description.handles.retain(|&used| used != handle);
            count == 0 || !description.handles.is_empty()
        });
    }

    /// Wakes who waits for locks, at the end of the mount: between its look whether the mount has
    /// ended and its wait it holds the state.
    pub(crate) fn end(&self) {
        let state = self.state();
        self.changed.notify_all();
        drop(state);
    }
}

impl Wanted {
    /// Takes or gives back the lock, without waiting.
    fn try_once(&self) -> Result<()> {
        let Kind::File(file) = &self.handle.node else { return self.take() };
        if self.wish == Wish::None || !file.has_locks_apart() {
            return self.take();
        }
        let lock = match self.description {
            Some(_) => description_lock(self.wish, self.start, self.bytes),
            None => FileLock {
                kind: LockKind::Flock,
                excludes: self.wish == Wish::Exclusive,
                process: -1,
                start: self.start as u64,
                last: u64::MAX,
            },
        };
        let fd = self.description.as_ref().map_or_else(|| self.handle.locked(), |fd| fd.as_fd());
        file.with_locks_held(|| if file.conflict_elsewhere(fd, &lock).is_some() { Err(OsError::AGAIN) } else { self.take() })
    }

    fn take(&self) -> Result<()> {
        match &self.description {
            Some(fd) => ofd_lock::set(fd.as_fd(), self.wish, self.start, self.bytes),
            None => flock(
                self.handle.locked(),
                match self.wish {
                    Wish::Shared => FlockOperation::NonBlockingLockShared,
                    Wish::Exclusive => FlockOperation::NonBlockingLockExclusive,
                    Wish::None => FlockOperation::NonBlockingUnlock,
                },
            ),
        }
    }
}

/// Returns the lock that a description asks for. A range of no bytes stands for its first byte.
fn description_lock(wish: Wish, start: i64, bytes: i64) -> FileLock {
    let last = (start + bytes.max(1) - 1) as u64;
    FileLock { kind: LockKind::Description, excludes: wish == Wish::Exclusive, process: -1, start: start as u64, last }
}

/// Returns a lock because of which a description cannot be given the one that it asks for: on the file
/// of the member that `fd` is open on, or, since a member was lost, on the file of another member.
fn conflict(handle: &Handle, fd: BorrowedFd<'_>, wish: Wish, (start, bytes): (i64, i64)) -> Result<Option<Held>> {
    let held = ofd_lock::conflict(fd, wish, start, bytes)?;
    let Kind::File(file) = &handle.node else { return Ok(held) };
    if held.is_some() || wish == Wish::None || !file.has_locks_apart() {
        return Ok(held);
    }
    let elsewhere = file.with_locks_held(|| file.conflict_elsewhere(fd, &description_lock(wish, start, bytes)));
    Ok(elsewhere.map(|found| {
        let (start, last) = (found.start.min(i64::MAX as u64) as i64, found.last.min(i64::MAX as u64) as i64);
        Held { is_exclusive: found.excludes, start, bytes: (last - start).saturating_add(1), process: found.process }
    }))
}

/// The first byte and the length of a range. Locks end before what the array has for itself; a
/// range that lies there alone becomes the byte before that, as under the library.
fn range(asked: &LockIn) -> Result<(i64, i64)> {
    let (start, last) = (i64::try_from(asked.start), i64::try_from(asked.last));
    let (Ok(start), Ok(last)) = (start, last) else { return Err(OsError::INVAL) };
    if start > last {
        return Err(OsError::INVAL);
    }
    let (start, end) = (start.min(RESERVED_OFFSET - 1), last.saturating_add(1).min(RESERVED_OFFSET));
    Ok((start, end - start))
}

fn wish(kind: u32) -> Result<Wish> {
    match kind {
        READ => Ok(Wish::Shared),
        WRITE => Ok(Wish::Exclusive),
        UNLOCK => Ok(Wish::None),
        _ => Err(OsError::INVAL),
    }
}

impl Session {
    pub(crate) fn set_lock(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let (asked, _) = wire::split::<LockIn>(body)?;
        let handle = self.handles.get(asked.handle)?;
        let (wish, (start, bytes)) = (wish(asked.kind)?, range(&asked)?);
        let mut state = self.locks.state();
        let description = if asked.flags & LOCK_FLOCK != 0 {
            None
        } else if wish == Wish::None && !state.owners.contains_key(&(header.node, asked.owner)) {
            return Ok(Done::Answered);
        } else {
            Some(state.description(header.node, &asked, &handle)?)
        };
        let wanted = Wanted { handle, description, wish, start, bytes };
        match wanted.try_once() {
            Err(OsError::AGAIN | OsError::ACCESS) if header.operation == op::SETLKW => {}
            result => return result.map(|()| Done::Answered),
        }
        if state.interrupted.contains(&header.unique) {
            return Err(OsError::INTR);
        }
        state.waiting.push(Waiting { unique: header.unique, wanted });
        self.locks.changed.notify_all();
        Ok(Done::Silent)
    }

    pub(crate) fn get_lock(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<LockIn>(body)?;
        let handle = self.handles.get(asked.handle)?;
        let (wish, (start, bytes)) = (wish(asked.kind)?, range(&asked)?);
        let state = self.locks.state();
        let own = state.owners.get(&(header.node, asked.owner)).map(|description| description.fd.clone());
        let fd = own.map_or_else(|| open_for_locks(&handle).map(Arc::new), Ok)?;
        let Some(held) = conflict(&handle, fd.as_fd(), wish, (start, bytes))? else {
            return answer.put(&LockOut { start: asked.start, last: asked.last, kind: UNLOCK, process: 0 });
        };
        let end = held.start.saturating_add(held.bytes);
        let is_to_the_end = held.bytes == 0 || end >= RESERVED_OFFSET;
        // A description's lock names no process. It may be that of a process which uses the mount.
        let others = || state.owners.iter().filter(|(owner, _)| owner.0 == header.node && owner.1 != asked.owner);
        let process = match (held.process, others().count()) {
            (1.., _) => held.process as u32,
            (_, 1) => others().next().map_or(0, |(_, description)| description.process),
            _ => 0,
        };
        answer.put(&LockOut {
            start: held.start as u64,
            last: if is_to_the_end { i64::MAX as u64 } else { end as u64 - 1 },
            kind: if held.is_exclusive { WRITE } else { READ },
            process,
        })
    }

    /// A process that waits for an answer was interrupted. Only locks are waited for.
    pub(crate) fn interrupt(&self, body: &[u8]) -> Result<Done> {
        let (asked, _) = wire::split::<InterruptIn>(body)?;
        let mut state = self.locks.state();
        let place = state.waiting.iter().position(|waiting| waiting.unique == asked.unique);
        if let Some(place) = place {
            let waiting = state.waiting.swap_remove(place);
            drop(state);
            self.reply(waiting.unique, Err(OsError::INTR));
        } else {
            if state.interrupted.len() == INTERRUPTED_COUNT_MAX {
                state.interrupted.pop_front();
            }
            state.interrupted.push_back(asked.unique);
        }
        Ok(Done::Silent)
    }

    /// Tries again what waits, until the mount ends.
    pub(crate) fn wait_for_locks(&self) {
        let mut state = self.locks.state();
        while !self.is_over() {
            let is_empty = state.waiting.is_empty();
            let period = if is_empty { REST } else { PERIOD };
            drop(self.locks.changed.wait_timeout(state, period).unwrap_or_else(PoisonError::into_inner));
            // The sooner after a loss, the less has been renamed since.
            self.nodes.follow_members();
            state = self.locks.state();
            state.waiting.retain(|waiting| match waiting.wanted.try_once() {
                Err(OsError::AGAIN | OsError::ACCESS) => true,
                result => {
                    self.reply(waiting.unique, result.map(|()| &[][..]));
                    false
                }
            });
        }
    }
}

impl State {
    /// The description of an owner on a file. The owner has asked by this handle.
    fn description(&mut self, node: u64, asked: &LockIn, handle: &Handle) -> Result<Arc<OwnedFd>> {
        let description = match self.owners.entry((node, asked.owner)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let fd = Arc::new(open_for_locks(handle)?);
                place.insert(Description { fd, handles: Vec::new(), process: 0 })
            }
        };
        description.process = asked.process;
        if !description.handles.contains(&asked.handle) {
            description.handles.push(asked.handle);
        }
        Ok(description.fd.clone())
    }
}

/// Opens what a handle has open once more. The kernel has looked whether the program's own
/// descriptor allows the lock. If the member of the handle's anchor has failed, the description
/// lies on another one, where locks exclude those of the failed one, too.
fn open_for_locks(handle: &Handle) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    crate::caller::as_root(|| match (opened_again(handle.anchor.as_fd(), flags), &handle.node) {
        (Err(error), Kind::File(file)) if Namespace::may_be_failure(error) => {
            let (_, backing) = file.in_use().next().ok_or(error)?;
            let fd = opened_again(backing.fd()?.as_fd(), flags)?;
            let stat = sys::rustix::fs::fstat(&fd)?;
            file.note_anchor([stat.st_dev, stat.st_ino]);
            Ok(fd)
        }
        (opened, _) => opened,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_before_the_arrays_own_bytes() {
        let of = |start: u64, last: u64| {
            range(&LockIn { handle: 0, owner: 0, start, last, kind: WRITE, process: 0, flags: 0, padding: 0 })
        };
        let most = i64::MAX as u64;
        assert_eq!(of(0, most), Ok((0, RESERVED_OFFSET)));
        assert_eq!(of(10, 19), Ok((10, 10)));
        assert_eq!(of(most, most), Ok((RESERVED_OFFSET - 1, 1)));
        assert_eq!(of(RESERVED_OFFSET as u64, most), Ok((RESERVED_OFFSET - 1, 1)));
        assert!(of(5, 4).is_err() && of(most + 1, most + 2).is_err());
    }
}
