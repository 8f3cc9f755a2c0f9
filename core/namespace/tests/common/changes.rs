//! Random changes of an array's names and files, and a model of what the files hold.

use super::{Rng, TestArray, file_of, inside, read, write};
use cxlraid_namespace::{FileType, Namespace, Node, OFlags, Reached, RenameFlags, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use sys::rustix::fs::Timespec;

/// A path of one to three components; few names, so that they meet.
pub fn any_path(rng: &mut Rng) -> String {
    let mut path = "/data".to_string();
    for _ in 0..=rng.below(3) {
        path.push('/');
        path.push((b'a' + rng.below(5) as u8) as char);
    }
    path
}

/// One change; what it answers is not looked at, only what it leaves.
pub fn change(names: Namespace, rng: &mut Rng, contents: &mut BTreeMap<u64, Vec<u8>>) {
    let (path, other) = (any_path(rng), any_path(rng));
    let (one, two) = (path.as_bytes(), other.as_bytes());
    let mode = [0o600, 0o644, 0o755, 0o4711, 0o1777, 0o444][rng.below(6) as usize];
    let follow = rng.below(2) == 0;
    // The test itself must be able to look into directories.
    let for_test = if sys::rustix::process::geteuid().is_root() { 0 } else { 0o700 };
    match rng.below(23) {
        0..=4 => write_some(names, &path, mode, rng, contents),
        5 | 6 => drop(names.mkdir(one, mode | for_test)),
        7 => drop(names.rmdir(one)),
        8 | 9 => drop(names.unlink(one)),
        10 | 11 => drop(names.rename(one, two, RenameFlags::empty())),
        12 => drop(names.rename(one, two, [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE][rng.below(2) as usize])),
        13 => drop(names.link(one, two, follow)),
        14 => {
            let target = [path.clone(), path.replace("/data", ".."), "/etc".into(), "a".into()];
            drop(names.symlink(target[rng.below(4) as usize].as_bytes(), two));
        }
        15 => drop(names.mknod(one, [FileType::Fifo, FileType::Socket][rng.below(2) as usize], mode, 0)),
        16 => drop(names.chmod(one, mode | for_test, follow)),
        17 => drop(names.setxattr(one, b"user.note", path.as_bytes(), XattrFlags::empty(), follow)),
        18 => drop(names.removexattr(one, b"user.note", follow)),
        20.. => drop(names.mkdir(one, mode | for_test)),
        _ => {
            let time = Timespec { tv_sec: rng.below(1 << 30) as i64, tv_nsec: 0 };
            drop(names.utimens(one, &Timestamps { last_access: time, last_modification: time }, follow));
        }
    }
}

/// Writes a random piece of a file, which is made if it is not there.
fn write_some(names: Namespace, path: &str, mode: u32, rng: &mut Rng, contents: &mut BTreeMap<u64, Vec<u8>>) {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = flags | [OFlags::empty(), OFlags::EXCL, OFlags::TRUNC][rng.below(3) as usize];
    let Ok(Reached::Array(opened)) = names.open(path.as_bytes(), flags, mode) else { return };
    let Node::File(file) = &opened.node else { return };
    let stat = names.fstat(opened.anchor.as_fd(), &opened.node).unwrap();
    let attribute = file.attribute();
    let content = contents.entry(attribute.inode << 24 | attribute.generation).or_default();
    content.truncate(stat.st_size as usize);
    let (offset, bytes) = (rng.below(30_000) as usize, rng.below(20_000) as usize);
    let data: Vec<u8> = (0..bytes).map(|_| rng.below(256) as u8).collect();
    write(&opened, offset as u64, &data);
    if bytes > 0 {
        content.resize(content.len().max(offset + bytes), 0);
        content[offset..offset + bytes].copy_from_slice(&data);
    }
}

/// Every file still named holds what was written to it.
pub fn assert_contents(array: &TestArray, contents: &BTreeMap<u64, Vec<u8>>) {
    for (path, entry) in array.assert_same_trees() {
        if entry.kind == '-' {
            let path = format!("/{}", path.display());
            let opened = inside(array.namespace.open(path.as_bytes(), OFlags::RDONLY, 0));
            let attribute = file_of(&opened).attribute();
            let key = attribute.inode << 24 | attribute.generation;
            let nothing = Vec::new();
            assert!(read(&opened) == *contents.get(&key).unwrap_or(&nothing), "{path} holds something else");
            assert_eq!(inside(array.namespace.stat(path.as_bytes(), false)).st_size as u64, file_of(&opened).size());
        }
    }
}
