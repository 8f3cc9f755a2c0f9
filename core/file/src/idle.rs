//! Kept files: backing files stay open for a while after a process has closed the file for the last
//! time, so that opening the file again costs no system call here.
//!
//! The program has closed the file: its sizes, times and space are stored as by every close, and
//! the runtime segment does not count the process as a user. What stays is the [`Inode`] with its
//! descriptors and mappings, at one of a few places; the file that was closed least recently goes
//! first. The segment counts the processes that keep a file, so that
//! - a process that removes the file's last name cuts the backing files: their blocks must not wait
//!   for a process that does not know of the removal;
//! - an entry of the segment is not given to another file while a process keeps this one.
//!
//! Invariants:
//! - A file is kept only if it could be opened anew in the same way: no change of members,
//!   directories or symlinks since it was opened, the file has a name, and every process that may
//!   attach to the array may write to the file (so that a process that removes the file can cut
//!   it).
//! - A kept file that is taken out again is entered like a file just opened: the inode table must
//!   still know it. Whether the program may open it the kernel has said, by the anchor.
//! - A process that changes its rights (setresuid(2) and the like) keeps nothing from then on: what
//!   is open by its former rights goes with the program's own descriptors.
//! - A child of fork lets go of everything at once: the segment counts its parent only. A child
//!   that shares memory (vfork) keeps and takes nothing ([`Keep::allowed`]).

use crate::files::{Files, Held};
use crate::inode::{Inode, key};
use alloc::sync::Arc;
use array::runtime::IDLE_COUNT;
use core::sync::atomic::Ordering;
use dax::Backing;
use format::Attribute;

/// What a process keeps open.
#[derive(Clone, Copy)]
pub struct Keep {
    /// How many files at most; more than [`IDLE_COUNT`] are not kept.
    pub count: usize,
    /// Whether the calling thread may keep and take: its descriptors are those of the process that
    /// [`Files`] belongs to. Called without locks.
    pub allowed: fn() -> bool,
}

impl Keep {
    /// Every file is closed when the program closes it.
    pub const NOTHING: Self = Self { count: 0, allowed: || false };
}

/// What a process keeps open of one array.
pub(crate) struct Idle {
    /// By place; 0 where there is nothing.
    keys: [u64; IDLE_COUNT],
    kept: [Option<Arc<Inode>>; IDLE_COUNT],
    /// When each was closed, by a count of closes.
    closed_at: [u64; IDLE_COUNT],
    close_count: u64,
    /// How often the segment had asked for everything to be let go when that was last done.
    recalls: u32,
}

impl Idle {
    pub(crate) const fn new() -> Self {
        Self { keys: [0; IDLE_COUNT], kept: [const { None }; IDLE_COUNT], closed_at: [0; IDLE_COUNT], close_count: 0, recalls: 0 }
    }

    /// What is kept.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Arc<Inode>> {
        self.kept.iter().flatten()
    }

    fn place_of(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|&found| found == key)
    }

    /// Where to keep one more: an empty place, or that of the one closed least recently.
    fn place_for_another(&self, count: usize) -> usize {
        let places = 0..count.min(IDLE_COUNT);
        places.min_by_key(|&place| if self.keys[place] == 0 { 0 } else { self.closed_at[place] }).unwrap_or(0)
    }

    fn clear(&mut self, place: usize) -> Option<Arc<Inode>> {
        self.keys[place] = 0;
        self.kept[place].take()
    }

    /// Forgets everything, as a child of fork does: what the segment counts is its parent's.
    pub(crate) fn abandon(&mut self) {
        for place in 0..IDLE_COUNT {
            drop(self.clear(place));
        }
    }
}

impl Files {
    /// Makes room for a file that is about to be given back, if it may be kept.
    pub(crate) fn place_for(&self, idle: &mut Idle, inode: &Inode) -> Option<usize> {
        self.follow_recalls(idle);
        inode.may_stay().then(|| {
            let place = idle.place_of(inode.key()).unwrap_or_else(|| idle.place_for_another(self.keeping().count));
            self.let_go(idle, place);
            place
        })
    }

    /// Keeps a file that this process has just given back, if it still may. The open-files lock is
    /// held.
    pub(crate) fn keep(&self, idle: &mut Idle, place: usize, inode: &Arc<Inode>) {
        if inode.may_stay() && self.array().runtime().begin_idle(place, inode.entry) {
            idle.close_count += 1;
            idle.closed_at[place] = idle.close_count;
            idle.keys[place] = inode.key();
            idle.kept[place] = Some(inode.clone());
        }
    }

    /// What is kept of a file, if it is as good as opened anew. It stays counted as kept at the
    /// place returned.
    pub(crate) fn take(&self, idle: &mut Idle, key: u64) -> Option<(usize, Arc<Inode>)> {
        self.follow_recalls(idle);
        let place = idle.place_of(key)?;
        if !idle.kept[place].as_ref().is_some_and(|inode| inode.is_current()) {
            self.let_go(idle, place);
            return None;
        }
        idle.clear(place).map(|inode| (place, inode))
    }

    /// Closes what is kept at a place.
    pub(crate) fn let_go(&self, idle: &mut Idle, place: usize) {
        if let Some(inode) = idle.clear(place) {
            // Closed before it is no longer counted.
            drop(inode);
            self.array().runtime().end_idle(place);
        }
    }

    fn let_all_go(&self, idle: &mut Idle) {
        for place in 0..IDLE_COUNT {
            self.let_go(idle, place);
        }
    }

    fn follow_recalls(&self, idle: &mut Idle) {
        let recalls = self.array().runtime().idle_recalls();
        if idle.recalls != recalls {
            idle.recalls = recalls;
            self.let_all_go(idle);
        }
    }

    /// Closes everything that is kept: descriptors are short, or files become programs. Returns
    /// whether there was anything.
    pub fn discard_idle(&self) -> bool {
        if self.keeping().count == 0 || !(self.keeping().allowed)() {
            return false;
        }
        let Held { idle, .. } = &mut *self.held().lock();
        let any = idle.keys.iter().any(|&key| key != 0);
        self.let_all_go(idle);
        any
    }

    /// Closes everything that is kept, and what the program closes from now on is closed at once:
    /// the process is about to change its rights, and what is open by its former ones is not to
    /// outlive the program's own descriptors.
    pub fn end_keeping_ready(&self) {
        self.keeps_nothing().store(true, Ordering::SeqCst);
        self.discard_idle();
    }

    /// Closes what is kept of one file, and tells whether another process keeps it.
    pub fn is_kept_elsewhere(&self, attribute: Attribute) -> bool {
        let key = key(attribute.inode, attribute.generation);
        if !self.is_kept(attribute) {
            return false;
        }
        if self.keeping().count != 0 && (self.keeping().allowed)() {
            let Held { idle, .. } = &mut *self.held().lock();
            if let Some(place) = idle.place_of(key) {
                self.let_go(idle, place);
            }
        }
        self.is_kept(attribute)
    }

    /// Whether any process keeps a file.
    pub(crate) fn is_kept(&self, attribute: Attribute) -> bool {
        let shared = self.array().runtime().find_file(key(attribute.inode, attribute.generation));
        shared.is_some_and(|shared| shared.idle.load(Ordering::Acquire) != 0)
    }
}

impl Inode {
    /// Says whether this process may keep the backing files when the program has closed the file.
    pub fn let_stay(&self, may: bool) {
        self.may_stay.store(may, Ordering::Relaxed);
    }

    /// Whether it may be kept: it was so said, nothing is left to be done, and its descriptors are
    /// out of the program's way.
    fn may_stay(&self) -> bool {
        let shared = self.shared();
        let words = [&shared.unlinked, &shared.tail_unfinished, &shared.resync_waits];
        let whole = words.iter().all(|word| word.load(Ordering::Acquire) == 0) && !shared.is_mapped();
        let out_of_the_way = || self.backing.iter().flatten().all(Backing::is_out_of_the_way);
        let keeps = !self.files.keeps_nothing().load(Ordering::SeqCst);
        keeps && self.may_stay.load(Ordering::Relaxed) && self.writable && whole && self.is_current() && out_of_the_way()
    }

    /// Whether members, directories and symlinks are as they were when the backing files were
    /// opened.
    fn is_current(&self) -> bool {
        let runtime = self.files.array().runtime();
        self.opened_in.is_some() && self.opened_in == runtime.epochs()
    }
}
