//! By which calls something was done: addresses while the run is recorded, source lines afterwards.

use crate::log::{Event, Place};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Frames kept of a stack.
const DEPTH_MAX: usize = 24;

/// Every stack that was met, each once.
#[derive(Default)]
pub(crate) struct Stacks {
    known: HashMap<Vec<usize>, usize>,
    all: Vec<Vec<usize>>,
    /// Where the last one was, so that a loop of stores is looked up once.
    last: Option<([usize; 2], usize)>,
}

impl Stacks {
    /// The stack of the instruction at `address`, from the handler that it trapped into.
    pub(crate) fn of(&mut self, address: usize, stack_pointer: usize) -> usize {
        if let Some((place, index)) = self.last
            && place == [address, stack_pointer]
        {
            return index;
        }
        let mut frames = Vec::with_capacity(DEPTH_MAX);
        // SAFETY: one thread at a time is in a handler.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let here = frame.ip() as usize;
                if here != 0 && (!frames.is_empty() || here == address) {
                    frames.push(here);
                }
                frames.len() < DEPTH_MAX
            });
        }
        if frames.is_empty() {
            frames.push(address);
        }
        let next = self.all.len();
        let index = *self.known.entry(frames.clone()).or_insert(next);
        if index == next {
            self.all.push(frames);
        }
        self.last = Some(([address, stack_pointer], index));
        index
    }

    /// A loop of stores has one stack; after anything else the next one is looked at anew.
    pub(crate) fn refresh_unless_store(&mut self, event: &Event) {
        if !matches!(event, Event::Store { .. }) {
            self.last = None;
        }
    }

    /// All of them, as addresses: source lines are looked up where they are wanted, which takes
    /// longer than a run.
    pub(crate) fn take(&mut self) -> Vec<Vec<usize>> {
        std::mem::take(&mut self.all)
    }
}

/// The source lines of a stack of this program or of one forked from it, innermost first.
pub(crate) fn places(frames: &[usize]) -> Vec<Place> {
    static KNOWN: Mutex<BTreeMap<usize, Vec<Place>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // What is called stands before the address it returns to.
    let addresses = frames.iter().enumerate().map(|(depth, &frame)| frame - usize::from(depth > 0));
    addresses.flat_map(|address| known.entry(address).or_insert_with(|| resolve(address)).clone()).collect()
}

/// The source lines of an address, innermost first; those of this repository only.
fn resolve(address: usize) -> Vec<Place> {
    let mut places = Vec::new();
    backtrace::resolve(address as *mut _, |symbol| {
        let file = symbol.filename().and_then(in_repository);
        if let (Some(file), Some(line)) = (file, symbol.lineno()) {
            let function = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            places.push(Place { function, file, line });
        }
    });
    places
}

/// A source file's path from the repository's root.
fn in_repository(file: &Path) -> Option<String> {
    let text = file.to_str()?;
    let root = repository();
    let relative = text.strip_prefix(&root).map_or(text, |rest| rest.trim_start_matches('/'));
    let tops = ["base/", "media/", "core/", "front/", "control/", "check/"];
    tops.iter().any(|top| relative.starts_with(top)).then(|| relative.to_owned())
}

/// The root of the repository this was built from.
pub(crate) fn repository() -> String {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().and_then(Path::parent).unwrap_or(own).to_string_lossy().into_owned()
}
