//! Root and the other user at work on the array: on files of their own, and, without following
//! symlinks, in the attacker's directory.
//!
//! Both users tell what they do to files of their own, before and after they do it, and
//! [`crate::model`] reads that. In the attacker's directory everything may fail: there it counts
//! only what is read, and what becomes of others' files.

use crate::{
    kernel::{self, HERE},
    places::{ATTACKER, OTHER, Places, ROOT, secret_in},
};
use oracle::Rng;
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The word that makes this program work on the array.
pub(crate) const ROLE: &str = "victim";
/// The word that makes it set the array's directories up.
pub(crate) const PREPARE: &str = "prepare";
/// The directories of the attacker, the upper ones first, and what is in each.
const TREE: [&str; 6] = ["t", "t/e0", "t/e1", "t/e0/sub", "t/e1/sub", "t/empty"];
const TREE_FILES: [&str; 4] = ["f0", "f1", "f2", "f3"];
/// The longest file of theirs.
const FILE_BYTES_MAX: u64 = 40_000;

/// What a victim is told to do.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) places: Places,
    pub(crate) user: u32,
    pub(crate) seed: u64,
    pub(crate) call_count: u64,
    /// The program starts with root's rights, and drops them.
    pub(crate) drops: bool,
    /// It is killed in the middle of its work.
    pub(crate) dies: bool,
    /// It works on files of its own directory only, where the attacker has no names.
    pub(crate) stays_home: bool,
}

/// The name of a user's own directory, and what his files say of him.
pub(crate) fn directory_of(user: u32) -> &'static str {
    if user == ROOT { "r" } else { "u" }
}

/// What a file of a user holds, a line over and over.
pub(crate) fn content(user: u32, tag: &str, bytes: u64, mode: u32) -> Vec<u8> {
    let line = line_of(user, tag, mode);
    line.bytes().cycle().take(bytes as usize).collect()
}

pub(crate) fn line_of(user: u32, tag: &str, mode: u32) -> String {
    let word = if mode & 0o004 == 0 { "SECRET" } else { "public" };
    format!("{word}-{}-{tag}\n", directory_of(user))
}

impl Task {
    pub(crate) fn words(&self) -> Vec<String> {
        vec![
            ROLE.to_owned(),
            self.places.root.display().to_string(),
            self.user.to_string(),
            self.seed.to_string(),
            self.call_count.to_string(),
            self.drops.to_string(),
            self.dies.to_string(),
            self.stays_home.to_string(),
        ]
    }

    fn from_words(words: &[String]) -> Option<Self> {
        let [root, user, seed, call_count, drops, dies, stays_home] = words else { return None };
        Some(Self {
            places: Places { root: PathBuf::from(root) },
            user: user.parse().ok()?,
            seed: seed.parse().ok()?,
            call_count: call_count.parse().ok()?,
            drops: drops.parse().ok()?,
            dies: dies.parse().ok()?,
            stays_home: stays_home.parse().ok()?,
        })
    }
}

/// Makes the directories of all three users.
pub(crate) fn prepare(words: &[String]) -> io::Result<()> {
    let [root] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let places = Places { root: PathBuf::from(root) };
    kernel::set_umask(0o022);
    for (name, owner, mode) in [
        ("r", ROOT, 0o755),
        ("u", OTHER, 0o755),
        ("t", ATTACKER, 0o755),
        ("shared", ROOT, 0o1777),
        ("copy", ROOT, 0o755),
        ("copyu", OTHER, 0o755),
    ] {
        let path = places.data().join(name);
        fs::create_dir(&path)?;
        std::os::unix::fs::chown(&path, Some(owner), Some(owner))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    for (user, name) in [(ROOT, "r/d0"), (ROOT, "r/d1"), (OTHER, "u/d0"), (OTHER, "u/d1")] {
        let path = places.data().join(name);
        fs::create_dir(&path)?;
        std::os::unix::fs::chown(&path, Some(user), Some(user))?;
    }
    renew(&places);
    Ok(())
}

/// Works.
pub(crate) fn work(words: &[String]) -> io::Result<()> {
    let task = Task::from_words(words).ok_or(io::ErrorKind::InvalidInput)?;
    kernel::set_umask(0o022);
    if task.drops {
        // The log of names is opened by the first change of a name, which takes the rights of the
        // array's owner.
        let first = task.places.data().join("copy/first");
        fs::create_dir(&first).and_then(|()| fs::remove_dir(&first))?;
        kernel::become_user(task.user)?;
    }
    let mut victim = Victim { user: task.user, random: Rng::new(task.seed), tag: task.seed, places: task.places };
    let held = victim.hold();
    let last = task.call_count / 2 + victim.random.below(task.call_count / 2 + 1);
    for number in 0..task.call_count {
        if task.dies && number == last {
            let after = Duration::from_micros(victim.random.below(400));
            thread::spawn(move || {
                thread::sleep(after);
                kernel::die();
            });
        }
        match victim.random.below(10) {
            0..4 => victim.own(number),
            _ if task.stays_home => victim.own(number),
            4 => victim.shared(number),
            5 if victim.user == ROOT => renew(&victim.places),
            _ => drop(victim.elsewhere()),
        }
    }
    if task.dies {
        thread::sleep(Duration::from_millis(1));
        kernel::die();
    }
    victim.look_at_held(&held);
    println!("ended");
    Ok(())
}

struct Victim {
    user: u32,
    random: Rng,
    tag: u64,
    places: Places,
}

fn told(result: io::Result<()>) {
    match result {
        Ok(()) => println!("done"),
        Err(error) => println!("failed {} {error}", error.raw_os_error().unwrap_or(0)),
    }
}

impl Victim {
    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.random.below(words.len() as u64) as usize]
    }

    fn own_name(&mut self) -> String {
        format!("{}/{}", directory_of(self.user), self.pick(&["n0", "n1", "n2", "n3", "d0/n0", "d0/n1", "d1/n0", "d1/n1"]))
    }

    /// Own files, open from the beginning to the end.
    fn hold(&self) -> Vec<File> {
        let path = |name: &str| self.places.data().join(directory_of(self.user)).join(name);
        ["n0", "n1", "d0/n0"].into_iter().filter_map(|name| kernel::open_at(HERE, &path(name), libc::O_RDWR, 0).ok()).collect()
    }

    /// Whatever was done to them meanwhile by their names, they hold what their owner wrote.
    fn look_at_held(&self, held: &[File]) {
        for mut file in held {
            let mut bytes = Vec::new();
            if let Err(error) = file.read_to_end(&mut bytes) {
                println!("wrong: an open file of user {}: {error}", self.user);
            } else if !is_of(self.user, &bytes) {
                println!(
                    "wrong: an open file of user {} holds {:?}",
                    self.user,
                    String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
                );
            }
        }
    }

    /// Something with a file of one's own, told before and after.
    fn own(&mut self, number: u64) {
        let (name, other) = (self.own_name(), self.own_name());
        let (path, to) = (self.places.data().join(&name), self.places.data().join(&other));
        match self.random.below(8) {
            0 => {
                println!("try remove {name}");
                told(fs::remove_file(path));
            }
            1 if name != other => {
                println!("try rename {name} {other}");
                told(fs::rename(path, to));
            }
            2 => {
                let modes = if is_public(&path) == Some(true) { [0o644, 0o604, 0o664] } else { [0o600, 0o640, 0o620] };
                let mode = modes[self.random.below(3) as usize];
                println!("try mode {name} {mode}");
                told(fs::set_permissions(path, fs::Permissions::from_mode(mode)));
            }
            3 => {
                let bytes = self.random.below(FILE_BYTES_MAX);
                println!("try cut {name} {bytes}");
                told(cut(&path, bytes));
            }
            _ => self.put(&name, number, false),
        }
    }

    /// A file in the directory where everybody may make names: made if nobody has the name, filled
    /// if it is one's own.
    fn shared(&mut self, number: u64) {
        let name = format!("shared/{}{}", directory_of(self.user), self.random.below(2));
        self.put(&name, number, true);
    }

    fn put(&mut self, name: &str, number: u64, is_shared: bool) {
        let path = self.places.data().join(name);
        let new = self.random.one_in(3);
        // What was public stays so: who opened it when he might may read what is written later.
        let mode = if is_public(&path).unwrap_or(new) { 0o644 } else { 0o600 };
        let (tag, bytes) = (format!("{}.{number}", self.tag), self.random.below(FILE_BYTES_MAX));
        println!("try put {name} {tag} {bytes} {mode}");
        told(put(&path, &content(self.user, &tag, bytes, mode), mode, is_shared.then_some(self.user), self.random.one_in(3)));
    }

    /// Something in the attacker's directory. No component of a path is a symlink that is followed.
    fn elsewhere(&mut self) -> io::Result<()> {
        let (from, to) = (self.attackers()?, self.attackers()?);
        let names = ["f0", "f1", "f2", "f3", "e0", "e1", "sub", "empty", "given", "stash0", "stash1"];
        let (name, other) = (Path::new(self.pick(&names)), Path::new(self.pick(&names)));
        let (at, onto) = (from.as_raw_fd(), to.as_raw_fd());
        match self.random.below(14) {
            0 => kernel::give_at(at, name, [ATTACKER, ATTACKER, self.user][self.random.below(3) as usize]),
            1 => kernel::touch_at(at, name),
            2 => kernel::remove_at(at, name, self.random.one_in(2)),
            3 => kernel::make_directory_at(at, name, 0o777),
            4 => kernel::make_symlink_at(Path::new("f0"), at, name),
            5 => kernel::make_node_at(at, name, libc::S_IFIFO | 0o644),
            6 => kernel::rename_at((at, name), (onto, other), self.random.one_in(4)),
            7 => kernel::link_at((at, name), (onto, other)),
            8 => {
                let file = kernel::open_at(at, name, libc::O_RDONLY, 0)?;
                let is_plain = file.metadata().is_ok_and(|stat| stat.is_file() || stat.is_dir());
                if is_plain { file.set_permissions(fs::Permissions::from_mode(0o755)) } else { Ok(()) }
            }
            9 => kernel::open_at(at, name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o644)?.write_all(b"given\n"),
            10 => {
                let mut file = kernel::open_at(at, name, libc::O_RDWR, 0)?;
                if file.metadata()?.is_file() {
                    file.write_all(b"given to the attacker\n")?;
                }
                Ok(())
            }
            11 => {
                let file = kernel::open_at(at, name, libc::O_RDWR, 0)?;
                if file.metadata()?.is_file() { file.set_len(self.random.below(9000)) } else { Ok(()) }
            }
            _ => {
                // One of them may be what a file of one's own that is open is taken for.
                for name in TREE_FILES {
                    let _ = self.read(at, Path::new(name));
                }
                Ok(())
            }
        }
    }

    /// What the attacker's file holds he could read: it must be nobody's secret.
    fn read(&self, at: i32, name: &Path) -> io::Result<()> {
        let file = kernel::open_at(at, name, libc::O_RDONLY, 0)?;
        if !file.metadata()?.is_file() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let result = file.take(1 << 20).read_to_end(&mut bytes);
        if let Some(secret) = secret_in(&bytes) {
            println!("wrong: {secret} in what user {} read as {} of the attacker", self.user, name.display());
        }
        result.map(drop)
    }

    /// One of the attacker's directories, come to without following symlinks.
    fn attackers(&mut self) -> io::Result<File> {
        let path = TREE[self.random.below(TREE.len() as u64) as usize];
        directory(&self.places, path)
    }
}

/// A directory of the array, opened component by component.
fn directory(places: &Places, path: &str) -> io::Result<File> {
    let mut found = kernel::open_at(HERE, &places.data(), libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for component in path.split('/') {
        found = kernel::open_at(found.as_raw_fd(), Path::new(component), libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    }
    Ok(found)
}

/// Makes what is not there of the attacker's directory, and gives it to him. What does not succeed
/// is what he made it to.
fn renew(places: &Places) {
    for path in TREE {
        let path = Path::new(path);
        let (parent, name) = (path.parent().unwrap_or(Path::new("")), Path::new(path.file_name().unwrap_or_default()));
        if parent.as_os_str().is_empty() {
            continue;
        }
        let Ok(parent) = directory(places, &parent.to_string_lossy()) else { continue };
        if kernel::make_directory_at(parent.as_raw_fd(), name, 0o755).is_ok() {
            let _ = kernel::give_at(parent.as_raw_fd(), name, ATTACKER);
        }
    }
    for path in &TREE[..5] {
        let Ok(parent) = directory(places, path) else { continue };
        for name in TREE_FILES {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
            let Ok(mut file) = kernel::open_at(parent.as_raw_fd(), Path::new(name), flags, 0o644) else { continue };
            let _ = file.write_all(&b"the attacker's own\n".repeat(200)).and_then(|()| kernel::give(&file, ATTACKER));
        }
    }
}

/// Whether everybody may read a file; None if it is not there.
fn is_public(path: &Path) -> Option<bool> {
    path.symlink_metadata().ok().map(|stat| stat.mode() & 0o004 != 0)
}

fn cut(path: &Path, bytes: u64) -> io::Result<()> {
    let file = kernel::open_at(HERE, path, libc::O_WRONLY, 0)?;
    // Never longer: what is behind the end would be zeros and no line of the owner.
    if bytes < file.metadata()?.len() { file.set_len(bytes) } else { Ok(()) }
}

/// Fills a file with `bytes`. `careful`: nobody else's is touched, for a user in a directory where
/// others make names, too.
fn put(path: &Path, bytes: &[u8], mode: u32, careful: Option<u32>, syncs: bool) -> io::Result<()> {
    let mut file = if let Some(user) = careful {
        match kernel::open_at(HERE, path, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = kernel::open_at(HERE, path, libc::O_RDWR, 0)?;
                let stat = file.metadata()?;
                if stat.uid() != user || !stat.is_file() || stat.nlink() != 1 {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                file
            }
            result => result?,
        }
    } else {
        kernel::open_at(HERE, path, libc::O_CREAT | libc::O_RDWR, 0o600)?
    };
    // First empty, then with the new mode: no byte is there under a mode that is not its own.
    file.set_len(0)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    if syncs { file.sync_all() } else { Ok(()) }
}

/// Whether these are lines of one kind that only this user writes.
fn is_of(user: u32, bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        return bytes.is_empty()
            || [0o600, 0o644].iter().any(|&mode| starts_alike(bytes, line_of(user, "", mode).trim_end().as_bytes()));
    };
    let line = &bytes[..=end];
    let is_own = [0o600, 0o644].iter().any(|&mode| line.starts_with(line_of(user, "", mode).trim_end().as_bytes()));
    is_own && bytes.iter().zip(line.iter().cycle()).all(|(found, expected)| found == expected)
}

fn starts_alike(bytes: &[u8], word: &[u8]) -> bool {
    bytes.starts_with(word) || word.starts_with(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_lines() {
        assert!(is_of(ROOT, &content(ROOT, "1.2", 100, 0o600)));
        assert!(is_of(ROOT, b""));
        assert!(is_of(ROOT, b"SECR"));
        assert!(!is_of(OTHER, &content(ROOT, "1.2", 100, 0o600)));
        let mut torn = content(ROOT, "1.2", 100, 0o644);
        torn[70] ^= 1;
        assert!(!is_of(ROOT, &torn));
    }

    #[test]
    fn a_task_is_told_in_words() {
        let places = Places { root: PathBuf::from("/x") };
        let task = Task { places, user: OTHER, seed: 3, call_count: 5, drops: true, dies: false, stays_home: true };
        assert_eq!(Task::from_words(&task.words()[1..]).unwrap().words(), task.words());
    }
}
