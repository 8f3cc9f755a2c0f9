//! `add` and `retrieve`: copies between the host's files and the array's.
//!
//! Modes and times are kept, owners where the user may set them, symbolic links as links, long runs of zeros as holes.
//! As with cp, a destination that is a directory gets the copy inside it.

use crate::{
    failure::Failure,
    tree::{Content, Kind, Stat, Tree},
    view::shown,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

/// Bytes per read and write: large enough for full-stripe writes, small enough for a smooth bar.
const BLOCK_BYTES: usize = 4 << 20;
/// Zeros are looked for in pieces of this size.
const HOLE_BYTES: usize = 64 << 10;
/// Shorter copies end before a bar could be read.
const BAR_BYTES_MIN: u64 = 64 << 20;

/// One copy command.
pub(crate) struct Copy<'a> {
    pub(crate) from: &'a dyn Tree,
    pub(crate) to: &'a dyn Tree,
    /// Directories too.
    pub(crate) recursive: bool,
}

impl Copy<'_> {
    /// Copies `source` to `target`; `into_directories` says that `target` was typed, not taken from `source`.
    pub(crate) fn run(&self, source: &Path, target: &Path, into_directories: bool) -> Result<(), Failure> {
        // A link that was named means the file; a link found below means itself.
        let stat = self.from.stat(source, true).map_err(|error| cannot(source, "be read", &error))?;
        let target = self.final_target(source, target, into_directories);
        if stat.kind == Kind::Directory && !self.recursive {
            return Err(Failure::new(source.display(), "is a directory", "add -r to copy directories"));
        }
        let mut total_bytes = 0;
        self.measure(source, &stat, &mut total_bytes)?;
        let bar = bar(total_bytes);
        let result = self.copy(source, &target, &stat, &bar);
        bar.finish_and_clear();
        result
    }

    fn final_target(&self, source: &Path, target: &Path, into_directories: bool) -> PathBuf {
        let is_directory = self.to.stat(target, true).is_ok_and(|stat| stat.kind == Kind::Directory);
        match source.file_name() {
            Some(name) if into_directories && is_directory => target.join(name),
            _ => target.to_owned(),
        }
    }

    fn measure(&self, source: &Path, stat: &Stat, total_bytes: &mut u64) -> Result<(), Failure> {
        match stat.kind {
            Kind::File => *total_bytes += stat.bytes,
            Kind::Directory => {
                for (path, stat) in self.entries(source)? {
                    self.measure(&path, &stat, total_bytes)?;
                }
            }
            Kind::Symlink => {}
            Kind::Other => {
                let what = "is neither a file, a directory nor a symbolic link";
                return Err(Failure::new(source.display(), what, "leave it out"));
            }
        }
        Ok(())
    }

    fn entries(&self, directory: &Path) -> Result<Vec<(PathBuf, Stat)>, Failure> {
        let mut names = self.from.list(directory).map_err(|error| cannot(directory, "be read", &error))?;
        names.sort();
        let stat = |name| {
            let path = directory.join(name);
            let stat = self.from.stat(&path, false).map_err(|error| cannot(&path, "be read", &error))?;
            Ok((path, stat))
        };
        names.into_iter().map(stat).collect()
    }

    fn copy(&self, source: &Path, target: &Path, stat: &Stat, bar: &ProgressBar) -> Result<(), Failure> {
        match stat.kind {
            Kind::Directory => {
                self.to.make_directory(target).map_err(|error| cannot(target, "be created", &error))?;
                for (path, stat) in self.entries(source)? {
                    let name = path.file_name().unwrap_or_default();
                    self.copy(&path, &target.join(name), &stat, bar)?;
                }
            }
            Kind::Symlink => {
                let link = self.from.read_link(source).map_err(|error| cannot(source, "be read", &error))?;
                self.to.make_symlink(&link, target).map_err(|error| cannot(target, "be created", &error))?;
            }
            _ => self.copy_content(source, target, stat, bar)?,
        }
        self.to.set_attributes(target, stat).map_err(|error| cannot(target, "get its mode and times", &error))
    }

    fn copy_content(&self, source: &Path, target: &Path, stat: &Stat, bar: &ProgressBar) -> Result<(), Failure> {
        let from = self.from.open(source).map_err(|error| cannot(source, "be opened", &error))?;
        let to = self.to.create(target).map_err(|error| cannot(target, "be created", &error))?;
        bar.set_message(shown(&target.to_string_lossy()));
        let mut buffer = vec![0; BLOCK_BYTES.min((stat.bytes as usize).max(HOLE_BYTES))];
        let mut offset = 0;
        loop {
            let count = from.read_at(&mut buffer, offset).map_err(|error| cannot(source, "be read", &error))?;
            if count == 0 {
                break;
            }
            write_sparse(&*to, &buffer[..count], offset).map_err(|error| cannot(target, "be written", &error))?;
            offset += count as u64;
            bar.inc(count as u64);
        }
        to.set_bytes(offset).and_then(|()| to.sync()).map_err(|error| cannot(target, "be written", &error))
    }
}

/// Writes what is not zeros. The caller sets the length in the end.
fn write_sparse(to: &dyn Content, bytes: &[u8], offset: u64) -> io::Result<()> {
    let is_hole = |piece: &[u8]| piece.len() == HOLE_BYTES && piece.iter().all(|&byte| byte == 0);
    let mut start = 0;
    for (index, piece) in bytes.chunks(HOLE_BYTES).enumerate() {
        if is_hole(piece) {
            let end = index * HOLE_BYTES;
            write_some(to, &bytes[start..end], offset + start as u64)?;
            start = end + HOLE_BYTES;
        }
    }
    write_some(to, &bytes[start..], offset + start as u64)
}

fn write_some(to: &dyn Content, bytes: &[u8], offset: u64) -> io::Result<()> {
    if bytes.is_empty() { Ok(()) } else { to.write_all_at(bytes, offset) }
}

/// A bar on a terminal for long copies, otherwise one that shows nothing.
fn bar(total_bytes: u64) -> ProgressBar {
    if total_bytes < BAR_BYTES_MIN || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total_bytes).with_style(style)
}

fn cannot(path: &Path, what: &str, error: &io::Error) -> Failure {
    let todo = match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::AlreadyExists => "remove it first",
        io::ErrorKind::StorageFull => "make room, then copy again",
        _ => "correct the cause, then copy again",
    };
    // std appends "(os error N)", which tells an operator nothing.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    Failure::new(path.display(), format!("cannot {what}: {text}"), todo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Host;
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
        time::{Duration, SystemTime},
    };

    fn copy(recursive: bool) -> Copy<'static> {
        Copy { from: &Host, to: &Host, recursive }
    }

    fn old_file(path: &Path, bytes: &[u8], mode: u32) -> SystemTime {
        let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        then
    }

    #[test]
    fn a_file_keeps_mode_and_times() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("b"));
        let then = old_file(&source, b"content", 0o751);
        fs::write(&target, b"longer than the copy").unwrap();
        copy(false).run(&source, &target, true).unwrap();
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"content");
        assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o751, then));
    }

    #[test]
    fn a_directory_gets_the_copy_inside() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("d"));
        fs::write(&source, "x").unwrap();
        fs::create_dir(&target).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"x");
        assert!(copy(false).run(&source, &target, false).is_err());
    }

    #[test]
    fn trees_need_r_and_keep_links() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("tree");
        fs::create_dir_all(source.join("sub/deep")).unwrap();
        let then = old_file(&source.join("sub/deep/file"), b"1", 0o400);
        symlink("deep/file", source.join("sub/link")).unwrap();
        symlink("/nowhere", source.join("dangling")).unwrap();
        fs::set_permissions(source.join("sub"), fs::Permissions::from_mode(0o550)).unwrap();

        let target = home.path().join("copy");
        let message = copy(false).run(&source, &target, true).unwrap_err().to_string();
        assert!(message.ends_with("is a directory; add -r to copy directories"), "{message}");
        assert!(!target.exists());

        copy(true).run(&source, &target, true).unwrap();
        assert_eq!(fs::read_link(target.join("sub/link")).unwrap(), Path::new("deep/file"));
        assert_eq!(fs::read_link(target.join("dangling")).unwrap(), Path::new("/nowhere"));
        assert_eq!(fs::metadata(target.join("sub")).unwrap().mode() & 0o7777, 0o550);
        assert_eq!(fs::metadata(target.join("sub/link")).unwrap().modified().unwrap(), then);
        for tree in [&source, &target] {
            fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
        }
    }

    #[test]
    fn zeros_become_holes_and_lengths_stay() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("b"));
        let mut bytes = vec![0; 9 * HOLE_BYTES + 5];
        bytes[3 * HOLE_BYTES..4 * HOLE_BYTES + 1].fill(7);
        fs::write(&source, &bytes).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), bytes);
        let allocated = |path| fs::metadata(path).unwrap().blocks();
        assert!(allocated(&target) < allocated(&source));

        fs::write(&source, vec![0; 3 * HOLE_BYTES]).unwrap();
        copy(false).run(&source, &target, true).unwrap();
        assert_eq!(fs::read(&target).unwrap(), vec![0; 3 * HOLE_BYTES]);
    }

    #[test]
    fn what_cannot_be_copied_is_named() {
        let home = tempfile::tempdir().unwrap();
        let missing = home.path().join("none");
        let message = copy(true).run(&missing, &home.path().join("x"), true).unwrap_err().to_string();
        assert_eq!(message, format!("cxlraid: {}: cannot be read: No such file or directory; check the path", missing.display()));
        let message = copy(true).run(Path::new("/dev/null"), &missing, true).unwrap_err().to_string();
        assert!(message.contains("is neither a file"), "{message}");
    }
}
