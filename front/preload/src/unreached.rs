//! Programs that run without this library, and how the array's files and directories are kept from
//! them.
//!
//! Why this exists: such a program would write to what it inherits, and the library would not
//! notice. An anchor is one member's backing file, and a working directory of the array is a
//! directory of one member: what is written or made there is on that member alone, and is not
//! redundant. So before a process executes such a program, it marks its anchors close-on-exec, and
//! leaves the array's directory for another one ([`PLACES`]). If the setting `CXLRAID_UNREACHED` is
//! `refuse`, it does not execute the program. In both cases one line on standard error says what
//! was done. If the exec fails, the caller calls [`Withheld::give_back`], and everything is as it
//! was before.
//!
//! ld.so loads the library. So the library is not loaded into a program that is linked statically,
//! or is for another processor than ld.so's (a 32-bit one), or gains rights by being executed
//! (ld.so(8), secure-execution mode). In a program that is linked with another C library than
//! glibc, the library stands aside. The library is not loaded either where ld.so cannot have its
//! file: the file was removed, is not in the program's root directory (chroot(2)), or is closed to
//! the program's user. A program that may not be read may be linked statically, and counts as one
//! that is.

use crate::arena::{self, Arena};
use crate::calls::node::{Held, Node};
use crate::calls::process::{note_parted, part_from_processes};
use crate::calls::{OPEN, directory, rights};
use crate::descriptors::Claim;
use crate::descriptors::descriptor_flags;
use crate::exec::{Target, window};
use crate::handover::{self, Asked, HandedOver};
use crate::patch::elf::{Header, headers_of, interpreter};
use crate::patch::go::is_of_go;
use crate::report::report;
use crate::uapi::PATH_MAX;
use crate::{guest, own, process, program};
use core::cell::Cell;
use core::ffi::CStr;
use core::fmt;
use heap::vec::Vec;
use linux_raw_sys::general::{__NR_faccessat2, AT_EACCESS, AT_EMPTY_PATH, F_GETFD, F_SETFD, FD_CLOEXEC, X_OK};
use sys::raw::{check, syscall};
use sys::rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, StatVfsMountFlags, fgetxattr, fstat, fstatvfs, getxattr, openat, statfs,
};
use sys::rustix::io::{dup, pread};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use sys::rustix::process::{getegid, geteuid, getgid, getuid};
use sys::rustix::thread::no_new_privs;
use sys::task::in_a_copy_apart;
use sys::{AsRawFd, BorrowedFd, OsError, OwnedFd, RawFd, high_fd};
use units::{PAGE_BYTES, Shown};

/// How many scripts may name one another as interpreters before the kernel gives up.
const SCRIPT_DEPTH_MAX: usize = 5;
/// The setting; if its value is `refuse`, programs without the library are not executed.
pub(crate) const SETTING: &[u8] = b"CXLRAID_UNREACHED";

/// A process in the array's directory goes to the first of these that is a directory of proc(5).
/// Nobody can make files in them, not root either. The first one is empty, so that a program that
/// looks through its directory finds nothing.
const PLACES: [&CStr; 3] = [c"/proc/tty/ldisc", c"/proc/fs", c"/proc"];

/// Those of [`PLACES`] that are there.
fn places() -> impl Iterator<Item = &'static CStr> {
    PLACES.into_iter().filter(|place| statfs(*place).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC))
}

/// Returns what a message calls the process' current directory, which is one of the array.
fn shown_directory() -> Vec<u8> {
    directory::path_of(directory::AT_FDCWD).unwrap_or_else(|| b"a directory of the array".to_vec())
}

/// Why a program runs without the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It names no dynamic linker (PT_INTERP).
    Static,
    /// It is not for x86-64.
    OtherProcessor,
    /// It runs in secure-execution mode (AT_SECURE): with rights that its caller lacks, or because
    /// its caller's effective user or group is not the real one.
    Rights,
    /// Its C library is not glibc, and the library stands aside in it ([`crate::loader`]).
    OtherLibrary,
    /// It is written in Go, and the library stands aside in it ([`crate::patch::go`]).
    Go,
    /// It could have the library, whose file ld.so will not be able to load there.
    NoLibrary,
    /// It may not be read. If it is linked statically, it runs without the library.
    Unreadable,
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoLibrary => {
                let name = Shown(own::name().unwrap_or_default().to_bytes());
                return write!(formatter, "cannot load {name} (it is not there, is damaged, or is closed to this user)");
            }
            Self::Unreadable => "may not be read, so it may be linked statically,",
            Self::Static => "is linked statically",
            Self::OtherProcessor => "is not an x86-64 program",
            Self::Rights => "runs in secure-execution mode (ld.so(8))",
            Self::OtherLibrary => "is not linked with glibc",
            Self::Go => "is written in Go",
        })
    }
}

impl Why {
    /// What is said of the program's run.
    const fn runs(self) -> &'static str {
        match self {
            Self::Unreadable => "may run",
            _ => "runs",
        }
    }
}

/// What was kept from a program that is about to be executed, to be given back if the exec fails.
#[derive(Default)]
pub(crate) struct Withheld {
    /// Anchors that were marked close-on-exec, and had not been before.
    anchors: Vec<RawFd>,
    /// A descriptor of the directory of the array in which the process was. The exec closes it, or
    /// `give_back`.
    directory: Option<RawFd>,
    /// Whether the caller has left a descriptor table that other processes use, for the sake of the
    /// marks.
    parted: bool,
    /// What the program is given in another form.
    handed_over: HandedOver,
    /// The numbers of all that is withheld or handed over.
    claims: Vec<Claim<Node>>,
    /// Keeps the files that these numbers meant as long as there are claims.
    uses: Vec<Held>,
}

impl Withheld {
    /// Whether nothing was withheld.
    pub(crate) fn is_empty(&self) -> bool {
        !window::is_open() && self.anchors.is_empty() && self.directory.is_none() && self.handed_over.is_empty()
    }

    /// The path, with a NUL, by which the program is to be executed: that of its file in a mount.
    pub(crate) fn program(&self) -> Option<&[u8]> {
        self.handed_over.program.as_deref()
    }

    /// Gives back what was withheld. To be called, once, if the exec has failed.
    pub(crate) fn give_back(&mut self) {
        // If another process has closed an anchor meanwhile, both calls fail and nothing is lost. A
        // thread of this process waits for the claims.
        for &descriptor in &self.anchors {
            let flags = descriptor_flags(descriptor, F_GETFD, 0);
            descriptor_flags(descriptor, F_SETFD, flags as usize & !(FD_CLOEXEC as usize));
        }
        if let Some(directory) = self.directory {
            directory::return_to(directory);
        }
        self.handed_over.take_back();
        self.claims.clear();
        self.uses.clear();
        if self.parted {
            note_parted();
        }
    }
}

/// Returns why the program to be executed will run without the library. None if the library will be
/// in it, or if it cannot be executed. None, too, if it is of a format that binfmt_misc knows.
///
/// # Errors
/// EMFILE if no descriptor was free to look at the program with, and a program without the library
/// would be given something of the array.
pub(crate) fn why(target: Target) -> Result<Option<Why>, OsError> {
    match looked(target) {
        Err(_) if !directory::is_ours(directory::AT_FDCWD) && inherited_anchors().is_empty() => Ok(None),
        looked => looked,
    }
}

/// As [`why`], asked by a copy of this process that has closed some descriptors of its own.
pub(crate) fn why_apart(target: Target) -> Result<Option<Why>, OsError> {
    // What the copy has allocated is in memory that no other thread keeps locked.
    let _arena = if arena::is_active() { None } else { Some(Arena::enter().ok_or(OsError::MFILE)?) };
    let answer = Answer::new()?;
    // SAFETY: the copy makes system calls, and uses memory of this thread alone.
    let copied = unsafe {
        in_a_copy_apart(|| {
            let named = if let Target::At(directory, ..) = target { directory } else { directory::AT_FDCWD };
            let standard = (0..=2).filter(|&number| number != named);
            standard.for_each(crate::calls::descriptor::close_unheld);
            answer.give(looked(target));
        })
    };
    copied.map_err(|_| OsError::MFILE)?;
    answer.take()
}

/// A word of memory that a copy of this process shares.
struct Answer(*mut u8);

impl Answer {
    /// What [`Self::give`] stores if the library will be in the program; a [`Why`] follows it.
    const SERVED: u8 = 1;
    /// The reasons, in the order of their numbers in an answer.
    const ALL: [Why; 7] =
        [Why::Static, Why::OtherProcessor, Why::Rights, Why::OtherLibrary, Why::Go, Why::NoLibrary, Why::Unreadable];

    fn new() -> Result<Self, OsError> {
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping.
        let page = unsafe {
            mmap_anonymous(sys::place::wish(PAGE_BYTES) as *mut _, PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        page.map(|page| Self(page.cast()))
    }

    fn give(&self, why: Result<Option<Why>, OsError>) {
        let number = match why {
            Err(_) => 0,
            Ok(None) => Self::SERVED,
            Ok(Some(why)) => Self::SERVED + 1 + Self::ALL.iter().position(|one| *one == why).unwrap_or(0) as u8,
        };
        // SAFETY: the page is this value's.
        unsafe { self.0.write_volatile(number) };
    }

    fn take(self) -> Result<Option<Why>, OsError> {
        // SAFETY: the page is this value's.
        match unsafe { self.0.read_volatile() } {
            0 => Err(OsError::MFILE),
            Self::SERVED => Ok(None),
            number => Ok(Self::ALL.get(usize::from(number - Self::SERVED - 1)).copied()),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: the page is this value's, and nobody uses it any more.
        let _ = unsafe { munmap(self.0.cast(), PAGE_BYTES) };
    }
}

/// As [`why`], whatever the program would be given.
fn looked(target: Target) -> Result<Option<Why>, OsError> {
    let is_short = Cell::new(false);
    let file = opened(target, &is_short).filter(|file| !is_closed(file));
    let why = file.and_then(|file| why_file(&file, 0, &is_short));
    if why.is_none() && is_short.get() { Err(OsError::MFILE) } else { Ok(why) }
}

/// Tells whether the kernel will refuse to execute a file for want of the right to.
fn is_closed(file: &OwnedFd) -> bool {
    // A filter may end a process for a call that it does not know. A former program may have set it.
    if rights::are_calls_filtered() {
        return false;
    }
    let flags = (AT_EMPTY_PATH | AT_EACCESS) as usize;
    let args = [file.as_raw_fd() as usize, c"".as_ptr() as usize, X_OK as usize, flags, 0, 0];
    // SAFETY: a question about a descriptor that is open; the string is read.
    let answer = check(unsafe { syscall(__NR_faccessat2 as usize, args) });
    // Another error may be a filter's or an older kernel's, which knows nothing of the file.
    answer == Err(OsError::ACCESS)
}

/// Keeps the array's files and directory from a program that is about to be executed without the
/// library. If the array is mounted, the program is given the mount's in their places. For the
/// rest: marks this process' anchors close-on-exec, leaves the array's directory, and prints a line
/// that says so. `stored` is the program's logical path if its file is on the array; `refuses` tells
/// whether such a program is not to be executed ([`refuses`]).
///
/// # Errors
/// EACCES if the settings refuse such a program, or there is no directory to start it in.
pub(crate) fn withhold(
    target: Target,
    why: Why,
    stored: Option<&[u8]>,
    refuses: impl FnOnce() -> bool,
) -> Result<Withheld, OsError> {
    let mut withheld = Withheld::default();
    let (anchors, is_inside) = (inherited_anchors(), directory::is_ours(directory::AT_FDCWD));
    let gives = (!anchors.is_empty() || is_inside || stored.is_some()) && !window::is_interrupted_too_often();
    let asked = if gives { handover::ask(&anchors, is_inside, stored, why == Why::Rights) } else { None };
    // From here on other threads change nothing of what the program is given. What they have
    // changed meanwhile shows.
    window::open();
    let mut anchors = inherited_anchors();
    let mut is_inside = directory::is_ours(directory::AT_FDCWD);
    (withheld.claims, withheld.uses) = handover::claims(asked.as_ref(), &anchors);
    // Another thread may have closed a number before that, given it to something else, or marked
    // it.
    if window::is_open() && is_table_whole() {
        let is_claimed = |number: RawFd| withheld.claims.iter().any(|claim| claim.descriptor() == number);
        anchors.retain(|&anchor| is_claimed(anchor) && is_inherited(anchor));
    }
    let take = |asked: Asked| asked.take(&withheld.claims, &mut anchors, &mut is_inside);
    withheld.handed_over = asked.map_or_else(HandedOver::default, take);
    if anchors.is_empty() && !is_inside {
        return Ok(withheld);
    }
    let mut buffer = [0; PATH_MAX];
    let name = Shown(name_of(target, &mut buffer));
    if refuses() {
        report!(
            "{name}: refused, since it {why} and would work on one member alone; start it outside the array, without files of it open"
        );
        withheld.give_back();
        window::close();
        return Err(OsError::ACCESS);
    }
    let (inside, place) = if is_inside {
        let inside = shown_directory();
        match places().find_map(|place| Some((directory::leave_for(place, false).ok()?, place))) {
            Some((before, place)) => {
                withheld.directory = Some(before);
                (inside, place)
            }
            None => {
                report!(
                    "{name}: refused, since it {why} and would work on one member alone, and no directory can be entered in place of the array's: there is no /proc, or unshare(2) is not permitted; start it outside the array"
                );
                withheld.give_back();
                window::close();
                return Err(OsError::ACCESS);
            }
        }
    } else {
        (Vec::new(), c"")
    };
    withheld.parted = !anchors.is_empty() && part_from_processes();
    let (count, runs) = (anchors.len(), why.runs());
    let (place, inside) = (Shown(place.to_bytes()), Shown(&inside));
    let (files, are) = if count == 1 { ("file", "is") } else { ("files", "are") };
    let closed = format_args!("{count} open {files} of the array {are} closed for it");
    let moved = format_args!("it starts in {place}, where nothing can be made, and not in {inside}");
    match (is_inside, count) {
        // The line was printed when the exec began.
        _ if !window::is_first() => {}
        (true, 0) => report!("{name}: {why} and {runs} without cxlraid: {moved}"),
        (true, _) => report!("{name}: {why} and {runs} without cxlraid: {closed}, and {moved}"),
        (false, _) => report!("{name}: {why} and {runs} without cxlraid: {closed}"),
    }
    // The line was written where standard error leads to until now.
    if (withheld.parted || !handover::shares_table())
        && anchors.iter().any(|&anchor| is_standard(anchor))
        && let Some(place) = unusable()
    {
        anchors.retain(|&anchor| !(is_standard(anchor) && withheld.handed_over.withdraw(anchor, place.as_raw_fd())));
    }
    for &descriptor in &anchors {
        let flags = descriptor_flags(descriptor, F_GETFD, 0);
        descriptor_flags(descriptor, F_SETFD, flags as usize | FD_CLOEXEC as usize);
    }
    withheld.anchors = anchors;
    Ok(withheld)
}

/// For a process in which the library stands aside, and which was given `count` open files of the
/// array, before its program runs: leaves the array's directory, if that is where it is. Returns
/// where to, and from where.
///
/// # Errors
/// The process must end: the settings refuse such a program what is the array's, or there is no
/// other directory for it. The text is the end of a sentence about it.
pub(crate) fn leave_directory(count: usize) -> Result<Option<(&'static CStr, Vec<u8>)>, &'static str> {
    directory::look();
    let is_inside = directory::is_ours(directory::AT_FDCWD);
    if (is_inside || count > 0) && refuses(None) {
        return Err("; start it outside the array, without files of it open");
    }
    if !is_inside {
        return Ok(None);
    }
    let inside = shown_directory();
    for place in places() {
        if let Ok(before) = directory::leave_for(place, true) {
            crate::calls::descriptor::close_unheld(before);
            return Ok(Some((place, inside)));
        }
    }
    Err(
        ", and no directory can be entered in place of it: there is no /proc, or unshare(2) is not permitted; start it outside the array",
    )
}

/// Tells whether programs without the library are not executed: by the setting that the program is
/// given, or, where it is given none, by this process' own.
pub(crate) fn refuses(given: Option<&[u8]>) -> bool {
    given.or_else(|| own::environment().get(SETTING)) == Some(b"refuse")
}

/// Tells whether a number is that of standard input, output or error.
pub(crate) const fn is_standard(number: RawFd) -> bool {
    matches!(number, 0..=2)
}

/// Opens a symlink itself: what is done with the descriptor fails as if it were closed (`EBADF`), it
/// leads to no directory, and nothing is opened by way of it (/dev/stdout). Without /proc nothing is
/// opened by way of any descriptor, and the root directory takes the symlink's place.
fn unusable() -> Option<OwnedFd> {
    let opened = |path: &CStr| openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    opened(c"/proc/self").or_else(|_| opened(c"/")).ok()
}

/// Makes a number mean something that can neither be read nor written. Returns whether that was done.
pub(crate) fn occupy(number: RawFd) -> bool {
    unusable().is_some_and(|place| handover::replace(place.as_raw_fd(), number))
}

/// The descriptors of the array's files and directories that the next program would inherit.
fn inherited_anchors() -> Vec<RawFd> {
    // The table of open files describes the descriptors of its own process, unless others open and
    // close in them, or the process has begun anew and has not met all of them yet. For anybody
    // else `guest` goes by what the kernel says.
    let mut anchors = if is_table_whole() { OPEN.all().map(|(descriptor, _)| descriptor).collect() } else { guest::anchors() };
    anchors.retain(|&descriptor| {
        // One that keeps the file of the program from being written to is the library's, made for
        // this exec.
        if descriptor as u32 >= high_fd::base() && namespace::holds_text(directory::borrow(descriptor)) {
            return false;
        }
        is_inherited(descriptor)
    });
    anchors
}

/// Tells whether the table of open files describes all descriptors of the calling task.
fn is_table_whole() -> bool {
    process::owns_tables() && !process::shares_tables() && !OPEN.discovers()
}

/// Tells whether a number is open, and stays so over an exec.
fn is_inherited(descriptor: RawFd) -> bool {
    let flags = descriptor_flags(descriptor, F_GETFD, 0);
    flags >= 0 && flags as u32 & FD_CLOEXEC == 0
}

/// What the program is called in a message.
fn name_of(target: Target, buffer: &mut [u8; PATH_MAX]) -> &[u8] {
    let (Target::Path(path) | Target::At(_, path, _)) = target;
    match program::read_string(path, buffer) {
        Ok(name) if !name.is_empty() => name,
        _ => b"the program to be executed",
    }
}

/// Opens the file to be executed. None if it cannot be opened, or its name cannot be read.
pub(crate) fn file_of(target: Target) -> Option<OwnedFd> {
    opened(target, &Cell::new(false))
}

/// As [`file_of`]. Notes if no number was free.
fn opened(target: Target, is_short: &Cell<bool>) -> Option<OwnedFd> {
    // The buffer has the name with the NUL at its end, which `open` needs.
    let mut buffer = [0; PATH_MAX];
    match target {
        Target::Path(path) => match program::read_string(path, &mut buffer) {
            Ok(_) => open(CWD, &buffer, is_short),
            Err(_) => None,
        },
        Target::At(directory, path, flags) => {
            let directory = directory::borrow(directory);
            match program::read_string(path, &mut buffer) {
                Ok([]) if flags & AT_EMPTY_PATH != 0 => reopened(directory, is_short),
                Ok(_) => open(directory, &buffer, is_short),
                Err(_) => None,
            }
        }
    }
}

/// Opens anew, for reading, a file that is executed by its descriptor, which may be one of O_PATH.
/// If the file may not be read, the descriptor is duplicated.
fn reopened(file: BorrowedFd<'_>, is_short: &Cell<bool>) -> Option<OwnedFd> {
    let link = heap::format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let open = || openat(CWD, link.as_str(), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    numbered(is_short, open).or_else(|_| dup(file)).ok()
}

/// Opens a file for reading; if that fails, with O_PATH, which is enough to ask for its mode.
fn open(directory: BorrowedFd<'_>, path: &[u8], is_short: &Cell<bool>) -> Option<OwnedFd> {
    // The opening of a FIFO would wait without NONBLOCK.
    let path = CStr::from_bytes_until_nul(path).ok()?;
    let opened =
        |flags| numbered(is_short, || openat(directory, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()));
    opened(OFlags::RDONLY).or_else(|_| opened(OFlags::PATH)).ok()
}

/// Opens something. Notes if no number was free for it.
fn numbered(is_short: &Cell<bool>, open: impl Fn() -> Result<OwnedFd, OsError>) -> Result<OwnedFd, OsError> {
    open().inspect_err(|error| {
        if matches!(*error, OsError::MFILE | OsError::NFILE) {
            is_short.set(true);
        }
    })
}

/// [`why`], of an open file to which `depth` scripts have led: it looks at the interpreter of a
/// script, then at rights, processor and dynamic linker.
fn why_file(file: &OwnedFd, depth: usize, is_short: &Cell<bool>) -> Option<Why> {
    // The last byte stays 0.
    let mut start = [0u8; PAGE_BYTES];
    let Ok(count) = pread(file, &mut start[..PAGE_BYTES - 1], 0) else {
        let is_program = fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        return is_program.then(|| if gains_rights(file) { Why::Rights } else { Why::Unreadable });
    };
    if let Some(line) = start[..count].strip_prefix(b"#!") {
        // The interpreter's name ends at a space or tab, as the kernel reads the line. The kernel
        // reads 256 bytes of the file at most, and refuses a longer name.
        let mut words = line.split(|byte| *byte == b'\n').next().unwrap_or(b"").split(|byte| matches!(byte, b' ' | b'\t'));
        let name = words.find(|word| !word.is_empty()).unwrap_or(b"");
        let path = [name, b"\0"].concat();
        return if depth < SCRIPT_DEPTH_MAX { why_file(&open(CWD, &path, is_short)?, depth + 1, is_short) } else { None };
    }
    if gains_rights(file) {
        return Some(Why::Rights);
    }
    if count < size_of::<Header>() || !start.starts_with(b"\x7fELF") {
        return None;
    }
    // SAFETY: the page is longer than a header, which is plain numbers.
    let header = unsafe { start.as_ptr().cast::<Header>().read_unaligned() };
    if !header.is_ours() {
        return Some(Why::OtherProcessor);
    }
    let headers = headers_of(file, &header)?;
    match interpreter(&headers) {
        None => Some(Why::Static),
        Some(name) if is_of_other_library(file, &name) => Some(Why::OtherLibrary),
        Some(_) if is_of_go(file, &header, &headers) => Some(Why::Go),
        Some(_) => own::name().is_some_and(|name| !crate::loader::is_loadable(name)).then_some(Why::NoLibrary),
    }
}

/// Whether the kernel will presumably say that the file is executed in secure-execution mode
/// (AT_SECURE). Security modules are not asked, and what cannot be found out counts as no.
fn gains_rights(file: &OwnedFd) -> bool {
    let (user, group) = (getuid(), getgid());
    if geteuid() != user || getegid() != group {
        return true;
    }
    // The kernel then ignores set-user-ID and set-group-ID bits and file capabilities.
    let are_ignored = no_new_privs().unwrap_or(false)
        || fstatvfs(file).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if are_ignored {
        return false;
    }
    let changes = fstat(file).is_ok_and(|stat| {
        let sets_user = stat.st_mode & 0o4000 != 0 && stat.st_uid != user.as_raw();
        let sets_group = stat.st_mode & 0o2010 == 0o2010 && stat.st_gid != group.as_raw();
        sets_user || sets_group
    });
    let has_capabilities = || {
        let found = match fgetxattr(file, file::CAPABILITIES, &mut [0u8; 64]) {
            // It was opened with O_PATH.
            Err(OsError::BADF) => {
                let link = heap::format!("/proc/thread-self/fd/{}", file.as_raw_fd());
                getxattr(link.as_str(), file::CAPABILITIES, &mut [0u8; 64])
            }
            found => found,
        };
        found.is_ok()
    };
    changes || !user.is_root() && has_capabilities()
}

/// Whether a program asks for a dynamic linker of another C library than glibc, or the linker's
/// name cannot be read. `name` is the range of the file that holds it.
fn is_of_other_library(file: &OwnedFd, name: &core::ops::Range<u64>) -> bool {
    let mut path = [0; PATH_MAX];
    let length = usize::try_from(name.end - name.start).unwrap_or(0).min(PATH_MAX);
    let count = pread(file, &mut path[..length], name.start).unwrap_or(0);
    let path = path[..count].split(|&byte| byte == 0).next().unwrap_or(b"");
    !crate::loader::is_glibc_linker(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::elf::ProgramHeader;
    use std::os::unix::ffi::OsStrExt;
    use std::vec::Vec;

    fn of_bytes(name: &str, bytes: &[u8]) -> Option<Why> {
        let path = std::env::temp_dir().join(std::format!("cxlraid-unreached-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = openat(CWD, path.as_os_str().as_bytes(), OFlags::RDONLY, Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        why_file(&file, 0, &Cell::new(false))
    }

    #[test]
    fn programs_without_the_library_are_told_apart() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(of_bytes("own", &own[..PAGE_BYTES]), None);
        let mut other = own[..PAGE_BYTES].to_vec();
        other[4] = 1;
        assert_eq!(of_bytes("32", &other), Some(Why::OtherProcessor));
        // The program header that names the dynamic linker is of the kind PT_INTERP (3).
        let (offset, count) = (64, usize::from(own[56]));
        let headers: Vec<usize> = (0..count).map(|index| offset + index * size_of::<ProgramHeader>()).collect();
        let interpreter = *headers.iter().find(|&&at| own[at] == 3).unwrap();
        let place = u64::from_le_bytes(own[interpreter + 8..interpreter + 16].try_into().unwrap()) as usize;
        let mut musl = own[..PAGE_BYTES].to_vec();
        musl[place..place + 25].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(of_bytes("musl", &musl), Some(Why::OtherLibrary));
        let mut alone = own[..PAGE_BYTES].to_vec();
        alone[interpreter] = 0;
        assert_eq!(of_bytes("static", &alone), Some(Why::Static));
        // A script's interpreter may have any byte in its name but space, tab, newline and NUL.
        let path = std::env::temp_dir().join(std::format!("cxlraid-unreached-{}-odd\x0c\rname", std::process::id()));
        std::fs::write(&path, &alone).unwrap();
        let of_script = of_bytes("odd", &[b"#! \t", path.as_os_str().as_bytes(), b"\t-e\n"].concat());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(of_script, Some(Why::Static));
        assert_eq!(of_bytes("script", b"#! /bin/sh -e\n"), None);
        assert_eq!(of_bytes("text", b"neither"), None);
    }

    #[test]
    fn headers_behind_the_first_page_are_found() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let headers = own[64..64 + usize::from(own[56]) * size_of::<ProgramHeader>()].to_vec();
        let mut moved = own[..64].to_vec();
        moved.resize(3 * PAGE_BYTES, 0);
        moved[32..40].copy_from_slice(&(3 * PAGE_BYTES as u64).to_le_bytes());
        moved.extend(headers);
        assert_eq!(of_bytes("moved", &moved), None);
        moved.truncate(3 * PAGE_BYTES);
        assert_eq!(of_bytes("none", &moved), Some(Why::Static));
    }
}
