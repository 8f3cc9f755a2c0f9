//! Coming back after a crash: the engine attaches to what the members hold, as the first process
//! after a restart of the machine, and everything that can be seen of the array is looked at.

use crate::case::{PREFIX, Shape};
use crate::image::{Kind, Tree, attributes, member_directory};
use crate::model::{Attributes, Entry, File, World};
use crate::perform::{attach, inside, path};
use file::{FileRef, ScrubMode, Watch};
use namespace::{Namespace, Node, OFlags, Opened};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// How the array is come back to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Return {
    /// Members that are missing, one bit each.
    pub(crate) lost: u32,
    /// Members that may be in use or not: they were missing before, or failed in the recorded run.
    pub(crate) doubtful: u32,
    /// Something is changed first, so that a missing member is put on record.
    pub(crate) changing: bool,
    /// Whether bytes behind the end of files are looked at.
    pub(crate) thorough: bool,
    /// How large windows are, if not as ever.
    pub(crate) window_bytes: Option<u64>,
}

/// What came back.
pub(crate) struct Found {
    pub(crate) world: World,
    /// Members that are not in use, one bit each.
    pub(crate) out: u32,
}

/// Recovers the array whose members lie below `home`, and tells what is on it.
///
/// # Errors
/// What no array that came back may show: a member given up, members that differ, redundancy that
/// does not fit, a file that cannot be read, space or inodes that nobody uses. With `thorough` also
/// bytes behind the end that are not zeros.
pub(crate) fn recover(shape: &Shape, home: &Path, how: Return) -> Result<Found, String> {
    recover_and(shape, home, how, |_, _| Ok(()))
}

/// The same; then the program goes on with what came back.
pub(crate) fn recover_and(
    shape: &Shape,
    home: &Path,
    how: Return,
    go_on: impl FnOnce(Namespace, &World) -> Result<(), String>,
) -> Result<Found, String> {
    on_array(shape, home, how.window_bytes, |namespace| {
        let found = look(shape, home, how, namespace)?;
        go_on(namespace, &found.world)?;
        Ok(found)
    })
}

/// Recovers the array and does no more than ask how long its files are; no file is opened.
pub(crate) fn lengths_told(shape: &Shape, home: &Path, how: Return) -> Result<BTreeMap<String, u64>, String> {
    on_array(shape, home, how.window_bytes, |namespace| {
        let in_use = namespace.files().array().in_use();
        let first = in_use.lowest().ok_or("no member is left")?;
        let mut lengths = BTreeMap::new();
        for (name, node) in user_tree(home, first)?.0 {
            if let Kind::File(_) = node.kind {
                let name = name.to_string_lossy().into_owned();
                let stat = inside(namespace.stat(&path(&name), false)).map_err(|error| format!("{name}: stat: {error}"))?;
                lengths.insert(name, stat.st_size as u64);
            }
        }
        Ok(lengths)
    })
}

/// Does something with the array whose members lie below `home`, as the first process after a
/// restart.
fn on_array<T>(
    shape: &Shape,
    home: &Path,
    window_bytes: Option<u64>,
    act: impl FnOnce(Namespace) -> Result<T, String>,
) -> Result<T, String> {
    let namespace = attach(shape, home, window_bytes)?;
    let result = act(namespace);
    let array = namespace.files().array();
    let segment = array::runtime::segment_path(array.uuid());
    namespace.files().detach();
    array.abandon();
    // Left over from an attach that failed it would be the next state's.
    let _ = fs::remove_file(segment);
    result
}

/// The name of a file that is there for a moment.
const PASSING: &str = "passing";

/// A change that puts members which are out on record.
fn change(namespace: &Namespace) -> Result<(), String> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    drop(inside(namespace.open(&path(PASSING), flags, 0o600))?);
    inside(namespace.unlink(&path(PASSING)))
}

fn look(shape: &Shape, home: &Path, how: Return, namespace: Namespace) -> Result<Found, String> {
    if how.changing {
        change(&namespace).map_err(|error| format!("a change after the crash: {error}"))?;
    }
    let in_use = namespace.files().array().in_use();
    let out = (0..shape.member_count).filter(|&member| !in_use.contains(member)).fold(0, |out, member| out | 1u32 << member);
    if out & !how.lost & !how.doubtful != 0 {
        return Err(format!("member {} is not in use", (out & !how.lost & !how.doubtful).trailing_zeros()));
    }
    let members: Vec<usize> = (0..shape.member_count).filter(|&member| out >> member & 1 == 0).collect();
    // While a member is away that could come back as it was, space that is too much is left as it
    // is.
    let is_left_alone = || !namespace.files().array().runtime().out_unrecorded().is_empty();
    let was_left_alone = is_left_alone();
    let mut world = World::default();
    let mut sizes = Vec::new();
    read_files(&namespace, &members, home, &mut world, &mut sizes)?;
    if how.thorough {
        world
            .files
            .iter()
            .zip(&sizes)
            .try_for_each(|(file, (name, _))| look_behind(shape, &namespace, name, file.bytes.len() as u64))?;
    }
    let trees = members.iter().map(|&member| user_tree(home, member)).collect::<Result<Vec<_>, _>>()?;
    for (tree, member) in trees.iter().zip(&members).skip(1) {
        same_trees(&trees[0], tree).map_err(|wrong| format!("member {member}: {wrong}"))?;
    }
    if was_left_alone && !is_left_alone() {
        // A change of a file's bytes has put it on record. The creation of a file that only that
        // member may have made is decided by the next change of names, and files get what is due at
        // their next close.
        change(&namespace).map_err(|error| format!("a change of names: {error}"))?;
        sizes.iter().try_for_each(|(name, _)| open(&namespace, name).map(drop))?;
    }
    lengths(&members, home, &sizes, is_left_alone())?;
    tables(&members, shape.member_count, home, &world, is_left_alone())?;
    Ok(Found { world, out })
}

/// The names below the prefix, as a member has them.
fn user_tree(home: &Path, member: usize) -> Result<Tree, String> {
    let mut numbers = HashMap::new();
    let root = member_directory(home, member).join(&PREFIX[1..]);
    let mut tree = Tree::of(&root, |metadata, _| {
        let next = numbers.len();
        *numbers.entry(metadata.ino()).or_insert(next)
    })
    .map_err(|error| format!("{}: {error}", root.display()))?;
    // In the order of names, so that members agree whatever the order of their directories.
    let mut renumbered = HashMap::new();
    for node in tree.0.values_mut() {
        if let Kind::File(number) = &mut node.kind {
            let next = renumbered.len();
            *number = *renumbered.entry(*number).or_insert(next);
        }
    }
    Ok(tree)
}

fn same_trees(one: &Tree, other: &Tree) -> Result<(), String> {
    for (name, node) in &one.0 {
        match other.0.get(name) {
            None => return Err(format!("lacks {}", name.display())),
            Some(own) if own != node => return Err(format!("has {} as {own:?}, the first member as {node:?}", name.display())),
            Some(_) => {}
        }
    }
    match other.0.keys().find(|name| !one.0.contains_key(*name)) {
        Some(name) => Err(format!("has {} besides", name.display())),
        None => Ok(()),
    }
}

/// Opens, reads and verifies everything.
fn read_files(
    namespace: &Namespace,
    members: &[usize],
    home: &Path,
    world: &mut World,
    sizes: &mut Vec<(String, u64)>,
) -> Result<(), String> {
    let first = *members.first().ok_or("no member is left")?;
    let root = member_directory(home, first).join(&PREFIX[1..]);
    let mut numbers: BTreeMap<u64, usize> = BTreeMap::new();
    let mut pending = vec![String::new()];
    while let Some(directory) = pending.pop() {
        let mut names: Vec<String> = fs::read_dir(root.join(&directory))
            .map_err(|error| format!("{directory}: {error}"))?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        for name in names {
            let name = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let host = root.join(&name);
            let metadata = host.symlink_metadata().map_err(|error| format!("{name}: {error}"))?;
            let entry = if metadata.is_dir() {
                pending.push(name.clone());
                Entry::Directory(user_attributes(&host, &metadata)?)
            } else if metadata.is_symlink() {
                let target = inside(namespace.readlink(&path(&name)))?;
                Entry::Symlink(String::from_utf8_lossy(&target).into_owned())
            } else {
                let bytes = read_file(namespace, &name).map_err(|wrong| format!("{name}: {wrong}"))?;
                let next = world.files.len();
                let number = *numbers.entry(metadata.ino()).or_insert(next);
                if number == next {
                    // Opening may have mended it.
                    let metadata = host.symlink_metadata().map_err(|error| format!("{name}: {error}"))?;
                    world.files.push(File { bytes: bytes.0, attributes: user_attributes(&host, &metadata)? });
                    sizes.push((name.clone(), bytes.1));
                }
                Entry::File(number)
            };
            world.names.insert(name, entry);
        }
    }
    Ok(())
}

fn user_attributes(host: &Path, metadata: &fs::Metadata) -> Result<Attributes, String> {
    let all = attributes(host).map_err(|error| format!("{}: {error}", host.display()))?;
    let note = all.get(&b"user.note"[..]).map(|value| String::from_utf8_lossy(value).into_owned());
    Ok(Attributes { mode: metadata.permissions().mode() & 0o7777, note })
}

fn open(namespace: &Namespace, name: &str) -> Result<FileRef, String> {
    match inside(namespace.open(&path(name), OFlags::RDWR | OFlags::CLOEXEC, 0))? {
        Opened { node: Node::File(file), .. } => Ok(file),
        _ => Err("is not a file of the array".into()),
    }
}

/// A file's bytes, and how many of them a member holds.
fn read_file(namespace: &Namespace, name: &str) -> Result<(Vec<u8>, u64), String> {
    let file = open(namespace, name)?;
    let mut bytes = vec![0; file.size() as usize];
    // SAFETY: the buffer is ours.
    let count = unsafe { file.read_at(0, bytes.as_mut_ptr(), bytes.len()) }.map_err(|error| format!("read: {error}"))?;
    if count != bytes.len() {
        return Err(format!("{count} bytes read of {}", bytes.len()));
    }
    let wrong = file.verify().map_err(|error| format!("verify: {error}"))?;
    if wrong != 0 {
        return Err(format!("{wrong} bytes of redundancy do not fit"));
    }
    // No right block is told to be wrong: not before others get sums, and not after that.
    for _ in 0..if namespace.files().array().has_sums() { 2 } else { 0 } {
        scrub(&file)?;
    }
    Ok((bytes, file.geometry().member_bytes(file.size())))
}

/// Compares a file with its sums, and gives sums to blocks that have none.
fn scrub(file: &FileRef) -> Result<(), String> {
    let mut wrong = None;
    let mut found = |mismatch: &array::Mismatch, _| {
        wrong.get_or_insert_with(|| format!("a scrub finds {mismatch:?}"));
    };
    let mut watch = Watch { found: &mut found, goes_on: &mut |_, _| true };
    file.scrub(ScrubMode::Check, &mut watch).map_err(|error| format!("scrub: {error}"))?;
    wrong.map_or(Ok(()), Err)
}

/// Behind the end of a file there are zeros, and parity counts them so.
fn look_behind(shape: &Shape, namespace: &Namespace, name: &str, size: u64) -> Result<(), String> {
    let behind = shape.chunk_bytes * shape.columns() + 64;
    let file = open(namespace, name)?;
    file.truncate(size + behind).map_err(|error| format!("{name}: truncate: {error}"))?;
    let mut bytes = vec![0; behind as usize];
    // SAFETY: the buffer is ours.
    let count =
        unsafe { file.read_at(size, bytes.as_mut_ptr(), bytes.len()) }.map_err(|error| format!("{name}: read: {error}"))?;
    if let Some(at) = bytes[..count].iter().position(|&byte| byte != 0) {
        return Err(format!("{name}: byte {at} behind the end is {:#04x}", bytes[at]));
    }
    let wrong = file.verify().map_err(|error| format!("{name}: verify: {error}"))?;
    if wrong != 0 {
        return Err(format!("{name}: {wrong} bytes of redundancy behind the end do not fit"));
    }
    file.truncate(size).map_err(|error| format!("{name}: truncate: {error}"))
}

/// Closed files have no more space than their bytes need, unless `more` is permitted.
fn lengths(members: &[usize], home: &Path, sizes: &[(String, u64)], more: bool) -> Result<(), String> {
    for &member in members {
        for (name, bytes) in sizes {
            let host = member_directory(home, member).join(&PREFIX[1..]).join(name);
            let present = host.symlink_metadata().map_err(|error| format!("{name} on member {member}: {error}"))?.len();
            if present != *bytes && !(more && present > *bytes) {
                return Err(format!("{name} has {present} bytes on member {member}, not {bytes}"));
            }
        }
    }
    Ok(())
}

/// The inode tables are the same on all members, and know exactly the files that have names.
/// `more`: or others besides, whose creation the first change decides, since a member is away that
/// may have their names.
fn tables(members: &[usize], member_count: usize, home: &Path, world: &World, more: bool) -> Result<(), String> {
    let mut first: Option<Vec<Option<format::InodeRecord>>> = None;
    for &member in members {
        let table = member_directory(home, member).join(".cxlraid/inodes");
        let bytes = fs::read(&table).map_err(|error| format!("{}: {error}", table.display()))?;
        let mut records = Vec::new();
        for (number, record) in (1u64..).zip(bytes[format::TABLE_HEADER_BYTES..].chunks_exact(format::INODE_RECORD_BYTES)) {
            let Ok(raw) = <&[u8; format::INODE_RECORD_BYTES]>::try_from(record) else { continue };
            let record = format::InodeRecord::decode(number, raw);
            records.push(record.map_err(|error| format!("inode {number} on member {member}: {error:?}"))?);
        }
        while records.last().is_some_and(Option::is_none) {
            records.pop();
        }
        let used = records.iter().flatten().count();
        if used != world.files.len() && !(more && used > world.files.len()) {
            return Err(format!("{used} inodes are in use on member {member}, {} files have names", world.files.len()));
        }
        // Where a member is out that may have names of its own, that is left to a later start.
        if !more && members.len() == member_count {
            no_sums_are_left(&member_directory(home, member).join(".cxlraid/sums"), &records)?;
        }
        match &first {
            Some(first) if *first != records => {
                return Err(format!("the inode table of member {member} differs from the first's"));
            }
            Some(_) => {}
            None => first = Some(records),
        }
    }
    Ok(())
}

/// No sums are kept of files that are gone.
fn no_sums_are_left(directory: &Path, records: &[Option<format::InodeRecord>]) -> Result<(), String> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers = name.split_once('-').and_then(|(inode, generation)| {
            Some((usize::from_str_radix(inode, 16).ok()?, u64::from_str_radix(generation, 16).ok()?))
        });
        let (inode, generation) = numbers.ok_or_else(|| format!("{name} among the sums"))?;
        let record = inode.checked_sub(1).and_then(|index| records.get(index)?.as_ref());
        if record.is_none_or(|record| record.generation != generation) {
            return Err(format!("the sums of a file that is gone: {name}"));
        }
    }
    Ok(())
}
