//! Where the memory of members is: which of them are nearest to the processors of each node of
//! memory (NUMA).
//!
//! The node of a member is, in this order, that of its file system's device (DAX), the one that a
//! tmpfs was mounted for (`mpol=bind:1`), and of another tmpfs the node of a page of the member's
//! superblock, which is where whoever made the member ran. Where none is known the member counts as
//! lying on the farthest node.
//!
//! All of this is only about time: a wrong answer costs nothing else. System calls are made by the
//! process that assembles the array, by commands, and when a member joins.

use crate::member::Member;
use crate::proc_file;
use crate::runtime::is_filtered;
use crate::shares::NODE_COUNT;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use sys::rustix::fs::{fstat, major, minor};
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sys::{AsFd, OwnedFd};
use units::{MemberSet, PAGE_BYTES};

/// move_pages(2) on x86-64.
const MOVE_PAGES: usize = 279;

/// By node, the members that are nearest to its processors; none where all are equally near.
pub(crate) fn near(members: &[Member]) -> [MemberSet; NODE_COUNT] {
    let nodes = parse_list(&text("/sys/devices/system/node/online"));
    if nodes.len() < 2 {
        return [MemberSet::EMPTY; NODE_COUNT];
    }
    let distances = |node: &usize| parse_numbers(&text(&format!("/sys/devices/system/node/node{node}/distance")));
    let distances: Vec<Vec<usize>> = nodes.iter().map(distances).collect();
    let mounts = text("/proc/self/mountinfo");
    let of_members: Vec<Option<usize>> = members.iter().map(|member| node_of(member, &mounts)).collect();
    nearest(&nodes, &distances, &of_members)
}

/// [`near`], of nodes with these numbers, distances between them (from each to each, in the order
/// of the numbers) and members on these nodes.
fn nearest(nodes: &[usize], distances: &[Vec<usize>], of_members: &[Option<usize>]) -> [MemberSet; NODE_COUNT] {
    let mut near = [MemberSet::EMPTY; NODE_COUNT];
    for (node, from_here) in nodes.iter().zip(distances) {
        let distance = |member: &Option<usize>| {
            let column = nodes.iter().position(|node| Some(*node) == *member)?;
            from_here.get(column).copied()
        };
        let known: Vec<Option<usize>> = of_members.iter().map(distance).collect();
        let farthest = from_here.iter().max().copied().unwrap_or(0);
        let least = known.iter().map(|distance| distance.unwrap_or(farthest)).min().unwrap_or(0);
        if let Some(members) = near.get_mut(*node) {
            let is_near = |(slot, distance): (usize, &Option<usize>)| (distance.unwrap_or(farthest) == least).then_some(slot);
            *members = known.iter().enumerate().filter_map(is_near).collect();
        }
    }
    near
}

/// The node of a member's memory.
fn node_of(member: &Member, mounts: &str) -> Option<usize> {
    let stat = fstat(member.root()?).ok()?;
    let device = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
    let of_device = ["device", "../device"].iter().find_map(|way| {
        let told = text(&format!("/sys/dev/block/{device}/{way}/numa_node"));
        // -1 is what a device says that is on no node.
        told.trim().parse().ok()
    });
    of_device.or_else(|| match memory_policy(mounts, &device)? {
        Some(node) => Some(node),
        None => member.superblock().ok().and_then(node_of_page),
    })
}

/// What the mount of the tmpfs with this device number says of the node of its memory: None if it
/// is no tmpfs, `Some(None)` if it says nothing, or several nodes.
fn memory_policy(mounts: &str, device: &str) -> Option<Option<usize>> {
    let mount = mounts.lines().find(|line| line.split_ascii_whitespace().nth(2) == Some(device))?;
    let mut rest = mount.split_once(" - ")?.1.split_ascii_whitespace();
    if rest.next() != Some("tmpfs") {
        return None;
    }
    let options = rest.nth(1).unwrap_or_default();
    let policy = options.split(',').find_map(|option| option.strip_prefix("mpol="));
    let is_bound = |policy: &&str| policy.starts_with("bind") || policy.starts_with("prefer");
    Some(policy.filter(is_bound).and_then(|policy| policy.rsplit_once(':')?.1.parse().ok()))
}

/// The node on which the first page of a file of tmpfs lies.
fn node_of_page(file: &OwnedFd) -> Option<usize> {
    // A filter of system calls may end the process for a call that it has not made before.
    if is_filtered() {
        return None;
    }
    let mut status = -1_i32;
    // SAFETY: a new mapping, which nobody else knows and which is unmapped before this ends. The
    // load is inside a guard. move_pages(2) without nodes moves nothing and writes one status.
    unsafe {
        let page = mmap(core::ptr::null_mut(), PAGE_BYTES, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0).ok()?;
        let first = page.cast::<u8>();
        let touched = persist::fault::guard(|| _ = first.read_volatile());
        if touched.is_ok() {
            let pages = [page as usize];
            let status_at = core::ptr::from_mut(&mut status) as usize;
            let _ = sys::raw::syscall(MOVE_PAGES, [0, 1, pages.as_ptr() as usize, 0, status_at, 0]);
        }
        let _ = munmap(page, PAGE_BYTES);
    }
    usize::try_from(status).ok()
}

fn text(path: &str) -> String {
    String::from_utf8(proc_file::read(path)).unwrap_or_default()
}

fn parse_numbers(text: &str) -> Vec<usize> {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// A list of numbers as `0-2,5` (Documentation/admin-guide/cputopology.rst), as far as nodes are
/// told apart here.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<usize>().ok()?);
        Some(first..=last.min(NODE_COUNT))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: &[usize]) -> MemberSet {
        slots.iter().copied().collect()
    }

    #[test]
    fn the_nearest_members_of_each_node_are_found() {
        // Two sockets, and memory behind the second one (node 3) that has no processors.
        let (nodes, distances) = ([0, 1, 3], [vec![10, 21, 31], vec![21, 10, 14], vec![31, 14, 10]]);
        let near = |members: &[Option<usize>]| {
            let near = nearest(&nodes, &distances, members);
            [near[0], near[1], near[3]]
        };
        assert_eq!(near(&[Some(0), Some(1)]), [set(&[0]), set(&[1]), set(&[1])]);
        assert_eq!(near(&[Some(0), Some(3), Some(3)]), [set(&[0]), set(&[1, 2]), set(&[1, 2])]);
        assert_eq!(near(&[Some(1), Some(3)]), [set(&[0]), set(&[0]), set(&[1])]);
        // What is not known, and what lies on a node that is not there, is far.
        assert_eq!(near(&[Some(0), None]), [set(&[0]), set(&[0, 1]), set(&[0, 1])]);
        assert_eq!(near(&[Some(0), Some(3), Some(7)])[1], set(&[1]));
        assert_eq!(near(&[None, None]), [set(&[0, 1]); 3]);
        // No distances, or fewer than nodes.
        assert_eq!(nearest(&nodes, &[], &[Some(0)])[0], MemberSet::EMPTY);
        assert_eq!(nearest(&nodes, &[vec![], vec![10]], &[Some(0), Some(1)])[1], set(&[0, 1]));
    }

    #[test]
    fn lists_and_mounts_are_read() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_list("0"), [0]);
        assert_eq!(parse_list(""), []);
        assert!(parse_list("3-18446744073709551615,x,-").len() <= NODE_COUNT);
        assert_eq!(parse_numbers("10 21\n"), [10, 21]);
        let mounts = "24 23 0:22 / /mnt/a rw - tmpfs none rw,size=1024k,mpol=bind:1,inode64\n\
            25 23 0:23 / /mnt/b rw shared:7 - tmpfs none rw,mpol=prefer=static:3\n\
            26 23 0:24 / /mnt/c rw - tmpfs none rw,mpol=interleave:0-1\n\
            27 23 8:1 / / rw - ext4 /dev/root rw\n\
            28 23 0:26 / /mnt/d rw - tmpfs none rw,mpol=bind:0-1\n";
        let found = ["0:22", "0:23", "0:24", "8:1", "0:26", "9:9"].map(|device| memory_policy(mounts, device));
        assert_eq!(found, [Some(Some(1)), Some(Some(3)), Some(None), None, Some(None), None]);
    }

    #[test]
    fn a_page_of_tmpfs_lies_on_a_node() {
        persist::fault::install_handlers().unwrap();
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        std::io::Write::write_all(&mut file, &[7; PAGE_BYTES]).unwrap();
        let file = OwnedFd::from(file);
        let nodes = parse_list(&text("/sys/devices/system/node/online"));
        // A kernel without nodes, or a sandbox, does not tell.
        assert!(node_of_page(&file).is_none_or(|node| nodes.contains(&node)));
        // There is no page behind the end.
        let empty = OwnedFd::from(tempfile::tempfile_in("/dev/shm").unwrap());
        assert_eq!(node_of_page(&empty), None);
    }
}
