//! The engine without interception: files of core/file in this process, made without names.
//!
//! `--engine` shows what the engine adds to the limits before a system call is intercepted.

use crate::append;
use crate::degraded;
use crate::levels::{self, Bench, FILE};
use crate::members::{Scratch, os, plain_file};
use crate::plan::{ArrayPlace, Plan};
use crate::report::Row;
use array::{Array, Config, JournalPlace};
use dax::Access;
use file::{FileRef, Files};
use format::Attribute;
use std::io;
use std::os::unix::ffi::OsStrExt;
use sys::rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, open};
use units::MemberSet;

fn error(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn config(place: &ArrayPlace) -> io::Result<Config> {
    let level = place.level.parse().map_err(|_| error(&"unknown level"))?;
    let mounts: Vec<Vec<u8>> = place.members.iter().map(|member| member.as_os_str().as_bytes().to_vec()).collect();
    let prefix = place.prefix.as_os_str().as_bytes().to_vec();
    let mut config = Config::new(level, None, &mounts, &[prefix], String::new()).map_err(|found| error(&found))?;
    if !place.journal.is_empty() {
        config = config.with_journal(&JournalPlace::parse(place.journal.as_bytes())).map_err(|found| error(&found))?;
    }
    Ok(config)
}

/// Gives a member, which is an empty directory, everything but the bytes of files. Nobody uses the
/// array.
pub(crate) fn fill_member(place: &ArrayPlace, slot: usize) -> io::Result<()> {
    persist::fault::install_handlers().map_err(os)?;
    namespace::fill(&config(place)?, slot, namespace::Content::Anew).map_err(|found| error(&found))
}

/// An array attached to this process. It stays so to the end.
fn attach(place: &ArrayPlace) -> io::Result<&'static Files> {
    persist::fault::install_handlers().map_err(os)?;
    let config = config(place)?;
    let array = Array::attach(&config).map_err(|found| error(&found))?;
    Files::new(array).map_err(os)
}

/// Makes a file and opens it.
fn create(files: &'static Files, place: &ArrayPlace, name: &str) -> io::Result<FileRef> {
    let attribute: Attribute = files.create_inode(b"/data/file").map_err(os)?;
    let mut descriptors = Vec::new();
    for slot in 0..place.members.len() {
        let path = place.backing(slot, name);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(path.as_os_str().as_bytes(), flags, Mode::RUSR | Mode::WUSR).map_err(os)?;
        fsetxattr(&file, format::ATTRIBUTE_NAME, &attribute.encode(), XattrFlags::empty()).map_err(os)?;
        descriptors.push(Some(file));
    }
    // No member joins meanwhile, so they are asked for once.
    let mut made = Some(descriptors);
    files.open(attribute, true, || Ok((made.take().ok_or(sys::OsError::AGAIN)?, Access::ReadWrite))).map_err(os)
}

/// The rows of one level; with a journal, on its own or on the members, those that it makes dearer.
pub(crate) fn level_rows(plan: &Plan, level: &str, journal: Option<bool>) -> io::Result<Vec<Row>> {
    let scratch = Scratch::new(&format!("engine-{level}"))?;
    let place = match journal {
        None => scratch.array(level, 3)?,
        Some(on_members) => scratch.journaled_array(level, 3, on_members)?,
    };
    let kernel = plain_file(&scratch.path().join("kernel"), plan.region_bytes)?;
    let subject = create(attach(&place)?, &place, FILE)?;
    levels::fill(&subject, plan.region_bytes);
    Ok(Bench::new(*plan, &place, &subject, &kernel)?.rows())
}

/// The rows of writes with a member out.
pub(crate) fn degraded_rows(plan: &Plan) -> io::Result<Vec<Row>> {
    let scratch = Scratch::new("engine-degraded")?;
    let place = scratch.array("5", 3)?;
    let files = attach(&place)?;
    let subject = create(files, &place, FILE)?;
    levels::fill(&subject, plan.region_bytes);
    let _ = files.array().runtime().add_out(MemberSet::EMPTY.with(degraded::OUT));
    degraded::rows(plan, &place, &subject)
}

/// The row of appends.
pub(crate) fn append_row(plan: &Plan) -> io::Result<Row> {
    let scratch = match Scratch::huge("engine-append", 8 * plan.append_bytes + (64 << 20)) {
        Ok(scratch) => scratch,
        Err(error) => return Ok(Row::not_measured(append::CASE, &error.to_string())),
    };
    let place = scratch.array("5", 3)?;
    let kernel = plain_file(&scratch.path().join("kernel"), 0)?;
    let subject = create(attach(&place)?, &place, FILE)?;
    Ok(append::row(plan, &subject, &kernel))
}
