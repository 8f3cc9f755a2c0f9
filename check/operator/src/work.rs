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
/// The word before the arguments of a program that lists them.
pub(crate) const LIST: &str = "list";
/// The word before the arguments of a program that uses files while the array is damaged.
pub(crate) const ACROSS: &str = "across";
/// The word that makes this program look whether the redundancy of files fits.
pub(crate) const SCRUB: &str = "scrub";
/// The last line of a list that came to its end.
pub(crate) const LISTED: &str = "listed";
const HELD_BYTES: usize = 20_000;
const FILE_BYTES_MAX: u64 = 60_000;
const PATH_COUNT_MAX: usize = 40;

/// Does what this process was started for. None: for nothing of these.
pub(crate) fn play(words: &[String]) -> Option<Result<(), String>> {
    let result = match words {
        [role, root, seed, count] if role == CHANGE => {
            change(Path::new(root), seed.parse().unwrap_or(0), count.parse().unwrap_or(0)).map_err(|error| error.to_string())
        }
        [role, root, seed, count, ready, go] if role == ACROSS => {
            across(Path::new(root), seed.parse().unwrap_or(0), count.parse().unwrap_or(0), Path::new(ready), Path::new(go))
                .and_then(|()| list(Path::new(root)).map(|text| print!("{text}")))
        }
        [role, root] if role == LIST => list(Path::new(root)).map(|text| print!("{text}")),
        [role] if role == SCRUB => {
            stage::scrub::scrub().and_then(|wrong| if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) })
        }
        _ => return None,
    };
    Some(result)
}

/// What a program does before and after something happens, with a file open all the time: it says that it is ready by making a file, and goes on when there is another one.
pub(crate) fn across(root: &Path, seed: u64, count: u64, ready: &Path, go: &Path) -> Result<(), String> {
    let said = |what: &'static str| move |error: io::Error| format!("{what}: {} ({error})", errno(&error));
    change(root, seed, count).map_err(said("before"))?;
    let path = root.join(format!("held-{seed:x}"));
    let held = File::options().read(true).write(true).create_new(true).open(&path).map_err(said("making a file"))?;
    let piece = |word: u8| vec![word; HELD_BYTES];
    held.write_all_at(&piece(1), 0).map_err(said("writing before"))?;
    File::create(ready).map_err(said("being ready"))?;
    while !go.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let mut found = piece(0);
    held.read_exact_at(&mut found, 0).map_err(said("reading what is held open"))?;
    if found != piece(1) {
        return Err("wrong data in what is held open".to_owned());
    }
    held.write_all_at(&piece(2), HELD_BYTES as u64 / 2).map_err(said("writing to what is held open"))?;
    held.sync_all().map_err(said("fsync"))?;
    change(root, seed ^ 0x80, count).map_err(said("after"))
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
    let mut rng = Rng::new(seed);
    for step in 0..count {
        let paths = paths(root)?;
        let total = paths.directories.len() + paths.files.len() + paths.symlinks.len();
        let directory = paths.directories[rng.below(paths.directories.len() as u64) as usize].clone();
        let fresh = directory.join(format!("{seed:x}-{step}"));
        let (kind, bytes) = (rng.below(16), rng.below(FILE_BYTES_MAX));
        let kind = if total > PATH_COUNT_MAX { kind % 8 } else { kind };
        let file = (!paths.files.is_empty()).then(|| paths.files[rng.below(paths.files.len() as u64) as usize].clone());
        let mut content = vec![0; bytes as usize];
        rng.fill(&mut content);
        match (kind, file) {
            (0 | 1, Some(file)) => fs::remove_file(file)?,
            (2, Some(file)) => File::options().write(true).open(file)?.set_len(bytes)?,
            (3 | 4, Some(file)) => {
                let offset = rng.below(FILE_BYTES_MAX);
                File::options().write(true).open(file)?.write_all_at(&content[..content.len() / 4], offset)?;
            }
            (5, Some(file)) => fs::rename(file, fresh)?,
            (6, Some(file)) => fs::write(file, &content)?,
            (7, _) if !paths.symlinks.is_empty() => fs::remove_file(&paths.symlinks[0])?,
            (8, Some(file)) => fs::hard_link(file, fresh)?,
            (9, _) => symlink("somewhere", fresh)?,
            (10 | 11, _) => fs::create_dir(fresh)?,
            _ if total <= PATH_COUNT_MAX => fs::write(fresh, &content)?,
            _ => {}
        }
    }
    Ok(())
}
