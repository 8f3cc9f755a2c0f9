//! What programs do with files, on an array or in a plain directory: the same from the same seed.

use oracle::Rng;
use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fs::{self, File},
    hash::{Hash as _, Hasher as _},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, symlink},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The word before the arguments of a program that changes files.
pub(crate) const CHANGE: &str = "change";
/// The word before the arguments of a program that changes files as long as there is room.
pub(crate) const FILL: &str = "fill";
/// The word before the arguments of a program that lists them.
pub(crate) const LIST: &str = "list";
/// The word before the arguments of a program that uses files while the array is damaged.
pub(crate) const ACROSS: &str = "across";
/// The word that makes this program look whether the redundancy of files fits.
pub(crate) const SCRUB: &str = "scrub";
/// The word that makes this program bring members back that are out.
pub(crate) const BRING_BACK: &str = "bring-back";
/// The first word of the line that says where a program had no room any more.
const STOPPED: &str = "stopped";
/// The last line of a list that came to its end.
pub(crate) const LISTED: &str = "listed";
const HELD_BYTES: usize = 20_000;
/// What the seed of changes after something happened differs in.
const AFTER: u64 = 0x80;
const FILE_BYTES_MAX: u64 = 60_000;
const PATH_COUNT_MAX: usize = 40;

/// Does what this process was started for. None: for nothing of these.
pub(crate) fn play(words: &[String]) -> Option<Result<(), String>> {
    let result = match words {
        [role, root, seed, count] if role == CHANGE => {
            change(Path::new(root), seed.parse().unwrap_or(0), count.parse().unwrap_or(0)).map_err(|error| error.to_string())
        }
        [role, root, seed, count] if role == FILL => {
            let stopped = change_while_room(Path::new(root), seed.parse().unwrap_or(0), count.parse().unwrap_or(0));
            stopped.map(|stopped| print!("{}", stopped.line()))
        }
        [role, root, seed, count, ready, go] if role == ACROSS => {
            across(Path::new(root), seed.parse().unwrap_or(0), count.parse().unwrap_or(0), Path::new(ready), Path::new(go))
                .and_then(|stopped| list(Path::new(root)).map(|text| print!("{}{text}", stopped.line())))
        }
        [role, root] if role == LIST => list(Path::new(root)).map(|text| print!("{text}")),
        [role] if role == SCRUB => {
            stage::scrub::scrub().and_then(|wrong| if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) })
        }
        [role] if role == BRING_BACK => stage::readd::re_add().map(|slots| println!("{slots:?}")),
        _ => return None,
    };
    Some(result)
}

/// Where a program had no room any more. What it was changing then it has removed, by all its
/// names.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Stopped {
    /// The changes that were made before; None: all.
    step: Option<u64>,
    /// What was removed, below the root.
    removed: Vec<PathBuf>,
}

impl Stopped {
    fn line(&self) -> String {
        let Some(step) = self.step else { return String::new() };
        let removed: String = self.removed.iter().map(|path| format!("\t{}", path.display())).collect();
        format!("{STOPPED}\t{step}{removed}\n")
    }

    /// What the first line of an output says, and the rest of the output.
    pub(crate) fn split(output: &str) -> (Self, &str) {
        let Some((line, rest)) = output.split_once('\n').filter(|(line, _)| line.starts_with(STOPPED)) else {
            return (Self::default(), output);
        };
        let mut words = line.split('\t').skip(1);
        let step = words.next().and_then(|word| word.parse().ok());
        (Self { step, removed: words.map(PathBuf::from).collect() }, rest)
    }

    /// Makes the changes below `root` that were made before there was no room, and removes what was
    /// removed.
    pub(crate) fn repeat(&self, root: &Path, seed: u64, count: u64) -> io::Result<()> {
        change(root, seed, self.step.unwrap_or(count))?;
        self.removed.iter().try_for_each(|path| match fs::remove_file(root.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }
}

/// Makes `count` changes, or as many as there is room for.
fn change_while_room(root: &Path, seed: u64, count: u64) -> Result<Stopped, String> {
    let said = |error: io::Error| format!("{} ({error})", errno(&error));
    for step in 0..count {
        let Some((path, error)) = change_one(root, seed, step) else { continue };
        if error.kind() != io::ErrorKind::StorageFull {
            return Err(said(error));
        }
        return Ok(Stopped { step: Some(step), removed: remove_with_names(root, &path).map_err(said)? });
    }
    Ok(Stopped::default())
}

/// Removes a file, if there is one, and whatever else it is called. Returns its paths below `root`.
fn remove_with_names(root: &Path, path: &Path) -> io::Result<Vec<PathBuf>> {
    let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let Some(wanted) = inode(path) else { return Ok(Vec::new()) };
    let mut names = paths(root)?.files;
    names.retain(|name| inode(name) == Some(wanted));
    names.iter().try_for_each(fs::remove_file)?;
    Ok(names.iter().map(|name| name.strip_prefix(root).unwrap_or(name).to_owned()).collect())
}

/// What a program does before and after something happens, with a file open all the time: it says
/// that it is ready by making a file, and goes on when there is another one, as long as there is
/// room. A file that there is no room for is removed.
pub(crate) fn across(root: &Path, seed: u64, count: u64, ready: &Path, go: &Path) -> Result<Stopped, String> {
    let said = |what: &'static str| move |error: io::Error| format!("{what}: {} ({error})", errno(&error));
    let held = before(root, seed, count)?;
    File::create(ready).map_err(said("being ready"))?;
    while !go.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let mut found = piece(0);
    held.read_exact_at(&mut found, 0).map_err(said("reading what is held open"))?;
    if found != piece(1) {
        return Err("wrong data in what is held open".to_owned());
    }
    match held.write_all_at(&piece(2), HELD_BYTES as u64 / 2) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            let path = held_path(root, seed);
            fs::remove_file(&path).map_err(said("removing what is held open"))?;
            let removed = path.strip_prefix(root).unwrap_or(&path).to_owned();
            return Ok(Stopped { step: Some(0), removed: vec![removed] });
        }
        written => written.map_err(said("writing to what is held open"))?,
    }
    held.sync_all().map_err(said("fsync"))?;
    change_while_room(root, seed ^ AFTER, count).map_err(|error| format!("after: {error}"))
}

/// The same in the plain directory, where there is room for all, up to where [`across`] stopped.
pub(crate) fn across_again(root: &Path, seed: u64, count: u64, stopped: &Stopped) -> Result<(), String> {
    let held = before(root, seed, count)?;
    let written = held.write_all_at(&piece(2), HELD_BYTES as u64 / 2);
    written.and_then(|()| stopped.repeat(root, seed ^ AFTER, count)).map_err(|error| format!("the plain directory: {error}"))
}

/// What is done before: changes, and a file that is held open.
fn before(root: &Path, seed: u64, count: u64) -> Result<File, String> {
    let said = |what: &'static str| move |error: io::Error| format!("{what}: {} ({error})", errno(&error));
    change(root, seed, count).map_err(said("before"))?;
    let path = held_path(root, seed);
    let held = File::options().read(true).write(true).create_new(true).open(&path).map_err(said("making a file"))?;
    held.write_all_at(&piece(1), 0).map_err(said("writing before"))?;
    Ok(held)
}

fn held_path(root: &Path, seed: u64) -> PathBuf {
    root.join(format!("held-{seed:x}"))
}

fn piece(word: u8) -> Vec<u8> {
    vec![word; HELD_BYTES]
}

/// Everything below `root`, in order: each path with its kind, length, number of names and content.
pub(crate) fn list(root: &Path) -> Result<String, String> {
    let mut lines = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let said = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {} ({error})", errno(&error))
        };
        for entry in fs::read_dir(&directory).map_err(said(&directory))? {
            let path = entry.map_err(said(&directory))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(said(&path))?;
            let kind = metadata.file_type();
            let what = if kind.is_dir() {
                waiting.push(path.clone());
                "directory".to_owned()
            } else if kind.is_symlink() {
                format!("symlink {}", fs::read_link(&path).map_err(said(&path))?.display())
            } else if !kind.is_file() {
                format!("{kind:?}")
            } else {
                let content = fs::read(&path).map_err(said(&path))?;
                format!("file {} {} {} {:016x}", metadata.len(), metadata.nlink(), content.len(), hash(&content))
            };
            lines.insert(path.strip_prefix(root).unwrap_or(&path).to_owned(), what);
        }
    }
    let mut text: String = lines.iter().map(|(path, what)| format!("{} {what}\n", path.display())).collect();
    text += LISTED;
    text.push('\n');
    Ok(text)
}

fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// The number of an error, which says more to a reader than its text.
fn errno(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| "no errno".to_owned(), |number| format!("errno {number}"))
}

/// What there is below `root`.
#[derive(Default)]
struct Paths {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    symlinks: Vec<PathBuf>,
}

fn paths(root: &Path) -> io::Result<Paths> {
    let mut found = Paths { directories: vec![root.to_owned()], ..Paths::default() };
    let mut next = 0;
    while next < found.directories.len() {
        let mut names: Vec<PathBuf> =
            fs::read_dir(&found.directories[next])?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        names.sort();
        for path in names {
            let kind = fs::symlink_metadata(&path)?.file_type();
            let list = if kind.is_dir() {
                &mut found.directories
            } else if kind.is_symlink() {
                &mut found.symlinks
            } else {
                &mut found.files
            };
            list.push(path);
        }
        next += 1;
    }
    Ok(found)
}

/// Makes `count` changes.
pub(crate) fn change(root: &Path, seed: u64, count: u64) -> io::Result<()> {
    (0..count).find_map(|step| change_one(root, seed, step)).map_or(Ok(()), |(_, error)| Err(error))
}

/// Makes the change number `step`: another one for each seed and number, and the same in the same
/// tree. Returns what it failed at, if it failed.
fn change_one(root: &Path, seed: u64, step: u64) -> Option<(PathBuf, io::Error)> {
    let mut rng = Rng::new(seed << 16 | step);
    let paths = match paths(root) {
        Ok(paths) => paths,
        Err(error) => return Some((root.to_owned(), error)),
    };
    let total = paths.directories.len() + paths.files.len() + paths.symlinks.len();
    let directory = paths.directories[rng.below(paths.directories.len() as u64) as usize].clone();
    let fresh = directory.join(format!("{seed:x}-{step}"));
    let (kind, bytes) = (rng.below(16), rng.below(FILE_BYTES_MAX));
    let kind = if total > PATH_COUNT_MAX { kind % 8 } else { kind };
    let file = (!paths.files.is_empty()).then(|| paths.files[rng.below(paths.files.len() as u64) as usize].clone());
    let mut content = vec![0; bytes as usize];
    rng.fill(&mut content);
    let (done, path) = match (kind, file) {
        (0 | 1, Some(file)) => (fs::remove_file(&file), file),
        (2, Some(file)) => (File::options().write(true).open(&file).and_then(|opened| opened.set_len(bytes)), file),
        (3 | 4, Some(file)) => {
            let (offset, content) = (rng.below(FILE_BYTES_MAX), &content[..content.len() / 4]);
            (File::options().write(true).open(&file).and_then(|opened| opened.write_all_at(content, offset)), file)
        }
        (5, Some(file)) => (fs::rename(file, &fresh), fresh),
        (6, Some(file)) => (fs::write(&file, &content), file),
        (7, _) if !paths.symlinks.is_empty() => (fs::remove_file(&paths.symlinks[0]), paths.symlinks[0].clone()),
        (8, Some(file)) => (fs::hard_link(file, &fresh), fresh),
        (9, _) => (symlink("somewhere", &fresh), fresh),
        (10 | 11, _) => (fs::create_dir(&fresh), fresh),
        _ if total <= PATH_COUNT_MAX => (fs::write(&fresh, &content), fresh),
        _ => (Ok(()), fresh),
    };
    done.err().map(|error| (path, error))
}
