//! Recording a run of the unmodified engine: every store to a member, every flush and fence, every
//! system call that changes a member.
//!
//! Nothing in the engine knows of it. The recorder makes members' mappings read-only, so that
//! stores fault (`store`); puts breakpoints on all flushes and fences of the program (`sites`); and
//! has the kernel stop system calls (`calls`). All three end in handlers of this process, which do
//! what the engine wanted and write it down. Threads take turns (`turns`), so a run is the same
//! each time.
//!
//! A process that records is forked for it and ends with it: none of this can be taken back.

mod calls;
mod raw;
pub(crate) mod sites;
pub(crate) mod stacks;
mod store;
mod traps;
pub(crate) mod turns;

use crate::image::{Content, Image, Tree, member_directory};
use crate::log::{Event, Log, ObjectId};
use oracle::Rng;
use stacks::Stacks;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// A mapping of a member's file.
struct Region {
    start: usize,
    end: usize,
    object: ObjectId,
    /// Offset in the file.
    at: u64,
    /// Where it can be stored to.
    alias: usize,
    /// A descriptor of the file.
    fd: usize,
}

struct Recorder {
    members: Vec<PathBuf>,
    regions: Vec<Region>,
    /// Numbers of files by device and inode.
    objects: HashMap<(u64, u64), ObjectId>,
    trees: Vec<Tree>,
    base: Image,
    events: Vec<Event>,
    stacks: Stacks,
    rng: Rng,
    recording: bool,
    has_later_windows: bool,
    /// Stands for /sys/bus/nd/devices: says that caches are flushed at power loss, or that they are
    /// not.
    platform: Vec<u8>,
    /// Why the record cannot be believed.
    failure: Option<String>,
}

/// What members pretend to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Platform {
    /// Caches are lost with the power.
    Adr,
    /// Caches are flushed.
    Eadr,
}

/// Turns this process into one that records runs on the members below `home`.
pub(crate) fn begin(home: &Path, member_count: usize, platform: Platform, seed: u64) -> Result<(), String> {
    let sites = sites::sites()?;
    let stand_in = home.join("platform");
    let region = stand_in.join("region0");
    let text = if platform == Platform::Eadr { "cpu_cache\n" } else { "memory_controller\n" };
    fs::create_dir_all(&region)
        .and_then(|()| fs::write(region.join("persistence_domain"), text))
        .map_err(|error| error.to_string())?;
    let mut path = stand_in.into_os_string().into_encoded_bytes();
    path.push(0);
    *lock() = Some(Recorder {
        members: (0..member_count).map(|member| member_directory(home, member)).collect(),
        regions: Vec::new(),
        objects: HashMap::new(),
        trees: Vec::new(),
        base: Image::default(),
        events: Vec::new(),
        stacks: Stacks::default(),
        rng: Rng::new(seed),
        recording: false,
        has_later_windows: false,
        platform: path,
        failure: None,
    });
    traps::install()?;
    sites.arm()?;
    calls::filter()
}

/// Makes members look to this process as on a DAX file system with ADR, as they did to the one that
/// was recorded.
pub(crate) fn disguise() -> Result<(), String> {
    traps::install_disguise()?;
    calls::disguise_filter()
}

fn lock() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the members hold now is the start; from here on everything is recorded. `threads` of them
/// will run.
pub(crate) fn start(threads: usize) -> Result<(), String> {
    let (result, stride) = traps::uninterrupted(|recorder| {
        let result = recorder.start();
        // Writers that want the same lane of a journal, or different ones.
        (result, recorder.rng.below(2) as u32 + 1)
    });
    turns::expect(threads, stride);
    result
}

/// Notes the beginning of an operation.
pub(crate) fn operation_begins(operation: usize) {
    traps::uninterrupted(|recorder| recorder.push(Event::Begin { operation }));
}

/// Notes that an operation returned `value`.
pub(crate) fn operation_ends(operation: usize, value: u64) {
    traps::uninterrupted(|recorder| recorder.push(Event::End { operation, value }));
}

/// Notes that the recovery is over.
pub(crate) fn recovered() {
    traps::uninterrupted(|recorder| recorder.push(Event::Recovered));
}

/// Ends the recording.
pub(crate) fn finish() -> Result<Log, String> {
    traps::uninterrupted(|recorder| {
        recorder.recording = false;
        match recorder.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Log {
                base: std::mem::take(&mut recorder.base),
                events: std::mem::take(&mut recorder.events),
                crashed: None,
                shown: None,
                has_later_windows: recorder.has_later_windows,
                stacks: recorder.stacks.take(),
            }),
        }
    })
}

/// The length of an open file.
fn length_of(fd: usize) -> Option<u64> {
    stat_of(fd).map(|stat| stat.st_size as u64)
}

fn stat_of(fd: usize) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::uninit();
    // SAFETY: room for a stat; fstat(2) is not filtered.
    let result = unsafe { libc::fstat(fd as i32, stat.as_mut_ptr()) };
    // SAFETY: the kernel has filled it.
    (result == 0).then(|| unsafe { stat.assume_init() })
}

impl Recorder {
    fn push(&mut self, event: Event) {
        if self.recording {
            self.stacks.refresh_unless_store(&event);
            self.events.push(event);
        }
    }

    fn fail(&mut self, message: String) {
        self.failure.get_or_insert(message);
    }

    fn start(&mut self) -> Result<(), String> {
        for member in 0..self.members.len() {
            let tree = self.tree(member)?;
            self.trees.push(tree);
        }
        let objects = self.objects.len();
        self.base = Image { trees: self.trees.clone(), objects: vec![Content::default(); objects] };
        for (member, tree) in self.trees.iter().enumerate() {
            for (path, node) in &tree.0 {
                if let crate::image::Kind::File(object) = node.kind {
                    let file = fs::File::open(self.members[member].join(path)).map_err(|error| error.to_string())?;
                    self.base.objects[object] = Content::of(&file).map_err(|error| error.to_string())?;
                }
            }
        }
        self.recording = true;
        Ok(())
    }

    fn tree(&mut self, member: usize) -> Result<Tree, String> {
        let root = self.members[member].clone();
        Tree::of(&root, |metadata, _| self.object(metadata.dev(), metadata.ino())).map_err(|error| error.to_string())
    }

    /// Notes members whose names or attributes are no longer what they were.
    fn look_at_trees(&mut self, stack: usize) {
        for member in 0..self.members.len() {
            match self.tree(member) {
                Ok(tree) if tree != self.trees[member] => {
                    self.trees[member] = tree.clone();
                    self.push(Event::Tree { member, tree, stack });
                }
                Ok(_) => {}
                Err(error) => self.fail(format!("member {member}: {error}")),
            }
        }
    }

    fn object(&mut self, device: u64, inode: u64) -> ObjectId {
        let next = self.objects.len();
        *self.objects.entry((device, inode)).or_insert(next)
    }

    /// The file behind a descriptor, if it is a member's.
    fn object_of_fd(&mut self, fd: usize) -> Option<ObjectId> {
        let path = fs::read_link(format!("/proc/self/fd/{}", fd as i32)).ok()?;
        if !self.members.iter().any(|member| path.starts_with(member)) {
            return None;
        }
        let stat = stat_of(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)?;
        Some(self.object(stat.st_dev, stat.st_ino))
    }

    fn region(&self, address: usize) -> Option<&Region> {
        self.regions.iter().find(|region| region.start <= address && address < region.end)
    }

    /// Forgets regions in a range that is about to be unmapped.
    fn forget(&mut self, start: usize, bytes: usize) {
        self.regions.retain(|region| {
            let gone = start <= region.start && region.end <= start + bytes;
            if gone {
                raw::call(libc::SYS_munmap, [region.alias, region.end - region.start, 0, 0, 0, 0]);
                raw::call(libc::SYS_close, [region.fd, 0, 0, 0, 0, 0]);
            }
            !gone
        });
    }

    /// Another path for one the engine asks about the platform by.
    fn redirected(&self, path: usize) -> Option<usize> {
        const PLATFORM: &[u8] = b"/sys/bus/nd/devices\0";
        // SAFETY: the engine's path, which the kernel is about to read, ends with a zero byte at
        // the latest where it differs.
        let same = PLATFORM.iter().enumerate().all(|(at, &byte)| unsafe { *(path as *const u8).add(at) } == byte);
        if same { Some(self.platform.as_ptr() as usize) } else { None }
    }
}
