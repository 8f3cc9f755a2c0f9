//! What may differ between an array and a plain directory, with the reason. The list is short, and
//! is to become shorter.

/// One difference that may be.
pub(crate) struct Allowed {
    /// The call's name.
    call: &'static str,
    /// What the plain directory answers.
    plain: &'static str,
    /// What the array answers; empty: anything.
    array: &'static str,
    /// Why.
    reason: &'static str,
    /// Whether the trees are other ones from here on, so that nothing later is comparable.
    parts: bool,
}

impl Allowed {
    /// Whether the call's answers, each a name and an answer, are these.
    fn fits(&self, plain: (&str, &str), array: (&str, &str)) -> bool {
        plain.0 == self.call && array.0 == self.call && is(plain.1, self.plain) && is(array.1, self.array)
    }
}

const fn may(call: &'static str, plain: &'static str, array: &'static str, reason: &'static str) -> Allowed {
    Allowed { call, plain, array, reason, parts: false }
}

const fn parts(call: &'static str, plain: &'static str, array: &'static str, reason: &'static str) -> Allowed {
    Allowed { call, plain, array, reason, parts: true }
}

/// README.md says it of programs.
const TEXT: &str = "an array starts a program that is open for writing, from a copy; what is no program it refuses as such";
/// README.md says it of programs, too.
const READ_TO_EXECUTE: &str = "an array reads a program to start it, and who may execute it and not read it may not start it";
/// What a load has found in private mappings stands behind these words.
pub(crate) const OWN: &str = " and own ";
/// Stands behind the answer of an openat2(2) that opens only what is in the kernel's caches.
pub(crate) const CACHED: &str = " cached";
/// Stands behind the name of a sendfile(2) that sends a file with holes to itself.
pub(crate) const SPARSE: &str = "-sparse";
/// Stands behind the name of a call that asks for a lock (fcntl) which begins at the last byte that a
/// lock can have.
pub(crate) const LAST_BYTE: &str = "-last";
/// docs/differ.md says it of locks.
const LAST_BYTES: &str = "the last four bytes that a lock can have are one byte to an array's locks";
/// docs/differ.md says it of sendfile(2).
const HOLES: &str = "an array gives small holes space, so that a file may have holes on one side only";
/// openat2(2) says it of RESOLVE_CACHED.
const UNCACHED: &str = "openat2(2) with RESOLVE_CACHED answers EAGAIN where the kernel would have to look up more than its caches hold, on either side";
/// Stands behind the answer of an lseek(2) in a directory.
pub(crate) const IN_DIRECTORY: &str = " in a directory";
/// docs/mappings.md says it of private mappings.
const PRIVATE_COPY: &str =
    "a private mapping that is made while a member is out does not show what is written to the file afterwards";
/// README.md says it of private mappings.
const PRIVATE_TAIL: &str = "behind the end of a file a private mapping shows zeros as far as the last stripe reaches";

pub(crate) const ALLOWED: &[Allowed] = &[
    parts("renameat2-whiteout", "0", "E22", "an array makes no whiteouts (RENAME_WHITEOUT), which are overlayfs' own affair"),
    may("execve", "E26", "E8", TEXT),
    may("execveat", "E26", "E8", TEXT),
    may("execve", "E26", "E13", READ_TO_EXECUTE),
    may("execveat", "E26", "E13", READ_TO_EXECUTE),
    parts("fcntl-lock-last", "0", "", LAST_BYTES),
    may("load", "SIGBUS-private", "", PRIVATE_TAIL),
    may("store", "SIGBUS-private", "0", PRIVATE_TAIL),
    may("madvise", "E14-private", "0", PRIVATE_TAIL),
    may("madvise", "E14-private", "E12", PRIVATE_TAIL),
    may("ioctl-flags", "0", "E95", "an array has no flags of files (FS_IOC_SETFLAGS), as file systems that lack them"),
    may(
        "ioctl-flags",
        "E1",
        "E95",
        "an array has no requests of a file system (FS_IOC_SETFLAGS), with or without the right to make them",
    ),
];

/// docs/mount.md says it of ioctl(2).
const MOUNT_REQUESTS: &str = "requests of a file system (ioctl) do not reach a mount: ENOTTY";
/// FUSE says the following of itself.
const MOUNT_EMPTY_READ: &str = "the kernel looks at a buffer before it asks who serves a mount whether there is anything to read";
const MOUNT_DIRECTORY: &str = "positions in a directory are each file system's own, and what lies at one that getdents64(2) has not told is nobody's promise";
const MOUNT_ARGUMENT: &str = "the kernel reads an ioctl's argument, whatever the request is, before it asks who serves a mount";
const MOUNT_LIMIT: &str = "the kernel does not hold space behind a file's end (FALLOC_FL_KEEP_SIZE) to RLIMIT_FSIZE on a mount";

/// What may differ besides where programs use the array through a mount, and not the library.
pub(crate) const ALLOWED_ON_MOUNT: &[Allowed] = &[
    may("fcntl-get", "1", "E22", "tmpfs has seals (F_GET_SEALS), a mount has none"),
    may("ioctl-flags", "0", "E25", MOUNT_REQUESTS),
    may("ioctl-flags", "E1", "E25", MOUNT_REQUESTS),
    may("ioctl-flags", "E95", "E25", MOUNT_REQUESTS),
    may("ioctl-flags", "E14", "E25", MOUNT_REQUESTS),
    may("ioctl", "E25", "E14", MOUNT_ARGUMENT),
    may("ioctl-flags", "E25", "E14", MOUNT_ARGUMENT),
    may("fallocate", "E27", "E28", MOUNT_LIMIT),
    may("fallocate", "E27", "0", MOUNT_LIMIT),
    may("read", "0", "E14", MOUNT_EMPTY_READ),
    may("pread64", "0", "E14", MOUNT_EMPTY_READ),
    may("readv", "0", "E14", MOUNT_EMPTY_READ),
    may("preadv", "0", "E14", MOUNT_EMPTY_READ),
    may("preadv2", "0", "E14", MOUNT_EMPTY_READ),
];
/// Calls whose bytes a mount copies by way of a pipe, many pages at once: a file that is sent to
/// itself is another one then, so nothing later is comparable. The bytes are copied before the
/// offset turns out not to be writable (EFAULT).
const COPIED_ON_MOUNT: [&str; 1] = ["sendfile"];

/// A write whose bytes cannot be read takes set-ID bits away on tmpfs, and not on a mount, whose
/// kernel reads the bytes first.
const WRITES: [&str; 5] = ["write", "pwrite64", "writev", "pwritev", "pwritev2"];

/// Whether what comes behind this step on a mount cannot be compared.
pub(crate) fn parts_on_mount(plain: &str) -> bool {
    let has_copied = |answer: &str| is(answer, "E14") || !answer.starts_with('E') && !is(answer, "0");
    let parts =
        |(call, answer)| COPIED_ON_MOUNT.contains(&call) && has_copied(answer) || WRITES.contains(&call) && is(answer, "E14");
    split(plain).is_some_and(parts)
}

/// Whether a step has moved the position in a directory elsewhere than to its beginning.
pub(crate) fn moves_in_directory(line: &str) -> bool {
    let moves = |(call, answer): (&str, &str)| {
        call == "lseek" && answer.ends_with(IN_DIRECTORY) && !answer.starts_with('E') && !is(answer, "0")
    };
    split(line).is_some_and(moves)
}

/// As [`reason`], for a mount. `has_moved`: a position in a directory was moved in a step before
/// ([`moves_in_directory`]).
pub(crate) fn reason_on_mount(plain: &str, array: &str, has_moved: bool) -> Option<&'static str> {
    let (plain, array) = (split(plain)?, split(array)?);
    let is_seek = plain.0.starts_with("lseek") && [plain.1, array.1].iter().all(|answer| answer.ends_with(IN_DIRECTORY));
    if plain.0 == array.0 && (is_seek || plain.0 == "getdents64" && has_moved) {
        return Some(MOUNT_DIRECTORY);
    }
    // A time that was not asked for the plain directory does not tell.
    let untold: &[&str] = if plain.1.contains(" modified unknown") { &["mask", "modified"] } else { &["mask"] };
    if (plain.0, array.0) == ("statx", "statx") && without(plain.1, untold) == without(array.1, untold) {
        return Some("a mount tells the time of birth to who asks for it, other file systems tell it to all");
    }
    if plain.0 == array.0 && ["fstat", "newfstatat", "statx"].contains(&plain.0) && differs_in_unkept_size(plain.1, array.1) {
        return Some("a descriptor opened with O_PATH does not keep a file that has no name any more (docs/differ.md)");
    }
    ALLOWED_ON_MOUNT.iter().find(|allowed| allowed.fits(plain, array)).map(|allowed| allowed.reason)
}

/// Whether two answers about a file without a name differ in nothing but its size, and the birth
/// time that a mount tells only to who asks for it.
fn differs_in_unkept_size(plain: &str, array: &str) -> bool {
    const UNTOLD: [&str; 3] = ["size", "mask", "modified"];
    plain.contains(" links 0 ") && without(plain, &UNTOLD) == without(array, &UNTOLD)
}

/// An answer without the values that stand behind these words.
fn without<'a>(answer: &'a str, names: &[&str]) -> Vec<&'a str> {
    let mut before = "";
    let mut is_kept = |word: &&'a str| !names.contains(&std::mem::replace(&mut before, *word));
    answer.split(' ').filter(|word| is_kept(word)).collect()
}

/// Whether the plain directory has done in this step what the array refuses for a documented
/// reason, so that their trees differ from here on.
pub(crate) fn parts_here(plain: &str, array: &str) -> bool {
    let (Some(plain), Some(array)) = (split(plain), split(array)) else { return false };
    let has_opened = |answer: &str| !answer.starts_with('E');
    is_uncached_on_one_side(plain, array) && (has_opened(plain.1) || has_opened(array.1))
        || plain.0.ends_with(SPARSE) && has_opened(plain.1) && !is(plain.1, "0")
        || ALLOWED.iter().any(|allowed| allowed.parts && allowed.fits(plain, array))
}

/// Whether one of the two did not find in its caches what openat2(2) is to open, where it is to
/// look nowhere else.
fn is_uncached_on_one_side(plain: (&str, &str), array: (&str, &str)) -> bool {
    let is_asked = |(call, answer): (&str, &str)| call == "openat2" && answer.ends_with(CACHED);
    is_asked(plain) && is_asked(array) && is(plain.1, "E11") != is(array.1, "E11")
}

/// The reason why a call's two lines may differ, if there is one. A line is a step's number, the
/// call's name and its answer. `degraded`: a member was missing from the beginning.
pub(crate) fn reason(plain: &str, array: &str, degraded: bool) -> Option<&'static str> {
    let (plain, array) = (split(plain)?, split(array)?);
    if is_uncached_on_one_side(plain, array) {
        return Some(UNCACHED);
    }
    let is_sparse = plain.0.ends_with(SPARSE) || array.0.ends_with(SPARSE);
    if is_sparse && plain.0.trim_end_matches(SPARSE) == array.0.trim_end_matches(SPARSE) && plain.1 == array.1 {
        return Some(HOLES);
    }
    if degraded && (plain.0, array.0) == ("load", "load") && differs_in_own(plain.1, array.1) {
        return Some(PRIVATE_COPY);
    }
    if (plain.0, array.0) == ("fcntl-get", "fcntl-get") && lacks_unnamed(plain.1, array.1) {
        return Some("F_GETFL of a file without a name does not show O_TMPFILE: the array has opened it again by its descriptor");
    }
    ALLOWED.iter().find(|allowed| allowed.fits(plain, array)).map(|allowed| allowed.reason)
}

/// Whether two loads differ in nothing but the bytes of private mappings.
fn differs_in_own(plain: &str, array: &str) -> bool {
    let parts = (plain.rsplit_once(OWN), array.rsplit_once(OWN));
    matches!(parts, (Some((plain, _)), Some((array, _))) if plain == array)
}

/// Whether the array's flags are the plain file's without O_TMPFILE.
fn lacks_unnamed(plain: &str, array: &str) -> bool {
    let (Ok(plain), Ok(array)) = (plain.parse::<i32>(), array.parse::<i32>()) else { return false };
    plain & libc::O_TMPFILE == libc::O_TMPFILE && plain & !libc::O_TMPFILE == array
}

/// Whether an answer is this one; an empty one is any.
fn is(answer: &str, allowed: &str) -> bool {
    allowed.is_empty() || answer.split(' ').next() == Some(allowed)
}

fn split(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(' ')?;
    rest.split_once(" = ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_compared_behind_a_change_that_only_the_plain_directory_made() {
        assert!(parts_here("24 renameat2-whiteout = 0", "24 renameat2-whiteout = E22"));
        assert!(!parts_here("24 renameat2 = 0", "24 renameat2 = E22"));
        assert!(!parts_here("24 renameat2 = 0", "24 renameat2 = E2"));
        assert!(!parts_here("24 ioctl-flags = 0", "24 ioctl-flags = E95"));
    }

    #[test]
    fn a_file_with_holes_that_is_sent_to_itself_is_not_compared_any_more() {
        assert!(parts_here("30 sendfile-sparse = 70000", "30 sendfile = 70000"));
        assert!(parts_here("30 sendfile-sparse = 70000", "30 sendfile = E14"));
        assert!(!parts_here("30 sendfile-sparse = E14", "30 sendfile = E14") && !parts_here("3 sendfile = 7", "3 sendfile = 7"));
        assert_eq!(reason("30 sendfile-sparse = E22", "30 sendfile = E22", false), Some(HOLES));
        assert_eq!(reason("30 sendfile-sparse = E22", "30 sendfile = 0", false), None);
    }

    #[test]
    fn of_a_file_without_a_name_a_mount_may_tell_another_size() {
        let nameless = |size| format!("6 fstat = 0 mode 100666 links 0 owner 0:0 size {size} device 0 modified now");
        assert!(reason_on_mount(&nameless(10000), &nameless(5904), false).is_some());
        let named = |size| nameless(size).replace("links 0", "links 1");
        assert!(reason_on_mount(&named(10000), &named(5904), false).is_none());
        let birth = "5 statx = 0 mask 1fff mode 100666 links 1 size 1";
        assert!(reason_on_mount(birth, &birth.replace("1fff", "17ff"), false).is_some());
        assert!(reason_on_mount(birth, &birth.replace("size 1", "size 2"), false).is_none());
        assert!(!parts_on_mount("1 sendfile = E22") && !parts_on_mount("1 sendfile = 0"));
        assert!(parts_on_mount("1 sendfile = E14"));
        assert!(parts_on_mount("1 sendfile = 70000") && !parts_on_mount("1 read = 7"));
        assert!(parts_on_mount("1 writev = E14") && !parts_on_mount("1 write = 14"));
    }

    #[test]
    fn positions_in_directories_are_not_compared_on_a_mount() {
        let sought = |answer: &str| format!("3 lseek = {answer}{IN_DIRECTORY}");
        assert!(reason_on_mount(&sought("10000"), &sought("75576"), false).is_some());
        assert!(reason_on_mount("3 lseek = 10000", "3 lseek = 75576", false).is_none());
        assert!(reason(&sought("10000"), &sought("75576"), false).is_none());
        assert!(moves_in_directory(&sought("10000")) && !moves_in_directory(&sought("0")) && !moves_in_directory(&sought("E22")));
        assert!(!moves_in_directory("3 lseek = 10000"));
        let (plain, array) = ("4 getdents64 = E14", "4 getdents64 = 0");
        assert!(reason_on_mount(plain, array, true).is_some() && reason_on_mount(plain, array, false).is_none());
    }

    #[test]
    fn what_is_not_cached_may_be_refused_on_one_side() {
        let found = reason("18t openat2 = E11 cached", "18t openat2 = E18 cached", false);
        assert_eq!(found, Some(UNCACHED));
        assert_eq!(reason("18 openat2 = 17 cached", "18 openat2 = E11 cached", false), Some(UNCACHED));
        for others in [("E11", "E18"), ("E2 cached", "E18 cached"), ("E11 cached", "E18")] {
            let [plain, array] = [others.0, others.1].map(|answer| format!("18 openat2 = {answer}"));
            assert_eq!(reason(&plain, &array, false), None, "{others:?}");
        }
        // What is open only on one side has a number that the other side gives to something else.
        assert!(parts_here("18 openat2 = 17 cached", "18 openat2 = E11 cached"));
        assert!(!parts_here("18 openat2 = E11 cached", "18 openat2 = E18 cached"));
    }

    #[test]
    fn only_bytes_of_private_mappings_may_differ_on_an_array_that_lacks_a_member() {
        let (plain, array) = ("3 load = 2 pages 12 and own 34", "3 load = 2 pages 12 and own 56");
        assert_eq!(reason(plain, array, true), Some(PRIVATE_COPY));
        assert_eq!(reason(plain, array, false), None);
        let (plain, array) =
            ("3t load = SIGSEGV 1 0 behind 16 pages 12 and own 34", "3t load = SIGSEGV 1 0 behind 16 pages 12 and own 5");
        assert_eq!(reason(plain, array, true), Some(PRIVATE_COPY));
        let others = [
            "3 load = 2 pages 13 and own 34",
            "3 load = 1 pages 12 and own 34",
            "3 load = 2 pages 12",
            "3 load = SIGSEGV 1 0 behind 1 pages 12 and own 34",
        ];
        assert!(others.iter().all(|other| reason("3 load = 2 pages 12 and own 34", other, true).is_none()));
    }
}
