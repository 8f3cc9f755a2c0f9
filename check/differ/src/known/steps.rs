//! The steps that known programs are made of.

use super::PAGE;
use crate::{
    calls::Call,
    draw::{Argument, MAPS, Place},
    program::{Deed, Rights, Step, Who},
    table::CALLS,
};
use Argument::{Memory, Number, Path};

pub(super) fn named(name: &str) -> &'static Call {
    CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("{name}: no call of the table"))
}

pub(super) fn call(name: &str, arguments: Vec<Argument>) -> Step {
    Step { who: Who::Program, deed: Deed::Call(named(name), arguments) }
}

pub(super) fn rights(rights: Rights) -> Step {
    Step { who: Who::Program, deed: Deed::Rights(rights) }
}

pub(super) fn path(text: &str) -> Argument {
    Path(text.to_owned(), Place::Good)
}

/// A page of the program's part of the address space.
pub(super) fn at(page: i64) -> Argument {
    Number(MAPS + page * PAGE)
}

pub(super) fn map(page: i64, bytes: i64, protection: i64, flags: i64, fd: i64) -> Step {
    call("mmap", vec![at(page), Number(bytes), Number(protection), Number(flags), Number(fd), Number(0)])
}

pub(super) fn remap(page: i64, bytes: i64, file_page: i64) -> Step {
    call("remap_file_pages", vec![at(page), Number(bytes), Number(0), Number(file_page), Number(0)])
}

pub(super) fn load(page: i64, bytes: i64) -> Step {
    call("load", vec![at(page), Number(bytes)])
}

pub(super) fn advise(page: i64, bytes: i64, advice: i64) -> Step {
    call("madvise", vec![at(page), Number(bytes), Number(advice)])
}

pub(super) fn sync(page: i64, bytes: i64, flags: i64) -> Step {
    call("msync", vec![at(page), Number(bytes), Number(flags)])
}

pub(super) fn link(from: (i64, &str), to: (i64, &str), flags: i64) -> Step {
    call("linkat", vec![Number(from.0), path(from.1), Number(to.0), path(to.1), Number(flags)])
}

/// What is open gets a name that cannot be read.
pub(super) fn link_to_nothing(fd: i64) -> Step {
    call("linkat", vec![Number(fd), path(""), Number(5), Memory(Place::Null), Number(0x1000)])
}

pub(super) fn send(to: i64, from: i64, offset: Argument, bytes: i64) -> Step {
    call("sendfile", vec![Number(to), Number(from), offset, Number(bytes)])
}

pub(super) fn remapped(page: i64, old: i64, new: i64, flags: i64, to: i64) -> Step {
    call("mremap", vec![at(page), Number(old), Number(new), Number(flags), at(to)])
}

/// FS_IOC_SETFLAGS without flags.
pub(super) fn ioctl_to_nowhere(fd: i64) -> Step {
    call("ioctl", vec![Number(fd), Number(0x4008_6602), Memory(Place::Null)])
}

/// An ioctl(2) whose argument is no descriptor.
pub(super) fn ioctl(fd: i64, request: i64) -> Step {
    call("ioctl", vec![Number(fd), Number(request), Memory(Place::Good)])
}

/// FICLONE.
pub(super) fn ioctl_of(goal: i64, source: i64) -> Step {
    call("ioctl", vec![Number(goal), Number(0x4004_9409), Number(source)])
}
