//! The array this process uses: attached by the constructor, or refused for a reason that the
//! program's calls are answered with.

use crate::calls::OPEN;
use crate::descriptors::{Anchored, Use};
use crate::environment::Environment;
use crate::lock::{Lock, RawLock};
use crate::report::{self, report};
use crate::unreached;
use ::array::config::{PATHS_DEFAULT, is_below, normalise};
use ::array::events::{EventKind, LOG};
use ::array::{Array, Config, Member};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use file::{Files, Keep};
use heap::boxed::Box;
use heap::format;
use heap::string::{String, ToString};
use heap::vec::Vec;
use namespace::{Namespace, Node};
use sys::rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fstat};
use sys::{AsRawFd, BorrowedFd, FromRawFd, OsError};
use units::Slot;

/// The paths whose files belong to the array. Known even if the array cannot be used.
pub(crate) struct Prefixes(Vec<Vec<u8>>);

impl Prefixes {
    /// Whether a normalised path belongs to the array.
    pub(crate) fn own(&self, path: &[u8]) -> bool {
        self.0.iter().any(|prefix| is_below(path, prefix))
    }

    /// Whether the host's directories above the prefixes may be searched by this process.
    pub(crate) fn may_be_reached(&self) -> bool {
        !self.0.iter().any(|prefix| is_closed_above(prefix))
    }

    /// Whether a host's directory above the prefix that a path begins with may not be searched by
    /// this process.
    pub(crate) fn is_closed_above(&self, path: &[u8]) -> bool {
        let begins =
            |prefix: &&Vec<u8>| path.strip_prefix(prefix.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        self.0.iter().filter(begins).any(|prefix| is_closed_above(prefix))
    }

    /// Whether a path that begins with this component could lead to a prefix: an absolute one, or
    /// one from some directory on the way.
    pub(crate) fn may_begin_with(&self, component: &[u8], absolute: bool) -> bool {
        self.0.iter().any(|prefix| {
            let mut components = prefix.get(1..).unwrap_or(b"").split(|&byte| byte == b'/');
            if absolute { components.next() == Some(component) } else { components.any(|part| part == component) }
        })
    }
}

/// Whether this process may not search the directory of the host above a prefix.
fn is_closed_above(prefix: &[u8]) -> bool {
    let parent = prefix.iter().rposition(|&byte| byte == b'/').map_or(&b"/"[..], |slash| &prefix[..slash.max(1)]);
    accessat(CWD, parent, Access::EXEC_OK, AtFlags::EACCESS) == Err(OsError::ACCESS)
}

struct State {
    prefixes: Prefixes,
    namespace: Result<Namespace, OsError>,
    /// The members' paths as the kernel tells them, if the start was refused: descriptors and
    /// directories below them are not left to the kernel.
    refused_roots: Vec<Vec<u8>>,
    /// What is to be said when the program first names something of the array: one that never does
    /// must not notice us.
    notices: Notices,
    told: AtomicBool,
}

/// Lines for standard error, and what each of them is of.
type Notices = Vec<(Subject, String)>;

/// The subject of a line for standard error.
#[derive(Clone, Copy)]
enum Subject {
    /// The start of this process.
    Start,
    /// A member that the start does without. Of all processes one tells of it.
    Without(Slot),
    /// A member that this process took out of use while it started, which the event log and the
    /// system's log have. Of all processes one tells of it.
    TakenOut(Slot),
}

/// True while this process starts: it has one thread then, and what happens to members is said
/// later.
static STARTING: AtomicBool = AtomicBool::new(false);
/// The lines about members that came up while this process starts.
static EARLY: Lock<Notices> = Lock::new(Notices::new());

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

/// The program names something of the array: what the start had to say is said now.
#[inline]
pub(crate) fn tell() {
    let Some(state) = state() else { return };
    if state.namespace.as_ref().is_ok_and(|namespace| namespace.files().array().runtime().stands_aside()) {
        tell_elsewhere();
    }
    if !state.notices.is_empty() && !state.told.swap(true, Ordering::Relaxed) {
        state.notices.iter().for_each(|(subject, notice)| match (subject, &state.namespace) {
            (Subject::Without(slot) | Subject::TakenOut(slot), Ok(namespace)) => {
                let array = namespace.files().array();
                if !array.runtime().claim_telling(*slot) {
                    return;
                }
                if matches!(subject, Subject::TakenOut(_)) {
                    report!("{notice}");
                    return;
                }
                let member = array.members().get(*slot).map(|member| member.path.as_slice());
                LOG.tell(EventKind::DegradedArray, member, None, "a program started without this member");
                report::to_all(format_args!("{notice}"))
            }
            _ => report!("{notice}"),
        });
    }
}

/// Tells of what happens to a member: at once, or while this process starts when the program first
/// names something of the array.
fn tell_of(subject: Subject, text: core::fmt::Arguments<'_>) {
    if STARTING.load(Ordering::Relaxed) {
        report::log(text);
        EARLY.lock().push((subject, text.to_string()));
    } else {
        report::to_all(text);
    }
}

/// Tells that this process has taken a member out of use. The caller may hold locks of the array,
/// so nothing here looks at descriptors through the table.
fn tell_loss(member: &Member, why: Option<&str>) {
    LOG.tell(EventKind::Fail, Some(&member.path), None, "member failed and is out of use; the array is degraded");
    let (slot, member, why) = (member.slot, member.shown(), why.unwrap_or("no cause was seen"));
    tell_of(
        Subject::TakenOut(slot),
        format_args!(
            "{member}: member failed and is out of use; the array is degraded; {why}; see 'cxlraid status'; 'cxlraid rebuild' makes a member that works again anew"
        ),
    );
}

/// Tells that records of a member's table did not fit their checks. The caller may hold locks of
/// the array.
fn tell_mend(member: &Member) {
    let what = "records of .cxlraid/inodes were damaged, or cut short by a crash";
    LOG.tell(EventKind::Healed, Some(&member.path), None, what);
    let member = member.shown();
    tell_of(
        Subject::Start,
        format_args!("{member}: {what}; they were made anew from the other members; unless there was a crash, check its medium"),
    );
}

/// Tells that a member goes out of use since it has not what the others have at a path.
fn tell_lost_name(member: &Member, path: &[u8]) {
    LOG.tell(
        EventKind::Fail,
        Some(&member.path),
        None,
        "member lacks a name that the others have, and is out of use; the array is degraded",
    );
    let (slot, member, path) = (member.slot, member.shown(), units::Shown(path));
    tell_of(
        Subject::TakenOut(slot),
        format_args!(
            "{member}: member has lost {path}, which the others have (removed or replaced by hand), and is out of use; the array is degraded; put back what was taken away, see 'cxlraid status'"
        ),
    );
}

/// Tells once that a call is refused since a member has other names than the others.
fn tell_difference(member: &Member, path: &[u8]) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let (member, path) = (member.shown(), units::Shown(path));
        let remedy = "let root use the name, and find out who changed the member by hand";
        report!(
            "{path}: {member} has other names there than the other members, and this user may not make them the same; {remedy}"
        );
    }
}

/// Tells that a file is refused, since a crash has taken its record.
fn tell_unrecorded(path: &[u8]) {
    let path = units::Shown(path);
    report!("{path}: {}; {}", array::why::UNRECORDED[0], array::why::UNRECORDED[1]);
}

/// Tells that a file is refused, since a backing file is too short and the members in use cannot
/// give what is missing.
fn tell_short(_: &Member, host_path: &[u8]) {
    let path = units::Shown(host_path);
    report!(
        "{path}: is shorter than its file, and the other members in use cannot give what is missing; bring back the members that are out, or put the file back from a backup"
    );
}

/// Tells that a read has met a block that does not fit its checksum: the log of events, and, if the
/// program gets EIO, people. The caller holds no lock of the file.
fn tell_rot(member: &Member, path: &[u8], rot: &::array::Rot, text: &str) {
    let kind = if rot.is_lost { EventKind::Unreadable } else { EventKind::Rotten };
    LOG.tell_of_file(kind, Some(&member.path), (path, rot.block.map_or(0, |block| block.offset)), text);
    if rot.is_lost {
        report::to_all(format_args!("{text}"));
    } else {
        report::log(format_args!("{text}"));
    }
}

/// Tells once that a call is refused since it leads across a mount that somebody outside made in a
/// member's tree.
#[cold]
pub(crate) fn tell_foreign_mount() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let mounts = namespace().map_or_else(|_| Vec::new(), |namespace| namespace::mounts_in_members(namespace.files().array()));
        report::to_all(format_args!("{}", foreign_mount(&mounts)));
    }
}

/// Names what is mounted in members' trees.
fn foreign_mount(mounts: &[Vec<u8>]) -> String {
    let shown: Vec<String> = mounts.iter().map(|mount| units::Shown(mount).to_string()).collect();
    let place = if shown.is_empty() { "a member's tree".to_string() } else { shown.join(", ") };
    format!(
        "{place}: a file system is mounted there, in a member of the array, and is no part of it; paths that lead there answer EIO until it is unmounted"
    )
}

/// Tells once why a child in another PID namespace cannot use the array.
#[cold]
fn tell_elsewhere() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        report::to_all(format_args!(
            "this process is in another PID namespace (pid_namespaces(7)) than the array's programs, cannot tell which of them live, and cannot use the array; start programs there when the others have ended"
        ));
    }
}

/// Tells once that the runtime segment is gone: from here on this process' calls on the array fail.
#[cold]
pub(crate) fn tell_segment_loss() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Ok(namespace) = namespace()
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        let path = ::array::runtime::segment_path(namespace.files().array().uuid());
        report::to_all(format_args!(
            "{path}: the array's shared memory is full, cut short or written over, and this program cannot use the array any more; make room, end its programs, 'cxlraid stop' it"
        ));
    }
}

/// Attaches a copy of the process as [`start`] does, but says nothing: the original has said it.
pub(crate) fn start_again(environment: &Environment) {
    start(environment);
    if let Some(state) = state() {
        state.told.store(true, Ordering::Relaxed);
    }
}

/// Attaches to the array the environment describes. What goes wrong is said in one line, and
/// answers the program's calls.
pub(crate) fn start(environment: &Environment) {
    let get = |name: &str| environment.get(name.as_bytes()).map(<[u8]>::to_vec);
    let mut notices = Notices::new();
    let mut mounts = Vec::new();
    let namespace = match Config::from_lookup(get) {
        Ok(None) => return,
        Ok(Some(config)) => {
            let namespace = attach(&config, &mut notices);
            mounts.extend(config.mounts);
            namespace
        }
        Err(error) => {
            notices.push((Subject::Start, error.to_string()));
            mounts.extend(named_members(environment));
            Err(OsError::INVAL)
        }
    };
    keep_state(environment, namespace, mounts, notices);
}

/// The members' paths as the environment names them.
fn named_members(environment: &Environment) -> Vec<Vec<u8>> {
    environment.get(b"CXLRAID_MOUNTS").unwrap_or_default().split(|&byte| byte == b':').map(<[u8]>::to_vec).collect()
}

/// Keeps what the process' calls are answered by.
fn keep_state(environment: &Environment, namespace: Result<Namespace, OsError>, mounts: Vec<Vec<u8>>, notices: Notices) {
    let refused_roots = if namespace.is_err() { mounts.into_iter().map(resolved).collect() } else { Vec::new() };
    let paths = environment.get(b"CXLRAID_PATHS").unwrap_or(PATHS_DEFAULT.as_bytes());
    let prefixes = paths.split(|&byte| byte == b':').filter(|path| path.starts_with(b"/")).map(normalise);
    let prefixes = Prefixes(prefixes.filter(|prefix| !prefix.is_empty()).collect());
    let state = State { prefixes, namespace, refused_roots, notices, told: AtomicBool::new(false) };
    STATE.store(Box::into_raw(Box::new(state)), Ordering::Release);
}

/// For a process in which the library stands aside: returns what it inherited of the array. What it
/// did with that would reach one member only, so [`give_up`] is to follow.
pub(crate) fn inherited(environment: &Environment) -> Vec<sys::RawFd> {
    keep_state(environment, Err(OsError::INVAL), named_members(environment), Notices::new());
    let mut found = Vec::new();
    crate::inherit::descriptors(|descriptor| {
        if refused(crate::calls::directory::borrow(descriptor)).is_some() {
            found.push(descriptor);
        }
    });
    found
}

/// Closes descriptors; the numbers of standard input, output and error stay taken.
pub(crate) fn give_up(descriptors: &[sys::RawFd]) {
    for &descriptor in descriptors {
        if !(unreached::is_standard(descriptor) && unreached::occupy(descriptor)) {
            crate::calls::descriptor::close_unheld(descriptor);
        }
    }
}

/// Returns a directory's path as the kernel tells it, with symlinks resolved; the path as it is if
/// nothing is there.
fn resolved(path: Vec<u8>) -> Vec<u8> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = sys::rustix::fs::open(path.as_slice(), flags, Mode::empty());
    directory.ok().and_then(|directory| crate::calls::directory::link_target(directory.as_raw_fd())).unwrap_or(path)
}

/// The logical path of a host path that lies in a member and belongs to the array; also if the
/// array cannot be used.
pub(crate) fn logical(host: &[u8]) -> Option<Vec<u8>> {
    placed(host).map(|(path, _)| path)
}

/// The logical path of a host path, as [`logical`], with the slot of the member if the member is in
/// use.
pub(crate) fn placed(host: &[u8]) -> Option<(Vec<u8>, Option<Slot>)> {
    let state = state()?;
    if let Ok(namespace) = &state.namespace {
        return namespace.placed(host).map(|(path, slot)| (path.to_vec(), slot));
    }
    let mut roots = state.refused_roots.iter();
    let root = roots.find(|root| !root.is_empty() && is_below(host, root))?;
    Some((host[root.len()..].to_vec(), None)).filter(|(path, _)| state.prefixes.own(path))
}

/// The state of members and names (`Runtime::epochs`); None while names are being changed, and where
/// there is no array.
pub(crate) fn epochs() -> Option<[u64; 2]> {
    namespace().ok()?.present_epochs()
}

/// The error that answers calls on a file that was handed to this process and that it cannot serve.
#[cold]
pub(crate) fn lost() -> OsError {
    let error = match namespace() {
        Ok(_) => OsError::STALE,
        Err(_) => {
            tell();
            OsError::IO
        }
    };
    tell_without_proc();
    error
}

/// Tells once why what this program was given of the array cannot be served, if that is for want of
/// /proc.
#[cold]
pub(crate) fn tell_without_proc() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let is_there = || accessat(CWD, c"/proc/thread-self", Access::EXISTS, AtFlags::empty()).is_ok();
    if !is_there() && !TOLD.swap(true, Ordering::Relaxed) {
        report!(
            "there is no /proc here, by which the library knows what this program was given of the array; calls on that fail; mount /proc"
        );
    }
}

/// Attaches to the array, and notes what is to be said of that.
fn attach(config: &Config, notices: &mut Notices) -> Result<Namespace, OsError> {
    STARTING.store(true, Ordering::Relaxed);
    let mut said = Notices::new();
    let attached = attach_quietly(config, &mut said);
    STARTING.store(false, Ordering::Relaxed);
    let early = core::mem::take(&mut *EARLY.lock());
    let Ok(namespace) = &attached else {
        // A refusal that names the members says what happened to them.
        let is_explained = matches!(&*said, [.., (Subject::Start, notice)] if why_refused(config).as_ref() == Some(notice));
        if !is_explained {
            notices.extend(early.into_iter().map(|(_, notice)| (Subject::Start, notice)));
        }
        notices.extend(said);
        return attached;
    };
    notices.extend(said);
    let array = namespace.files().array();
    for (subject, notice) in early {
        if let Subject::TakenOut(slot) = subject {
            // Nobody has told of it yet.
            array.runtime().give_back_telling(slot);
        }
        notices.push((subject, notice));
    }
    attached
}

fn attach_quietly(config: &Config, notices: &mut Notices) -> Result<Namespace, OsError> {
    let array = Array::attach(config)
        .map_err(|error| {
            notices.push((Subject::Start, error.to_string()));
            answer(error.os_error())
        })?
        .telling(::array::Tell {
            loss: tell_loss,
            lost_name: tell_lost_name,
            difference: tell_difference,
            mend: tell_mend,
            short: tell_short,
            unrecorded: tell_unrecorded,
            rot: tell_rot,
            ..::array::Tell::NOTHING
        });
    if let Some(path) = &config.events {
        LOG.begin(path, &config.name, array.uuid());
    }
    notice_members(&array, notices);
    let keep = Keep { count: kept_count(array.members().len()), allowed: crate::process::owns_tables };
    let files = Files::keeping_open(array, keep).map_err(|error| {
        let remedy = match error {
            OsError::NOMEM => "this process has too little address space for them (ulimit -v): give it more",
            OsError::MFILE => "this process may have too few descriptors for them (ulimit -n): give it more",
            _ => "check the members' permissions",
        };
        let notice = || format!("cannot open the array's tables under .cxlraid ({error}); {remedy}");
        notices.push((Subject::Start, why_refused(config).unwrap_or_else(notice)));
        answer(error)
    })?;
    let namespace = Namespace::new(files).map_err(|error| {
        let remedy = "check the members' permissions and free space";
        let notice = if error == namespace::FOREIGN_MOUNT {
            foreign_mount(&namespace::mounts_in_members(files.array()))
        } else {
            let notice = || format!("cannot make the members' names the same after a crash ({error}); {remedy}");
            why_refused(config).unwrap_or_else(notice)
        };
        notices.push((Subject::Start, notice));
        answer(error)
    })?;
    if namespace.may_not_finish_change() {
        let what = "a program died while it changed a name, and this user may not finish it: the name is another user's, or a \
                    directory on a member is closed to this user";
        let remedy =
            "until root's or that user's program works on the array, or the directory is opened, changes of names answer EACCES";
        notices.push((Subject::Start, format!("{what}; {remedy}")));
    }
    Ok(namespace)
}

/// Why a start is refused, with the members it is refused for, if a look without a start finds
/// that. A start finds out at its first use of a table that more members have none than the array
/// bears, and what it is told then names none of them.
fn why_refused(config: &Config) -> Option<String> {
    Array::foresee(config).err().map(|error| error.to_string())
}

/// The error that answers the program's calls if `error` keeps the array from being used. It never
/// says anything of the program's own path: a program that is told ENOENT makes the file anew, or
/// goes on without it.
const fn answer(error: OsError) -> OsError {
    match error {
        OsError::NOENT
        | OsError::NOTDIR
        | OsError::ISDIR
        | OsError::EXIST
        | OsError::NOTEMPTY
        | OsError::LOOP
        | OsError::NAMETOOLONG
        | OsError::XDEV
        | OsError::STALE
        | OsError::NODATA
        | OsError::NXIO
        | OsError::MEDIUMTYPE
        | OsError::AGAIN
        | OsError::TIMEDOUT
        | OsError::USERS
        | namespace::FOREIGN_MOUNT => OsError::IO,
        error => error,
    }
}

/// How many files may stay open for a while after the program has closed them: their descriptors
/// must not be missed by the program, so they are a sixteenth of what the limit allows.
fn kept_count(member_count: usize) -> usize {
    sys::high_fd::base() as usize / 8 / member_count.max(1)
}

/// What an operator should know of at once, said by the process that is the first to see it.
fn notice_members(array: &Array, notices: &mut Notices) {
    for member in array.members() {
        let Some(state) = member.why_unused() else { continue };
        // A restart of the machine empties fast members: that is no failure.
        if array.fast().contains(member.slot) && array::backed::is_awaited(member) {
            continue;
        }
        if let Some(refusal) = &member.refusal {
            notices.push((Subject::Without(member.slot), format!("{refusal}; the array is degraded without this member")));
            continue;
        }
        let (state, remedy) = (format!("{}: member {state}", member.shown()), member.remedy());
        notices.push((Subject::Without(member.slot), format!("{state}; the array is degraded; {remedy}")));
    }
}

impl Anchored for Node {
    fn from_anchor(descriptor: sys::RawFd) -> Option<(Self, u32)> {
        let fd = crate::calls::directory::borrow(descriptor);
        // What cannot be served must not be left to the kernel, which would read and write one
        // member only.
        let node = match &state()?.namespace {
            Ok(namespace) => {
                let node = namespace.adopt_anchor(fd).unwrap_or(Some(Node::Lost))?;
                // While the kernel is asked about every descriptor, nothing of what it stands for
                // is kept.
                let is_kept = !crate::process::shares_tables() && crate::process::owns_tables();
                if is_kept { namespace.with_twin(fd, node) } else { node }
            }
            Err(_) => refused(fd)?,
        };
        if crate::process::shares_tables()
            && let Node::File(file) = &node
        {
            hold_for_good(file);
        }
        let flags = sys::rustix::fs::fcntl_getfl(fd).unwrap_or(sys::rustix::fs::OFlags::empty());
        if let Node::File(file) = &node
            && flags.contains(sys::rustix::fs::OFlags::NOATIME)
        {
            file.keep_access_time();
        }
        Some((node, flags.bits()))
    }

    fn share(descriptor: sys::RawFd, user: &Use<'static, Self>) {
        crate::calls::process::share(descriptor, user);
    }

    fn leave(&self) {
        if let Self::File(file) = self {
            file.keep_nameless();
            hold_for_good(file);
        }
    }
}

/// Tells what an inherited descriptor stands for in a program whose start was refused. The result
/// is None if the descriptor is open on nothing of an array.
fn refused(fd: BorrowedFd<'_>) -> Option<Node> {
    let kind = FileType::from_raw_mode(fstat(fd).ok()?.st_mode);
    // The member's directory may have been renamed, so that its path says nothing. A backing file
    // still has its attribute.
    let host = || crate::calls::directory::link_target(fd.as_raw_fd()).or_else(|| namespace::told_ancestor(fd).ok());
    // Without /proc neither is told.
    let is_of_array = || host().map_or_else(|| namespace::is_of_a_member(fd), |host| logical(&host).is_some());
    match kind {
        FileType::RegularFile if namespace::is_backing(fd) || is_of_array() => Some(Node::Lost),
        // After chroot(2) the path may be another one than that of the member's directory.
        FileType::Directory if is_of_array() || namespace::lies_below_tables(fd) == Ok(true) => Some(Node::Directory(None)),
        _ => None,
    }
}

/// Files that stay open until the process ends.
static HELD: Lock<Vec<file::FileRef>> = Lock::new(Vec::new());

/// While fewer files than this are held, none of them is let go.
const HELD_COUNT_MIN: usize = 64;
/// When so many files are held, [`hold_for_good`] looks for those that no descriptor means any
/// more.
static HELD_COUNT_TO_LOOK: AtomicUsize = AtomicUsize::new(HELD_COUNT_MIN);

/// While others have our descriptors nobody hears when the last of a file is closed: it stays open
/// until [`let_go`] finds that no descriptor means it.
pub(crate) fn hold_for_good(file: &file::FileRef) {
    // Cloned and, if it is there already, dropped while the lock is not held: both take the lock of
    // open files, which a fork takes before this one.
    let file = file.clone();
    let mut held = HELD.lock();
    if held.iter().any(|held| held.attribute() == file.attribute()) {
        return;
    }
    held.push(file);
    if held.len() >= HELD_COUNT_TO_LOOK.load(Ordering::Relaxed) {
        let unused = let_go(&mut held);
        drop(held);
        drop(unused);
    }
}

/// Takes those files out of `held` that no descriptor of the process means, and returns them to be
/// dropped without the lock of `held`. A thread that opens a file has the descriptor before it adds
/// the file, and adds it with that lock held: every file in `held` has a descriptor that is found
/// here, or one that was closed.
fn let_go(held: &mut Vec<file::FileRef>) -> Vec<file::FileRef> {
    let (Ok(namespace), mut meant) = (namespace(), Vec::new()) else { return Vec::new() };
    crate::inherit::descriptors(|descriptor| {
        if !sys::high_fd::is_raised(descriptor)
            && let Ok(Some(attribute)) = namespace.attribute_open(crate::calls::directory::borrow(descriptor))
        {
            meant.push(attribute);
        }
    });
    let (kept, unused) = core::mem::take(held).into_iter().partition(|file| meant.contains(&file.attribute()));
    *held = kept;
    HELD_COUNT_TO_LOOK.store((held.len() * 2).max(HELD_COUNT_MIN), Ordering::Relaxed);
    unused
}

/// In a copy of the process: they are the original's.
pub(crate) fn abandon_held() {
    HELD.raw().reset();
    core::mem::forget(core::mem::take(&mut *HELD.lock()));
}

/// The lock of those files, to hold it across a fork.
pub(crate) fn held_lock() -> &'static RawLock {
    HELD.raw()
}

/// A descriptor this program was given, and perhaps one of ours: if it is an anchor, it is served
/// again. Its offset is shared with whoever gave it.
pub(crate) fn adopt(descriptor: sys::RawFd) {
    if adopt_own(descriptor) {
        return;
    }
    let link = crate::calls::directory::link_target_of_any(descriptor);
    match link.as_deref().unwrap_or_default() {
        link if link.starts_with(b"pipe:[") || link.starts_with(b"socket:[") => return,
        link if link.starts_with(b"anon_inode:") => return crate::calls::events::adopt(descriptor, link),
        _ => {}
    }
    if let Some((node, flags)) = Node::from_anchor(descriptor) {
        OPEN.install(descriptor, OPEN.describe_shared(node, flags));
    }
}

/// Whether a descriptor is one of the library's, in this program or the one that was executed before
/// it. Such a one of the former program's is used again.
pub(crate) fn adopt_own(descriptor: sys::RawFd) -> bool {
    // The former program may have had a lower limit, and its library's numbers began lower then.
    let is_high = (descriptor as u32) >= sys::high_fd::BASE_MIN;
    let is_kept = crate::calls::apart::is_kept;
    is_high
        && (sys::high_fd::is_raised(descriptor)
            || is_kept(descriptor)
            || keeps_own_text(descriptor)
            || keeps_own_locks(descriptor))
}

/// Whether a descriptor is there to keep the file from being written to that this process executes;
/// then it stays, until the next exec.
fn keeps_own_text(descriptor: sys::RawFd) -> bool {
    let fd = crate::calls::directory::borrow(descriptor);
    let is_anchor = || namespace().is_ok_and(|namespace| namespace.is_open_on(fd));
    if !is_anchor() || !namespace::holds_text(fd) {
        return false;
    }
    sys::high_fd::keep(descriptor);
    let _ = sys::rustix::io::fcntl_setfd(fd, sys::rustix::io::FdFlags::CLOEXEC);
    true
}

/// Whether any descriptor was left open by this process' former program for the sake of its locks.
pub(crate) fn has_own_locks() -> bool {
    namespace().is_ok_and(|namespace| namespace.files().has_taken_over())
}

/// Whether a descriptor was left open by this process' former program so that its locks on the file
/// stay; then it is used again.
pub(crate) fn keeps_own_locks(descriptor: sys::RawFd) -> bool {
    let fd = crate::calls::directory::borrow(descriptor);
    let Some(namespace) = namespace().ok().filter(|_| file::keeps_locks(fd)) else { return false };
    sys::high_fd::keep(descriptor);
    // SAFETY: nobody else knows of the descriptor: the former program's library made it.
    namespace.files().take_over(unsafe { sys::OwnedFd::from_raw_fd(descriptor) });
    true
}

/// What this process held before its exec, and has not now, is given back.
pub(crate) fn forget_former_programs() {
    let Ok(namespace) = namespace() else { return };
    let runtime = namespace.files().array().runtime();
    runtime.forget_former_programs();
    if runtime.has_reaped_nameless() {
        namespace.clear_nameless();
    }
}

/// Runs the system call that forks, so that the child's open files are its own.
pub(crate) fn around_fork(fork: impl Fn() -> isize) -> isize {
    match namespace() {
        Ok(namespace) => namespace.files().around_fork(fork),
        Err(_) => fork(),
    }
}

/// The process is about to execute another program: what that closes unseen is to be as if it had
/// been closed in order.
pub(crate) fn settle() {
    if let Ok(namespace) = namespace()
        && crate::process::owns_tables()
    {
        namespace.files().settle();
    }
}

/// The process ends: what it has open is given back in order, if no other thread of it may be using
/// that.
pub(crate) fn leave() {
    let Ok(namespace) = namespace() else { return };
    if crate::stack::is_alone() {
        namespace.files().leave(!crate::calls::rights::are_calls_restricted());
    } else {
        namespace.files().leave_to_others();
    }
}
