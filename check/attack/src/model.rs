//! The model of the files of root and of the other user: both tell what they write, and this module
//! compares that with what the array and its members hold.

use crate::{
    places::{OTHER, Places, ROOT},
    victim::{directory_of, line_of},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// The word that makes this program list what the array has of them.
pub(crate) const ROLE: &str = "list";
/// The directories that are theirs, and the one where everybody makes names.
const DIRECTORIES: [&str; 7] = ["r", "r/d0", "r/d1", "u", "u/d0", "u/d1", "shared"];

/// What a complaint of a call says that failed with EIO.
pub(crate) const OUTAGE: &str = "(os error 5)";

/// A file as its owner left it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    user: u32,
    /// The line that it holds over and over, without its end; empty for a file without content.
    line: String,
    bytes: u64,
    mode: u32,
}

/// All files of theirs.
#[derive(Default)]
pub(crate) struct Model {
    known: BTreeMap<String, Known>,
    /// Paths with which something was begun and not ended: who was killed meanwhile does not know.
    unsure: BTreeSet<String>,
    /// How often a name in the shared directory could not be had.
    pub(crate) denied_count: usize,
    /// How often the array refused the other user, who is not root, a call on a file of his own.
    pub(crate) refused_count: usize,
}

impl Model {
    /// Takes what a victim told. Returns what it complained of. `was_killed`: the last thing it
    /// began may have been done, or half. Who is not root may not make good what others left half
    /// done: then such calls are refused (docs/crash-consistency.md), which is counted.
    pub(crate) fn take(&mut self, user: u32, told: &str, was_killed: bool) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut begun: Option<&str> = None;
        for line in told.lines() {
            if let Some(call) = line.strip_prefix("try ") {
                begun = Some(call);
            } else if line == "done" {
                begun.take().into_iter().for_each(|call| self.done(user, call));
            } else if let Some(error) = line.strip_prefix("failed ") {
                if let Some(call) = begun.take() {
                    let complaint = self.failed(call, error);
                    let is_refusal = user != ROOT && error.starts_with("13 ");
                    self.refused_count += usize::from(is_refusal);
                    complaints.extend(complaint.filter(|_| !is_refusal));
                }
            } else if line.starts_with("wrong: ") {
                complaints.push(line.to_owned());
            }
        }
        if let Some(call) = begun {
            self.doubt(call);
            if !was_killed {
                complaints.push(format!("user {user} did not come back from: {call}"));
            }
        }
        complaints
    }

    fn done(&mut self, user: u32, call: &str) {
        let words: Vec<&str> = call.split(' ').collect();
        match words[..] {
            ["put", name, tag, bytes, mode] => {
                let (bytes, mode) = (bytes.parse().unwrap_or(0), mode.parse().unwrap_or(0));
                let line = line_of(user, tag, mode).trim_end().to_owned();
                self.unsure.remove(name);
                self.known.insert(name.to_owned(), Known { user, line, bytes, mode });
            }
            ["remove", name] => {
                self.unsure.remove(name);
                self.known.remove(name);
            }
            ["rename", from, to] => {
                self.unsure.remove(to);
                self.known.remove(to);
                if self.unsure.remove(from) {
                    self.unsure.insert(to.to_owned());
                }
                if let Some(known) = self.known.remove(from) {
                    self.known.insert(to.to_owned(), known);
                }
            }
            ["mode", name, mode] => {
                if let Some(known) = self.known.get_mut(name) {
                    known.mode = mode.parse().unwrap_or(0);
                }
            }
            ["cut", name, bytes] => {
                if let Some(known) = self.known.get_mut(name) {
                    known.bytes = known.bytes.min(bytes.parse().unwrap_or(0));
                }
            }
            _ => {}
        }
    }

    /// Own files fail only if they are not there. A name in the shared directory may be somebody
    /// else's.
    fn failed(&mut self, call: &str, error: &str) -> Option<String> {
        let name = call.split(' ').nth(1).unwrap_or_default();
        let is_missing = error.starts_with("2 ");
        if name.starts_with("shared/") {
            self.denied_count += 1;
            // Of a file that was not told to be there nothing is known now; one that was there
            // stays the owner's.
            return self.known.contains_key(name).then(|| {
                self.doubt(call);
                format!("a file in the shared directory that its owner had made: {call}: {error}")
            });
        }
        if is_missing && !self.known.contains_key(name) {
            return None;
        }
        self.doubt(call);
        Some(format!("a file of one's own: {call}: {error}"))
    }

    fn doubt(&mut self, call: &str) {
        let verb = call.split(' ').next();
        let count = if verb == Some("rename") { 2 } else { 1 };
        for name in call.split(' ').skip(1).take(count) {
            self.known.remove(name);
            self.unsure.insert(name.to_owned());
        }
    }

    /// Compares a list of the array ([`list`]) with what is known.
    pub(crate) fn compare(&self, listed: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        for line in listed.lines() {
            let Some((name, rest)) = line.split_once('|') else { continue };
            seen.insert(name);
            let user = owner_of(name);
            match self.known.get(name) {
                Some(known) if rest == known.listed() => {}
                Some(known) => wrong.push(format!("{name}: is {rest}, must be {}", known.listed())),
                None if self.unsure.contains(name) || user.is_none() => {}
                None => wrong.push(format!("{name}: nobody made it: {rest}")),
            }
        }
        wrong.extend(self.known.keys().filter(|name| !seen.contains(name.as_str())).map(|name| format!("{name}: it is gone")));
        wrong
    }

    /// Compares names, owners and modes on a member with what is known.
    pub(crate) fn compare_member(&self, places: &Places, slot: usize) -> io::Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (name, known) in &self.known {
            match places.backing(slot, name).symlink_metadata() {
                Ok(stat)
                    if stat.is_file()
                        && (stat.uid(), stat.gid(), stat.mode() & 0o7777) == (known.user, known.user, known.mode) => {}
                Ok(stat) => wrong.push(format!(
                    "member {slot}: {name}: {}:{} {:o}, must be {known:?}",
                    stat.uid(),
                    stat.gid(),
                    stat.mode()
                )),
                Err(error) => wrong.push(format!("member {slot}: {name}: {error}")),
            }
        }
        for directory in DIRECTORIES.iter().filter(|directory| **directory != "shared") {
            for entry in fs::read_dir(places.backing(slot, directory))? {
                let entry = entry?;
                let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
                if !DIRECTORIES.contains(&name.as_str()) && !self.known.contains_key(&name) && !self.unsure.contains(&name) {
                    wrong.push(format!("member {slot}: {name}: nobody made it"));
                }
            }
        }
        for directory in DIRECTORIES {
            let stat = places.backing(slot, directory).symlink_metadata()?;
            let user = if directory.starts_with('u') { OTHER } else { ROOT };
            let mode = if directory == "shared" { 0o1777 } else { 0o755 };
            if !stat.is_dir() || (stat.uid(), stat.gid(), stat.mode() & 0o7777) != (user, user, mode) {
                wrong.push(format!("member {slot}: {directory}: {}:{} {:o}", stat.uid(), stat.gid(), stat.mode()));
            }
        }
        Ok(wrong)
    }

    /// The files whose redundancy must fit.
    pub(crate) fn paths(&self, places: &Places) -> Vec<std::path::PathBuf> {
        self.known.keys().map(|name| places.data().join(name)).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }
}

impl Known {
    fn listed(&self) -> String {
        let line = if self.bytes == 0 { "" } else { &self.line };
        let line = &line[..line.len().min(usize::try_from(self.bytes).unwrap_or(usize::MAX))];
        format!("{:o}|{}:{}|{}|{line}", self.mode, self.user, self.user, self.bytes)
    }
}

/// Whose name it is, if it is in somebody's own directory.
fn owner_of(name: &str) -> Option<u32> {
    [ROOT, OTHER].into_iter().find(|&user| Path::new(name).starts_with(directory_of(user)))
}

/// Prints a line for each file in their directories: mode, owner, size, and the line it holds or
/// what is wrong with that.
pub(crate) fn list(words: &[String]) -> io::Result<()> {
    let [root] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let data = Places { root: root.into() }.data();
    for directory in DIRECTORIES {
        for entry in fs::read_dir(data.join(directory))? {
            let entry = entry?;
            let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
            if DIRECTORIES.contains(&name.as_str()) {
                continue;
            }
            println!("{name}|{}", described(&entry.path()).unwrap_or_else(|error| error.to_string()));
        }
    }
    println!("listed");
    Ok(())
}

fn described(path: &Path) -> io::Result<String> {
    let stat = path.symlink_metadata()?;
    let head = format!("{:o}|{}:{}|{}", stat.mode() & 0o7777, stat.uid(), stat.gid(), stat.len());
    if !stat.is_file() {
        return Ok(format!("{head}|no file"));
    }
    Ok(format!("{head}|{}", held(&fs::read(path)?)))
}

/// The line that is held over and over, or where it ends.
fn held(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
    let line = &bytes[..end];
    let text = String::from_utf8_lossy(line).trim_end().to_owned();
    match bytes.iter().zip(line.iter().cycle()).position(|(found, expected)| found != expected) {
        Some(at) => format!("{text} up to byte {at} only"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::victim::content;

    fn line(name: &str, bytes: u64, mode: u32) -> String {
        format!("{name}|{mode:o}|0:0|{bytes}|{}\n", held(&content(ROOT, "7.1", bytes, mode)))
    }

    #[test]
    fn what_was_written_must_be_there_and_nothing_else() {
        let mut model = Model::default();
        let told = "try put r/n0 7.1 100 384\ndone\ntry put r/n1 7.1 5 420\ndone\ntry rename r/n1 r/n2\ndone\ntry remove r/n3\nfailed 2 none\n";
        assert!(model.take(ROOT, told, false).is_empty());
        assert_eq!(model.compare(&(line("r/n0", 100, 0o600) + &line("r/n2", 5, 0o644))), Vec::<String>::new());
        assert_eq!(model.compare(&line("r/n0", 100, 0o600)), ["r/n2: it is gone"]);
        let listed = line("r/n0", 100, 0o644) + &line("r/n2", 5, 0o644) + &line("u/n0", 5, 0o644);
        let wrong = model.compare(&listed);
        assert!(wrong.len() == 2 && wrong[0].starts_with("r/n0: is 644") && wrong[1].starts_with("u/n0: nobody"), "{wrong:?}");
    }

    #[test]
    fn who_is_killed_leaves_doubt_about_one_call_only() {
        let mut model = Model::default();
        let told = "try put r/n0 7.1 100 384\ndone\ntry put r/n1 7.1 5 384\n";
        assert!(model.take(ROOT, told, true).is_empty());
        assert!(model.compare(&line("r/n0", 100, 0o600)).is_empty());
        assert!(model.compare(&(line("r/n0", 100, 0o600) + &line("r/n1", 3, 0o600))).is_empty());
        assert_eq!(model.take(ROOT, "try cut r/n0 5\n", false).len(), 1);
    }

    #[test]
    fn a_call_on_a_file_of_ones_own_does_not_fail() {
        let mut model = Model::default();
        assert_eq!(model.take(ROOT, "try put r/n0 7.1 100 384\nfailed 5 I/O error\n", false).len(), 1);
        assert!(model.take(ROOT, "try put shared/r0 7.1 100 384\nfailed 17 exists\n", false).is_empty());
        assert_eq!(model.denied_count, 1);
        assert!(model.take(OTHER, "try put u/n0 7.1 100 384\nfailed 13 denied\n", false).is_empty());
        assert_eq!(model.refused_count, 1);
        assert_eq!(model.take(ROOT, "try put r/n0 7.1 100 384\nfailed 13 denied\n", false).len(), 1);
    }

    #[test]
    fn a_byte_that_is_another_is_told() {
        let mut bytes = content(ROOT, "7.1", 100, 0o600);
        bytes[50] ^= 1;
        assert_eq!(held(&bytes), "SECRET-r-7.1 up to byte 50 only");
    }
}
