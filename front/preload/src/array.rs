//! The array this process uses: attached by the constructor, or refused for a reason that the program's calls are answered with.

use crate::calls::OPEN;
use crate::descriptors::Anchored;
use crate::environment::Environment;
use crate::report::report;
use ::array::config::{PATHS_DEFAULT, is_below, normalise};
use ::array::{Array, Config};
use core::sync::atomic::{AtomicPtr, Ordering};
use file::Files;
use heap::boxed::Box;
use heap::vec::Vec;
use namespace::{Namespace, Node};
use sys::OsError;

/// The paths whose files belong to the array. Known even if the array cannot be used.
pub(crate) struct Prefixes(Vec<Vec<u8>>);

impl Prefixes {
    /// Whether a normalised path belongs to the array.
    pub(crate) fn own(&self, path: &[u8]) -> bool {
        self.0.iter().any(|prefix| is_below(path, prefix))
    }

    /// Whether a path that begins with this component could lead to a prefix: an absolute one, or one from some directory on the way.
    pub(crate) fn may_begin_with(&self, component: &[u8], absolute: bool) -> bool {
        self.0.iter().any(|prefix| {
            let mut components = prefix.get(1..).unwrap_or(b"").split(|&byte| byte == b'/');
            if absolute { components.next() == Some(component) } else { components.any(|part| part == component) }
        })
    }
}

struct State {
    prefixes: Prefixes,
    namespace: Result<Namespace, OsError>,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());

fn state() -> Option<&'static State> {
    // SAFETY: null or a leaked box.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// The array's prefixes; None before the constructor has run.
#[inline]
pub(crate) fn prefixes() -> Option<&'static Prefixes> {
    state().map(|state| &state.prefixes)
}

/// The array's names, or the error that every call on them gets.
#[inline]
pub(crate) fn namespace() -> Result<&'static Namespace, OsError> {
    match state() {
        Some(state) => state.namespace.as_ref().map_err(|error| *error),
        None => Err(OsError::IO),
    }
}

/// Attaches to the array the environment describes. What goes wrong is said in one line, and answers the program's calls.
pub(crate) fn start(environment: &Environment) {
    let get = |name: &str| environment.get(name.as_bytes()).map(<[u8]>::to_vec);
    let namespace = match Config::from_lookup(get) {
        Ok(None) => return,
        Ok(Some(config)) => attach(&config),
        Err(error) => {
            report!("{error}");
            Err(OsError::INVAL)
        }
    };
    let paths = get("CXLRAID_PATHS").unwrap_or_else(|| PATHS_DEFAULT.as_bytes().to_vec());
    let prefixes = paths.split(|&byte| byte == b':').filter(|path| path.starts_with(b"/")).map(normalise);
    let prefixes = Prefixes(prefixes.filter(|prefix| !prefix.is_empty()).collect());
    STATE.store(Box::into_raw(Box::new(State { prefixes, namespace })), Ordering::Release);
}

fn attach(config: &Config) -> Result<Namespace, OsError> {
    let array = Array::attach(config).map_err(|error| {
        report!("{error}");
        error.os_error()
    })?;
    report_members(&array);
    let files = Files::new(array).map_err(|error| {
        report!("cannot open the array's tables under .cxlraid ({error}); check the members' permissions");
        error
    })?;
    Ok(Namespace::new(files))
}

/// What an operator should know of at once, said by the process that is the first to see it.
fn report_members(array: &Array) {
    if !array.runtime().out_unrecorded().is_empty() {
        for member in array.members().iter().filter(|member| member.standing != ::array::Standing::InSync) {
            let state = heap::format!("{:?}", member.standing).to_lowercase();
            report!("{}: member is {state}; the array is degraded", member.shown());
        }
    }
    if array.was_created() {
        for (index, member) in array.members().iter().enumerate() {
            if let Some(other) = array.members()[..index].iter().find(|other| other.device == member.device) {
                let (one, two) = (other.shown(), member.shown());
                report!("{one} and {two} are on one device; they will fail together");
                break;
            }
        }
    }
}

impl Anchored for Node {
    fn from_anchor(descriptor: sys::RawFd) -> Option<(Self, u32)> {
        let fd = crate::calls::directory::borrow(descriptor);
        let node = namespace().ok()?.inherit(fd).ok()??;
        Some((node, sys::rustix::fs::fcntl_getfl(fd).map_or(0, |flags| flags.bits())))
    }
}

/// A descriptor this program was given: if it is an anchor, it is served again. Its offset is shared with whoever gave it.
pub(crate) fn adopt(descriptor: sys::RawFd) {
    if let Some((node, flags)) = Node::from_anchor(descriptor) {
        OPEN.install(descriptor, OPEN.describe_shared(node, flags));
    }
}

/// Runs the system call that forks, so that the child's open files are its own.
pub(crate) fn around_fork(fork: impl FnOnce() -> isize) -> isize {
    match namespace() {
        Ok(namespace) => namespace.files().around_fork(fork),
        Err(_) => fork(),
    }
}

/// The process ends: what it has open is given back in order.
pub(crate) fn leave() {
    if let Ok(namespace) = namespace() {
        namespace.files().leave();
    }
}
