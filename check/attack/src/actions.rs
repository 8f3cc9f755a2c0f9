//! What the attacker does: tables of actions. Each makes one or a few system calls, with no rights
//! but those of the attacker's user.
//!
//! Names below the array's root: `t` is the attacker's own directory, `r` root's, `u` another
//! user's, and `shared` is a sticky directory of all. `f…` are files, `e…` and `d…` directories,
//! `n…` names of the others' work; `stash…` are names to which the attacker moves things aside. All
//! members lie in one file system, so links and renames between members are possible.

use crate::{
    kernel::{self, HERE},
    places::Places,
};
use format::Attribute;
use oracle::Rng;
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// How many files the attacker keeps open at most.
const KEPT_MAX: usize = 24;
/// The attribute of backing files.
const ATTRIBUTE_NAME: &str = "user.cxlraid";
/// The attacker makes no longer files: they would cost the other processes time and test nothing
/// else.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The attacker. `uuid` is the array's, by which the files in /dev/shm are named.
pub(crate) struct Attacker {
    pub(crate) places: Places,
    pub(crate) member_count: usize,
    pub(crate) uuid: String,
    pub(crate) random: Rng,
    /// Files that he keeps open, with the path that each had: what becomes of them shows through
    /// the descriptors.
    pub(crate) kept: Vec<(PathBuf, File)>,
}

/// One kind of action. `Err`: the kernel refused a call, or there was nothing to act on; calls
/// before it stay done.
type Act = fn(&mut Attacker) -> io::Result<()>;

/// Actions of every run. An action that is listed several times is that much likelier.
pub(crate) const ACTIONS: [Act; 44] = [
    write,
    truncate,
    create,
    keep_open,
    write_kept,
    read_kept,
    lock,
    mode,
    times,
    access_list,
    noise_attribute,
    remove_attribute,
    remove,
    remove_tree,
    make_directory,
    rename,
    rename_across,
    exchange,
    exchange_across,
    link,
    link_across,
    link_others,
    symlink,
    symlink_in_place,
    symlink_in_place,
    symlink_in_place,
    swap,
    swap,
    swap,
    pipe_in_place,
    socket_in_place,
    directory_in_place,
    shared_name,
    shared_name_of_others,
    others_file,
    others_name,
    array_metadata,
    segment,
    shared_copies,
    squat_shared_copies,
    home_file,
    home_swap,
    home_set_ids,
    retrieved,
];

/// Actions that give a file of his the attribute of another file. They are for runs whose orders
/// ask for them.
pub(crate) const FORGERIES: [Act; 6] =
    [forge_attribute, forge_attribute, forge_attribute, forge_attribute, forge_seen_attribute, forge_seen_attribute];

impl Attacker {
    pub(crate) fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.random.below(words.len() as u64) as usize]
    }

    fn slot(&mut self) -> usize {
        self.random.below(self.member_count as u64) as usize
    }

    /// A random path below his directory, relative to the array's root.
    fn own(&mut self) -> String {
        let directory = self.pick(&["t", "t", "t/e0", "t/e0", "t/e1", "t/e0/sub", "t/e1/sub"]);
        let name =
            self.pick(&["f0", "f1", "f2", "f3", "f0", "f1", "e0", "e1", "sub", "empty", "given", "n0", "stash0", "stash1"]);
        format!("{directory}/{name}")
    }

    /// One of his paths, on a random member: two calls give two members.
    fn random_own_backing(&mut self) -> PathBuf {
        let (slot, own) = (self.slot(), self.own());
        self.places.backing(slot, &own)
    }

    /// One of his directories where it lies on a member.
    fn own_directory(&mut self) -> PathBuf {
        let (slot, own) = (self.slot(), self.pick(&["t/e0", "t/e1", "t/e0/sub", "t/e1/sub", "t/empty"]));
        self.places.backing(slot, own)
    }

    /// Another user's file or directory where it lies on a member.
    fn others(&mut self) -> PathBuf {
        let slot = self.slot();
        let owner = self.pick(&["r", "u", "shared"]);
        let name = match owner {
            "shared" => self.pick(&["r0", "r1", "u0", "u1"]),
            _ => self.pick(&["n0", "n1", "n2", "n3", "d0/n0", "d1/n1", "d0"]),
        };
        self.places.backing(slot, &format!("{owner}/{name}"))
    }

    /// A path for a symlink to lead to: a member's `.cxlraid`, a path in the array, a backing file,
    /// a relative path upwards, a loop, or else a name in the directory outside of the array.
    fn target(&mut self) -> PathBuf {
        let outside = self.places.outside();
        let word = self.pick(&[
            "dir", "dir", "dir", "dir/f0", "dir/f1", "dir/sub", "secret", "others", "private", "member", "array", "backing",
            "up", "loop",
        ]);
        match word {
            "member" => {
                let slot = self.slot();
                self.places.member(slot).join(".cxlraid")
            }
            "array" => self.places.data().join(self.pick(&["r", "r/n0", "u", "u/n0", "r/d0", "t/e1"])),
            "backing" => self.others(),
            "up" => PathBuf::from(self.pick(&["..", "../../r", "../r/n0", "../../u", "../u/d0", "../shared"])),
            "loop" => PathBuf::from(self.pick(&["f0", "e0", "sub", "."])),
            within => outside.join(within),
        }
    }

    /// Renames `path` to a stash beside it, and removes what was there; `swap` can exchange the two
    /// again. Does nothing if `path` is that stash.
    fn set_aside(&mut self, path: &Path) -> io::Result<()> {
        let aside = path.with_file_name(self.pick(&["stash0", "stash1"]));
        if aside != path {
            remove_whatever(&aside);
            fs::rename(path, &aside)?;
        }
        Ok(())
    }
}

fn remove_whatever(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

fn opened(path: &Path, flags: i32) -> io::Result<File> {
    kernel::open_at(HERE, path, flags, 0o666)
}

fn write(attacker: &mut Attacker) -> io::Result<()> {
    let file = opened(&attacker.random_own_backing(), libc::O_WRONLY)?;
    let at = attacker.random.below(9000);
    file.write_all_at(b"by the attacker\n", at)
}

fn truncate(attacker: &mut Attacker) -> io::Result<()> {
    let file = opened(&attacker.random_own_backing(), libc::O_WRONLY)?;
    let bytes = [0, 1, 4095, 4096, 20_000, FILE_BYTES_MAX][attacker.random.below(6) as usize];
    file.set_len(bytes)
}

fn create(attacker: &mut Attacker) -> io::Result<()> {
    let file = opened(&attacker.random_own_backing(), libc::O_CREAT | libc::O_WRONLY)?;
    file.write_all_at(b"made by the attacker\n", 0)
}

fn keep_open(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.random_own_backing();
    let file = opened(&path, libc::O_RDWR)?;
    keep(attacker, path, file);
    Ok(())
}

/// Keeps a file open. The one that was opened first is closed if there are too many.
fn keep(attacker: &mut Attacker, path: PathBuf, file: File) {
    if attacker.kept.len() == KEPT_MAX {
        attacker.kept.remove(0);
    }
    attacker.kept.push((path, file));
}

fn one_kept(attacker: &mut Attacker) -> io::Result<usize> {
    let count = attacker.kept.len() as u64;
    if count == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(attacker.random.below(count) as usize) }
}

fn write_kept(attacker: &mut Attacker) -> io::Result<()> {
    let index = one_kept(attacker)?;
    let at = attacker.random.below(9000);
    attacker.kept[index].1.write_all_at(b"through a kept descriptor\n", at)
}

fn read_kept(attacker: &mut Attacker) -> io::Result<()> {
    let index = one_kept(attacker)?;
    attacker.kept[index].1.read_at(&mut [0; 64], 0).map(drop)
}

fn lock(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.random_own_backing();
    let file = opened(&path, libc::O_RDWR)?;
    kernel::lock(&file)?;
    keep(attacker, path, file);
    Ok(())
}

fn mode(attacker: &mut Attacker) -> io::Result<()> {
    let modes = [0o000, 0o600, 0o644, 0o666, 0o755, 0o777, 0o1777, 0o2777, 0o4755, 0o6755, 0o111, 0o700];
    let mode = modes[attacker.random.below(modes.len() as u64) as usize];
    let path = if attacker.random.one_in(3) { attacker.own_directory() } else { attacker.random_own_backing() };
    // chmod follows symlinks, to files of his that are to stay as they are.
    if path.is_symlink() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn times(attacker: &mut Attacker) -> io::Result<()> {
    kernel::touch_at(HERE, &attacker.random_own_backing())
}

/// A user who is neither the attacker nor one of the others.
const THIRD_USER: u32 = 1001;

/// Sets an access list, acl(5), as the kernel has it: version 2, then tag, permissions and user of
/// each entry.
fn access_list(attacker: &mut Attacker) -> io::Result<()> {
    let [user_obj, user, group_obj, mask, other] = [1, 2, 4, 16, 32];
    let entry =
        |tag: u16, permissions: u16, id: u32| [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat();
    let any = u32::MAX;
    let entries = [
        entry(user_obj, 6, any),
        entry(user, 6, THIRD_USER),
        entry(group_obj, 4, any),
        entry(mask, 7, any),
        entry(other, 4, any),
    ];
    let list = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
    kernel::set_attribute(&attacker.random_own_backing(), "system.posix_acl_access", &list)
}

fn noise_attribute(attacker: &mut Attacker) -> io::Result<()> {
    let mut value = vec![0; [0, 1, 23, 24, 25, 200][attacker.random.below(6) as usize]];
    attacker.random.fill(&mut value);
    kernel::set_attribute(&attacker.random_own_backing(), ATTRIBUTE_NAME, &value)
}

fn remove_attribute(attacker: &mut Attacker) -> io::Result<()> {
    kernel::remove_attribute(&attacker.random_own_backing(), ATTRIBUTE_NAME)
}

fn remove(attacker: &mut Attacker) -> io::Result<()> {
    fs::remove_file(attacker.random_own_backing())
}

fn remove_tree(attacker: &mut Attacker) -> io::Result<()> {
    fs::remove_dir_all(attacker.own_directory())
}

fn make_directory(attacker: &mut Attacker) -> io::Result<()> {
    fs::create_dir(attacker.own_directory())
}

/// Renames a path of his on one member.
fn rename(attacker: &mut Attacker) -> io::Result<()> {
    let (slot, from, to) = (attacker.slot(), attacker.own(), attacker.own());
    fs::rename(attacker.places.backing(slot, &from), attacker.places.backing(slot, &to))
}

/// Renames a path of his from one member to another (or, by chance, on one).
fn rename_across(attacker: &mut Attacker) -> io::Result<()> {
    fs::rename(attacker.random_own_backing(), attacker.random_own_backing())
}

/// Exchanges two paths of his on one member.
fn exchange(attacker: &mut Attacker) -> io::Result<()> {
    let (slot, from, to) = (attacker.slot(), attacker.own(), attacker.own());
    let (from, to) = (attacker.places.backing(slot, &from), attacker.places.backing(slot, &to));
    kernel::rename_at((HERE, &from), (HERE, &to), true)
}

/// Exchanges paths of his on two members (or, by chance, on one).
fn exchange_across(attacker: &mut Attacker) -> io::Result<()> {
    let (from, to) = (attacker.random_own_backing(), attacker.random_own_backing());
    kernel::rename_at((HERE, &from), (HERE, &to), true)
}

/// Links a file of his on one member.
fn link(attacker: &mut Attacker) -> io::Result<()> {
    let (slot, from, to) = (attacker.slot(), attacker.own(), attacker.own());
    fs::hard_link(attacker.places.backing(slot, &from), attacker.places.backing(slot, &to))
}

/// Links a file of his from one member to another (or, by chance, on one).
fn link_across(attacker: &mut Attacker) -> io::Result<()> {
    fs::hard_link(attacker.random_own_backing(), attacker.random_own_backing())
}

/// Links another user's file. With fs.protected_hardlinks = 1 the kernel refuses it for files that
/// he may not both read and write.
fn link_others(attacker: &mut Attacker) -> io::Result<()> {
    fs::hard_link(attacker.others(), attacker.random_own_backing())
}

fn symlink(attacker: &mut Attacker) -> io::Result<()> {
    std::os::unix::fs::symlink(attacker.target(), attacker.random_own_backing())
}

/// Renames a file or directory of his to its stash and puts a symlink in its place.
fn symlink_in_place(attacker: &mut Attacker) -> io::Result<()> {
    let path = if attacker.random.one_in(2) { attacker.own_directory() } else { attacker.random_own_backing() };
    attacker.set_aside(&path)?;
    std::os::unix::fs::symlink(attacker.target(), path)
}

/// Exchanges a path with a stash, and half the time exchanges them back at once. A process that has
/// checked the path before and uses it afterwards then meets the other one.
fn swap(attacker: &mut Attacker) -> io::Result<()> {
    let path = if attacker.random.one_in(2) { attacker.own_directory() } else { attacker.random_own_backing() };
    let aside = path.with_file_name(attacker.pick(&["stash0", "stash1"]));
    kernel::rename_at((HERE, &path), (HERE, &aside), true)?;
    if attacker.random.one_in(2) {
        kernel::rename_at((HERE, &path), (HERE, &aside), true)?;
    }
    Ok(())
}

fn pipe_in_place(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.random_own_backing();
    attacker.set_aside(&path)?;
    kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666)
}

fn socket_in_place(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.random_own_backing();
    attacker.set_aside(&path)?;
    kernel::make_node_at(HERE, &path, libc::S_IFSOCK | 0o666)
}

fn directory_in_place(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.random_own_backing();
    attacker.set_aside(&path)?;
    fs::create_dir(path)
}

fn shared_name(attacker: &mut Attacker) -> io::Result<()> {
    let (slot, name) = (attacker.slot(), attacker.pick(&["shared/t0", "shared/t1"]));
    let path = attacker.places.backing(slot, name);
    remove_whatever(&path);
    match attacker.random.below(4) {
        0 => std::os::unix::fs::symlink(attacker.target(), path),
        1 => fs::hard_link(attacker.random_own_backing(), path),
        2 => kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666),
        _ => fs::rename(attacker.random_own_backing(), path),
    }
}

/// On one member, makes a name in `shared` that another user is about to use, or removes it. The
/// directory is sticky, so the kernel lets him remove only what is his.
fn shared_name_of_others(attacker: &mut Attacker) -> io::Result<()> {
    let (slot, name) = (attacker.slot(), attacker.pick(&["shared/r0", "shared/r1", "shared/u0", "shared/u1"]));
    let path = attacker.places.backing(slot, name);
    match attacker.random.below(6) {
        0 => std::os::unix::fs::symlink(attacker.target(), path),
        1 => fs::hard_link(attacker.random_own_backing(), path),
        2 => kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666),
        3 => opened(&path, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).map(drop),
        _ => fs::remove_file(path),
    }
}

fn others_file(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.others();
    match attacker.random.below(4) {
        0 => opened(&path, libc::O_WRONLY)?.write_all_at(b"by the attacker\n", 0),
        1 => fs::set_permissions(&path, fs::Permissions::from_mode(0o666)),
        2 => kernel::set_attribute(&path, ATTRIBUTE_NAME, b"x"),
        _ => {
            let mut bytes = [0; 64];
            opened(&path, libc::O_RDONLY)?.read(&mut bytes).map(drop)
        }
    }
}

fn others_name(attacker: &mut Attacker) -> io::Result<()> {
    let path = attacker.others();
    match attacker.random.below(5) {
        0 => fs::remove_file(path),
        1 => fs::rename(path, attacker.random_own_backing()),
        2 => fs::rename(attacker.random_own_backing(), path),
        3 => kernel::give_at(HERE, &path, THIRD_USER),
        _ => std::os::unix::fs::symlink(attacker.target(), path.with_file_name("by-the-attacker")),
    }
}

fn array_metadata(attacker: &mut Attacker) -> io::Result<()> {
    let slot = attacker.slot();
    let directory = attacker.places.member(slot).join(".cxlraid");
    let name = attacker.pick(&["superblock", "inodes", "names", "lanes", "backings", "changed", "journal"]);
    match attacker.random.below(4) {
        0 => opened(&directory.join(name), libc::O_RDWR)?.write_all_at(b"x", 0),
        1 => fs::rename(&directory, directory.with_file_name("gone")),
        2 => std::os::unix::fs::symlink(attacker.target(), directory.join("by-the-attacker")),
        _ => fs::remove_file(directory.join(name)),
    }
}

fn segment_path(attacker: &Attacker) -> PathBuf {
    Path::new("/dev/shm").join(format!("cxlraid-{}", attacker.uuid))
}

fn segment(attacker: &mut Attacker) -> io::Result<()> {
    let path = segment_path(attacker);
    match attacker.random.below(5) {
        0 => fs::remove_file(path),
        1 => fs::rename(&path, path.with_extension("gone")),
        2 => kernel::lock(&opened(&path, libc::O_RDONLY)?),
        3 => fs::OpenOptions::new().create_new(true).write(true).open(path)?.write_all_at(b"x", 0),
        _ => opened(&path, libc::O_RDWR)?.write_all_at(b"x", 4096),
    }
}

/// The paths of the array's shared copies.
fn shared_copy_paths(attacker: &Attacker) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{}-map-", segment_path(attacker).display());
    let entries = fs::read_dir("/dev/shm")?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.to_string_lossy().starts_with(&prefix)).collect())
}

fn shared_copies(attacker: &mut Attacker) -> io::Result<()> {
    let Some(path) = shared_copy_paths(attacker)?.pop() else { return Err(io::ErrorKind::NotFound.into()) };
    match attacker.random.below(3) {
        0 => fs::remove_file(path),
        1 => fs::set_permissions(path, fs::Permissions::from_mode(0o666)),
        _ => opened(&path, libc::O_RDWR)?.write_all_at(b"x", 0),
    }
}

/// Occupies the names of shared copies of files with low inode numbers (0 is none).
fn squat_shared_copies(attacker: &mut Attacker) -> io::Result<()> {
    let path = PathBuf::from(format!("{}-map-{:016x}", segment_path(attacker).display(), attacker.random.below(4)));
    remove_whatever(&path);
    match attacker.random.below(3) {
        0 => std::os::unix::fs::symlink(attacker.target(), path),
        1 => kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666),
        _ => fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o666).open(path).map(drop),
    }
}

/// A random path in his home, from which root stores files into the array.
fn home_path(attacker: &mut Attacker) -> PathBuf {
    let name = attacker.pick(&["f0", "f1", "f2", "e0/f0", "e0/f1", "e0", "e0/sub", "e1"]);
    attacker.places.home().join(name)
}

fn home_file(attacker: &mut Attacker) -> io::Result<()> {
    let path = home_path(attacker);
    match attacker.random.below(5) {
        0 => fs::create_dir_all(path),
        1 => kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666),
        2 => std::os::unix::fs::symlink(attacker.target(), path),
        3 => fs::remove_file(path),
        _ => opened(&path, libc::O_CREAT | libc::O_WRONLY)?.write_all_at(b"at home\n", attacker.random.below(70_000)),
    }
}

fn home_swap(attacker: &mut Attacker) -> io::Result<()> {
    let path = home_path(attacker);
    let aside = path.with_file_name("stash0");
    if !aside.exists() && !aside.is_symlink() {
        std::os::unix::fs::symlink(attacker.target(), &aside)?;
    }
    for _ in 0..=attacker.random.below(4) {
        kernel::rename_at((HERE, &path), (HERE, &aside), true)?;
    }
    Ok(())
}

/// Makes a file in his home set-user-ID and set-group-ID.
fn home_set_ids(attacker: &mut Attacker) -> io::Result<()> {
    let path = home_path(attacker);
    if path.is_symlink() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o6755))
}

/// Replaces, moves or removes something in the directory into which root copies files out of the
/// array (`cxlraid retrieve`).
fn retrieved(attacker: &mut Attacker) -> io::Result<()> {
    let name = attacker.pick(&[
        "r0",
        "u0",
        "tree0",
        "tree0/t",
        "tree1/t",
        "tree0/f0",
        "tree0/e0",
        "tree1/f0",
        "tree1/e0",
        "tree0/e0/f0",
    ]);
    let path = attacker.places.got().join(name);
    let aside = path.with_file_name("stash0");
    match attacker.random.below(6) {
        0 => std::os::unix::fs::symlink(attacker.target(), path),
        1 => kernel::make_node_at(HERE, &path, libc::S_IFIFO | 0o666),
        2 => {
            remove_whatever(&path);
            Ok(())
        }
        3 => kernel::rename_at((HERE, &path), (HERE, &aside), true),
        4 => {
            remove_whatever(&aside);
            fs::rename(&path, &aside)?;
            std::os::unix::fs::symlink(attacker.target(), path)
        }
        _ => opened(&path, libc::O_CREAT | libc::O_RDWR).map(drop),
    }
}

/// Sets an attribute with a guessed inode number and generation. Numbers are assigned from 1 on,
/// and a generation counts how often its number was assigned, so small guesses hit.
fn forge_attribute(attacker: &mut Attacker) -> io::Result<()> {
    let generation = if attacker.random.one_in(3) { 1 + attacker.random.below(6) } else { 1 };
    let forged = Attribute { inode: 1 + attacker.random.below(48), generation };
    forge(attacker, &forged.encode())
}

/// Sets the attribute of one of his files to `value`: on one member, or on all members, so that no
/// member contradicts. Ok if at least one member took it, since the file may be missing on others;
/// else the last error.
fn forge(attacker: &mut Attacker, value: &[u8]) -> io::Result<()> {
    if attacker.random.one_in(3) {
        return kernel::set_attribute(&attacker.random_own_backing(), ATTRIBUTE_NAME, value);
    }
    let own = format!("{}/{}", attacker.pick(&["t", "t/e0", "t/e1"]), attacker.pick(&["f0", "f1", "f2", "f3"]));
    let set = |slot| kernel::set_attribute(&attacker.places.backing(slot, &own), ATTRIBUTE_NAME, value);
    let results = (0..attacker.member_count).map(set);
    results.reduce(|one, other| if one.is_ok() { one } else { other }).unwrap_or(Err(io::ErrorKind::NotFound.into()))
}

/// The attribute of a file that he may read, or of another file of his.
fn forge_seen_attribute(attacker: &mut Attacker) -> io::Result<()> {
    let from = if attacker.random.one_in(2) { attacker.others() } else { attacker.random_own_backing() };
    let value = kernel::attribute(&from, ATTRIBUTE_NAME)?;
    forge(attacker, &value)
}
