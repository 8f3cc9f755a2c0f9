//! Who takes part, and where what belongs to whom lies. The same for all roles, which hear of it as
//! one directory.

use std::path::PathBuf;

/// The user without rights.
pub(crate) const ATTACKER: u32 = 1001;
/// Another user without rights, whose files are as little the attacker's as root's are.
pub(crate) const OTHER: u32 = 1002;
pub(crate) const ROOT: u32 = 0;

/// Whatever holds these bytes and can be read by the attacker was given away.
pub(crate) const SECRET: &[u8] = b"SECRET-";

/// The directories of a round.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) root: PathBuf,
}

impl Places {
    pub(crate) fn member(&self, slot: usize) -> PathBuf {
        self.root.join(format!("m{slot}"))
    }

    /// The array's prefix.
    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// A path of the array where it lies on a member.
    pub(crate) fn backing(&self, slot: usize, relative: &str) -> PathBuf {
        let data = self.data();
        let beneath = data.strip_prefix("/").unwrap_or(&data).join(relative);
        self.member(slot).join(beneath)
    }

    /// The directory of the tree that lies outside the array: the tree must stay as it is.
    pub(crate) fn outside(&self) -> PathBuf {
        self.root.join("outside")
    }

    /// A directory of the attacker's outside the array, from which others add.
    pub(crate) fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// A directory of root's into which the array's files are retrieved. The path that is typed is
    /// root's own; what is below is the attacker's as soon as it is given to him.
    pub(crate) fn got(&self) -> PathBuf {
        self.root.join("got")
    }

    /// Every directory that the attacker may be able to read in.
    pub(crate) fn reach(&self, member_count: usize) -> Vec<PathBuf> {
        let members = (0..member_count).map(|slot| self.member(slot));
        members.chain([self.outside(), self.home(), self.got()]).collect()
    }
}

/// Whether these bytes hold a secret, and what is readable from there on.
pub(crate) fn secret_in(bytes: &[u8]) -> Option<String> {
    let at = bytes.windows(SECRET.len()).position(|window| window == SECRET)?;
    let end = bytes.len().min(at + 40);
    Some(String::from_utf8_lossy(&bytes[at..end]).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_secret_is_found_within_other_bytes() {
        assert_eq!(secret_in(b"xxSECRET-root-3\nmore").as_deref(), Some("SECRET-root-3"));
        assert_eq!(secret_in(b"SECRET"), None);
    }

    #[test]
    fn a_path_of_the_array_lies_on_each_member() {
        let places = Places { root: PathBuf::from("/shm/x") };
        assert_eq!(places.backing(1, "t/e0"), Path::new("/shm/x/m1/shm/x/data/t/e0"));
    }
}
