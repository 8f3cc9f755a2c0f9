//! The attacker's process: it drops its rights, acts, and looks at all that it can read.

use crate::{
    actions::{ACTIONS, Attacker, FORGERIES},
    kernel::{self, HERE},
    places::{ATTACKER, Places, secret_in},
};
use oracle::Rng;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The word that makes this program the attacker.
pub(crate) const ROLE: &str = "attacker";
/// Actions between two looks at all that can be read.
const LOOK_EVERY: u64 = 400;
/// As much of a file as is looked at.
const LOOK_BYTES: u64 = 1 << 20;
/// How much of the time he lets others work, in a race.
const PAUSE: Duration = Duration::from_micros(60);

/// What the attacker is told to do.
pub(crate) struct Orders {
    pub(crate) places: Places,
    pub(crate) member_count: usize,
    pub(crate) uuid: String,
    pub(crate) seed: u64,
    pub(crate) action_count: u64,
    pub(crate) forges: bool,
    /// Others work at the same time.
    pub(crate) races: bool,
}

impl Orders {
    /// As words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        vec![
            ROLE.to_owned(),
            self.places.root.display().to_string(),
            self.member_count.to_string(),
            self.uuid.clone(),
            self.seed.to_string(),
            self.action_count.to_string(),
            self.forges.to_string(),
            self.races.to_string(),
        ]
    }

    fn from_words(words: &[String]) -> Option<Self> {
        let [root, member_count, uuid, seed, action_count, forges, races] = words else { return None };
        Some(Self {
            places: Places { root: PathBuf::from(root) },
            member_count: member_count.parse().ok()?,
            uuid: uuid.clone(),
            seed: seed.parse().ok()?,
            action_count: action_count.parse().ok()?,
            forges: forges.parse().ok()?,
            races: races.parse().ok()?,
        })
    }
}

/// Acts. Prints how many actions there were and how many the kernel granted, and `leak` lines for
/// what must not be readable.
pub(crate) fn act(words: &[String]) -> io::Result<()> {
    let orders = Orders::from_words(words).ok_or(io::ErrorKind::InvalidInput)?;
    kernel::become_user(ATTACKER)?;
    kernel::set_umask(0);
    let (member_count, uuid) = (orders.member_count, orders.uuid.clone());
    let mut attacker =
        Attacker { places: orders.places.clone(), member_count, uuid, random: Rng::new(orders.seed), kept: Vec::new() };
    let forgeries = if orders.forges { &FORGERIES[..] } else { &[] };
    let actions = [&ACTIONS[..], forgeries].concat();
    let mut leaks = BTreeSet::new();
    let mut granted = 0;
    for number in 0..orders.action_count {
        let action = actions[attacker.random.below(actions.len() as u64) as usize];
        if action(&mut attacker).is_ok() {
            granted += 1;
        }
        if number % LOOK_EVERY == LOOK_EVERY - 1 {
            look(&attacker, &mut leaks);
        }
        if orders.races {
            thread::sleep(PAUSE);
        }
    }
    look(&attacker, &mut leaks);
    leaks.iter().for_each(|leak| println!("leak {leak}"));
    println!("acted {} {granted}", orders.action_count);
    Ok(())
}

/// Looks at the whole reach and at what is open.
fn look(attacker: &Attacker, leaks: &mut BTreeSet<String>) {
    for (path, file) in &attacker.kept {
        let mut bytes = vec![0; LOOK_BYTES as usize];
        if let Ok(length) = file.read_at(&mut bytes, 0)
            && let Some(secret) = secret_in(&bytes[..length])
        {
            leaks.insert(format!("{secret} in what was opened as {}", path.display()));
        }
    }
    let mut pending = attacker.places.reach(attacker.member_count);
    pending.push(PathBuf::from("/dev/shm"));
    while let Some(directory) = pending.pop() {
        // What is not to be read is not in the reach.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type());
            let is_foreign = directory == Path::new("/dev/shm") && !entry.file_name().to_string_lossy().contains(&attacker.uuid);
            match kind {
                _ if is_foreign => {}
                Ok(kind) if kind.is_dir() => pending.push(path),
                Ok(kind) if kind.is_file() => {
                    look_at(&path, leaks);
                }
                _ => {}
            }
        }
    }
}

fn look_at(path: &Path, leaks: &mut BTreeSet<String>) {
    let Ok(file) = kernel::open_at(HERE, path, libc::O_RDONLY, 0) else { return };
    if let Some(secret) = secret_of(&file) {
        leaks.insert(format!("{secret} in {}", path.display()));
    }
    // A program that runs with its owner's rights must be the attacker's own, or he would have
    // another's.
    if let Ok(stat) = file.metadata()
        && stat.is_file()
        && stat.mode() & 0o6000 != 0
        && stat.uid() != ATTACKER
    {
        leaks.insert(format!("rights of user {} by the mode {:o} of {}", stat.uid(), stat.mode(), path.display()));
    }
}

fn secret_of(file: &File) -> Option<String> {
    let mut bytes = Vec::new();
    file.take(LOOK_BYTES).read_to_end(&mut bytes).ok()?;
    secret_in(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_told_in_words() {
        let orders = Orders {
            places: Places { root: PathBuf::from("/x") },
            member_count: 3,
            uuid: "u".to_owned(),
            seed: 9,
            action_count: 40,
            forges: true,
            races: false,
        };
        let words = orders.words();
        let again = Orders::from_words(&words[1..]).unwrap();
        assert_eq!(again.words(), words);
        assert!(Orders::from_words(&words).is_none());
    }

    #[test]
    fn secrets_in_the_reach_are_told() {
        let root = std::env::temp_dir().join(format!("cxlraid-look-{}", std::process::id()));
        fs::create_dir_all(root.join("home/deep")).unwrap();
        fs::write(root.join("home/deep/f"), "no secret").unwrap();
        let places = Places { root: root.clone() };
        let attacker = Attacker { places, member_count: 1, uuid: "none".to_owned(), random: Rng::new(1), kept: Vec::new() };
        let mut leaks = BTreeSet::new();
        look(&attacker, &mut leaks);
        assert!(leaks.is_empty());
        fs::write(root.join("home/deep/f"), "then SECRET-root-1").unwrap();
        look(&attacker, &mut leaks);
        assert!(leaks.first().is_some_and(|leak| leak.starts_with("SECRET-root-1 in ")), "{leaks:?}");
        fs::remove_dir_all(&root).unwrap();
    }
}
