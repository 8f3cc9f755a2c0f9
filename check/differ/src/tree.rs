//! What a program finds, and what it leaves.

use std::{
    ffi::CString,
    fmt::Write as _,
    fs, io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
        },
    },
    path::Path,
};

/// The directory beside the one under test that members lie in.
pub(crate) const MEMBERS: &str = "members";
/// The program's descriptors are moved to numbers from here on.
const FIRST: i32 = 3;
/// The other end of the socket that every program is given, where its readers do not wait.
const PEER: i32 = 22;

/// Makes what every program finds, in the place of what the one before has left. `inside` is the
/// directory under test, `outside` one on another file system.
pub(crate) fn make(inside: &Path, outside: &Path) -> io::Result<()> {
    clear(inside, outside)?;
    for directory in [inside, outside, inside.parent().unwrap_or(inside), outside.parent().unwrap_or(outside)] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        std::os::unix::fs::chown(directory, Some(0), Some(0))?;
        fs::File::open(directory)?.set_modified(std::time::SystemTime::now())?;
        let path = CString::new(directory.as_os_str().as_bytes())?;
        for name in [c"user.a", c"user.b", c"trusted.t", c"security.y"] {
            // SAFETY: both strings end with a NUL. That there is no such attribute is as well.
            unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) };
        }
    }
    let path = |name: &str| inside.join(name);
    fs::write(path("f0"), pattern(10_000))?;
    fs::write(path("f1"), b"")?;
    fs::write(path("f2"), pattern(70_000))?;
    fs::hard_link(path("f2"), path("l2"))?;
    for (name, mode) in [("d0", 0o755), ("d0/e", 0o755), ("d1", 0o777)] {
        fs::create_dir(path(name))?;
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode))?;
    }
    fs::write(path("d0/f0"), pattern(100))?;
    for (name, mode) in [("f0", 0o666), ("f1", 0o644), ("f2", 0o644), ("d0/f0", 0o644)] {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode))?;
    }
    fs::write(path("secret"), b"secret")?;
    fs::set_permissions(path("secret"), fs::Permissions::from_mode(0o600))?;
    for (name, target) in [("s0", "f0"), ("s1", "nothing"), ("s2", "d0"), ("s3", "s3"), ("d0/up", "../f0")] {
        symlink(target, path(name))?;
    }
    symlink(outside.join("h0"), path("s4"))?;
    symlink(inside.join("d1"), path("s5"))?;
    fs::write(outside.join("h0"), pattern(5_000))?;
    fs::create_dir(outside.join("hd"))?;
    symlink(inside.join("f0"), outside.join("hs"))?;
    // By what /proc says of the program: f0, d0, and the working directory.
    for (name, target) in [("hf", "fd/3"), ("hk", "fd/5"), ("hw", "cwd")] {
        symlink(format!("/proc/self/{target}"), outside.join(name))?;
    }
    Ok(())
}

/// Removes what is in both directories, and what programs have put beside the one under test.
pub(crate) fn clear(inside: &Path, outside: &Path) -> io::Result<()> {
    for directory in [inside, outside, inside.parent().unwrap_or(inside)] {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path == inside || path.file_name().is_some_and(|name| name == MEMBERS) && path.parent() == inside.parent() {
                continue;
            }
            if path.symlink_metadata()?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    Ok(())
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index / 3 + index / 256) as u8).collect()
}

/// Opens what every program has open from [`FIRST`] on. The working directory is the one under
/// test.
///
/// Standard input and output become a file that has no name, on the other file system: what they
/// were before is the machine's (/dev/null), and was opened where it may be changed.
///
/// Those who read from the pipe or the socket wait for bytes if `waits`.
pub(crate) fn open(outside: &Path, waits: bool) -> io::Result<()> {
    let standard = outside.join("standard");
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&standard)?;
    fs::remove_file(&standard)?;
    (0..FIRST).try_for_each(|number| moved(file.as_raw_fd(), number).map(drop))?;
    drop(file);
    let file = |name: &str, flags: i32, write: bool| {
        fs::OpenOptions::new().read(true).write(write).custom_flags(flags).open(name).map(OwnedFd::from)
    };
    let (from, to) = io::pipe()?;
    let deleted = fs::OpenOptions::new().read(true).write(true).create_new(true).open("gone")?;
    fs::remove_file("gone")?;
    let (one, other) = std::os::unix::net::UnixStream::pair()?;
    // Out of the way of the loop below, which closes it otherwise.
    let other = if waits { other.into_raw_fd() } else { moved(other.into_raw_fd(), 620)? };
    if !waits {
        for fd in [from.as_raw_fd(), to.as_raw_fd(), one.as_raw_fd(), other] {
            // SAFETY: numbers only.
            unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        }
    }
    let opened: [OwnedFd; 13] = [
        file("f0", 0, true)?,
        file("f2", 0, false)?,
        file("d0", libc::O_DIRECTORY, false)?,
        file("f0", libc::O_PATH, false)?,
        from.into(),
        to.into(),
        file("s4", 0, true)?,
        fs::OpenOptions::new().read(true).append(true).open("f1")?.into(),
        deleted.into(),
        one.into(),
        file(".", libc::O_DIRECTORY, false)?,
        socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?,
        socket(libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)?,
    ];
    // First out of the way of all numbers, then to those that programs use.
    let away: Vec<i32> = opened.iter().map(|fd| moved(fd.as_raw_fd(), 600 + fd.as_raw_fd())).collect::<io::Result<_>>()?;
    // The loop below closes them.
    let _numbers = opened.map(|fd| fd.into_raw_fd());
    for number in FIRST..100 {
        // SAFETY: nothing of this process' own is open there but what was moved away.
        unsafe { libc::close(number) };
    }
    for (index, &fd) in away.iter().enumerate() {
        moved(fd, FIRST + index as i32)?;
        // SAFETY: the number is a copy of this function's.
        unsafe { libc::close(fd) };
    }
    if !waits {
        moved(other, PEER)?;
        // SAFETY: as above.
        unsafe { libc::close(other) };
    }
    Ok(())
}

/// A local socket without a name.
fn socket(kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; the descriptor is nobody else's.
    unsafe {
        let made = libc::socket(libc::AF_UNIX, kind, 0);
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(made)) }
    }
}

fn moved(fd: i32, to: i32) -> io::Result<i32> {
    // SAFETY: both are numbers only.
    let result = unsafe { libc::dup2(fd, to) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What is in a directory, a line for each name.
pub(crate) fn listing(directory: &Path) -> String {
    let mut lines = Vec::new();
    list(directory, directory, &mut lines);
    lines.sort();
    lines.concat()
}

fn list(root: &Path, directory: &Path, lines: &mut Vec<String>) {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return lines.push(format!("{}: {error}\n", directory.display())),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap_or(&path).as_os_str().as_bytes().escape_ascii().to_string();
        let Ok(stat) = path.symlink_metadata() else { continue };
        let kind = stat.file_type();
        let mut line = format!("{name} {:o} {} {} {}", stat.mode(), stat.uid(), stat.gid(), stat.nlink());
        if kind.is_file() {
            let content = fs::read(&path).map_or_else(|error| error.to_string(), |bytes| format!("{:x}", hash(&bytes)));
            let _ = write!(line, " {} {content}", stat.len());
        } else if kind.is_symlink() {
            let _ = write!(line, " {:?}", fs::read_link(&path).ok());
        } else if kind.is_char_device() || kind.is_block_device() {
            let _ = write!(line, " {}", stat.rdev());
        }
        lines.push(line + "\n");
        if kind.is_dir() {
            list(root, &path, lines);
        }
    }
}

/// A number that other bytes will hardly have: FNV-1a over words of eight bytes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| mix(hash, u64::from_ne_bytes(*word)));
    rest.iter().fold(mix(hash, bytes.len() as u64), |hash, &byte| mix(hash, u64::from(byte)))
}
