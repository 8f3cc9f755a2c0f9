//! Temporary members, mapped backing files, and the file systems on which they lie. Each removes,
//! unmounts or unmaps itself when it is dropped.

use crate::plan::ArrayPlace;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use sys::rustix::fs::{Mode, OFlags, open};
use sys::rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use units::PAGE_BYTES;

const PREFIX: &str = "cxlraid-bench-";

/// A directory in shared memory, or on a tmpfs of its own.
pub(crate) struct Scratch {
    path: PathBuf,
    mounted: bool,
}

impl Scratch {
    /// A directory on the machine's tmpfs.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
        sweep(&base);
        let path = base.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path, mounted: false })
    }

    /// A tmpfs with huge pages, which takes root.
    pub(crate) fn huge(name: &str, bytes: u64) -> io::Result<Self> {
        let mut scratch = Self::new(name)?;
        if !scratch.mount(&format!("huge=always,size={bytes}"))? {
            return Err(io::Error::other("mounting a tmpfs with huge pages failed (it takes root)"));
        }
        Ok(scratch)
    }

    /// A directory for any number of files: on a tmpfs of its own, or on the machine's tmpfs if this
    /// user may not mount.
    pub(crate) fn wide(name: &str) -> io::Result<Self> {
        let mut scratch = Self::new(name)?;
        scratch.mount("nr_inodes=0,size=95%")?;
        Ok(scratch)
    }

    /// Mounts a tmpfs on the directory. False if this user may not.
    fn mount(&mut self, options: &str) -> io::Result<bool> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "cxlraid-bench"])
            .arg(&self.path)
            .stderr(Stdio::null())
            .status()?;
        self.mounted = mount.success();
        Ok(self.mounted)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Member directories and a prefix for an array of `count` members.
    pub(crate) fn array(&self, level: &str, count: usize) -> io::Result<ArrayPlace> {
        let name = self.path.file_name().unwrap_or_default();
        let members: Vec<PathBuf> = (0..count).map(|slot| self.path.join(format!("{level}-m{slot}"))).collect();
        members.iter().try_for_each(fs::create_dir)?;
        let prefix = Path::new("/").join(name);
        Ok(ArrayPlace { level: level.to_owned(), members, prefix, journal: String::new() })
    }

    /// As [`Self::array`], with a journal: in a file beside the members, or on the members.
    pub(crate) fn journaled_array(&self, level: &str, count: usize, on_members: bool) -> io::Result<ArrayPlace> {
        let journal = if on_members { "internal".to_owned() } else { self.path.join("journal").display().to_string() };
        Ok(ArrayPlace { journal, ..self.array(level, count)? })
    }
}

/// A mounted ext4 file system whose device is a file. Making one takes root.
pub(crate) struct Ext4 {
    path: PathBuf,
}

/// The name of the directory on which an [`Ext4`] is mounted.
const EXT4: &str = "ext4";

impl Ext4 {
    /// Makes a file system of about `bytes` in `directory`, and mounts it there on [`EXT4`].
    pub(crate) fn new(directory: &Path, bytes: u64) -> io::Result<Self> {
        let (disk, path) = (directory.join("disk"), directory.join(EXT4));
        File::create(&disk)?.set_len(bytes)?;
        fs::create_dir_all(&path)?;
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).stderr(Stdio::null()).status();
        if !made?.success() {
            return Err(io::Error::other("mkfs.ext4 failed"));
        }
        let mounted = Command::new("mount").args(["-o", "loop"]).args([&disk, &path]).stderr(Stdio::null()).status();
        if !mounted?.success() {
            return Err(io::Error::other("mounting it failed (it takes root and loop devices)"));
        }
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        forget_segments(&self.path);
        if self.mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what was left behind by benches that were killed.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = Command::new("umount").arg("-l").arg(path.join(EXT4)).stderr(Stdio::null()).status();
            // The members that tell which segments there are may lie on a file system of their own.
            forget_segments(&path);
            let _ = Command::new("umount").arg("-l").arg(&path).stderr(Stdio::null()).status();
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Removes the runtime segments of the arrays whose members lie in `directory`, and the shared
/// copies of their mapped files.
pub(crate) fn forget_segments(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if let Ok(bytes) = fs::read(path.join(".cxlraid/superblock"))
            && let Ok((superblock, _)) = format::Superblock::choose(&bytes)
        {
            let segment = array::runtime::segment_path(superblock.array_uuid);
            let _ = fs::remove_file(&segment);
            remove_copies(Path::new(&segment));
        }
    }
}

/// Removes the shared copies of mapped files that belong to a segment.
fn remove_copies(segment: &Path) {
    let prefix = format!("{}-map-", segment.file_name().unwrap_or_default().to_string_lossy());
    let Some(Ok(entries)) = segment.parent().map(fs::read_dir) else { return };
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.file_name().unwrap_or_default().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the kernel's error as an error of the standard library.
pub(crate) fn os(error: sys::OsError) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

/// A file mapped for reading and writing.
pub(crate) struct Mapped {
    base: *mut u8,
    bytes: usize,
}

impl Mapped {
    /// Maps the first `bytes` of a file that has them, and stores to every page, so that each is in
    /// place. Nobody else may use the file meanwhile.
    pub(crate) fn new(path: &Path, bytes: u64) -> io::Result<Self> {
        let mapped = Self::untouched(path, bytes)?;
        for page in (0..mapped.bytes).step_by(PAGE_BYTES) {
            let place = mapped.at(page as u64);
            // SAFETY: within the mapping; nobody else stores meanwhile.
            unsafe { place.write_volatile(place.read_volatile()) };
        }
        Ok(mapped)
    }

    /// Maps the first `bytes` of a file that has them, and touches no page; others may be using the
    /// file.
    pub(crate) fn untouched(path: &Path, bytes: u64) -> io::Result<Self> {
        Self::with(path, bytes, MapFlags::SHARED)
    }

    /// Maps the first `bytes` of a file that has them; the kernel puts every page in place.
    pub(crate) fn populated(path: &Path, bytes: u64) -> io::Result<Self> {
        Self::with(path, bytes, MapFlags::SHARED | MapFlags::POPULATE)
    }

    fn with(path: &Path, bytes: u64, how: MapFlags) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(path.as_os_str().as_bytes(), flags, Mode::empty()).map_err(os)?;
        if fs::metadata(path)?.len() < bytes {
            return Err(io::Error::other(format!("{}: shorter than {bytes} bytes", path.display())));
        }
        let (bytes, protection) = (bytes as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe { mmap(null_mut(), bytes, protection, how, &file, 0) }.map_err(os)?;
        Ok(Self { base: base.cast(), bytes })
    }

    /// Writes back what was stored to these bytes (msync).
    pub(crate) fn sync(&self, offset: u64, bytes: usize) -> io::Result<()> {
        // SAFETY: the kernel reads no memory of this process for it.
        unsafe { msync(self.at(offset).cast(), bytes, MsyncFlags::SYNC) }.map_err(os)
    }

    /// The address of a byte.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.bytes as u64, "within the mapping");
        self.base.wrapping_add(offset as usize)
    }

    /// The file's words.
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: mapped, page aligned, and nobody stores while the slice is in use.
        unsafe { std::slice::from_raw_parts(self.base.cast(), self.bytes / 8) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has pointers into it any more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// Makes an ordinary file with `bytes` of content.
pub(crate) fn plain_file(path: &Path, bytes: u64) -> io::Result<File> {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    let block = vec![1u8; 1 << 20];
    for offset in (0..bytes).step_by(block.len()) {
        file.write_all_at(&block[..block.len().min((bytes - offset) as usize)], offset)?;
    }
    Ok(file)
}
