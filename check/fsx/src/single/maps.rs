//! Mappings that are held while everything else goes on: stores and loads through them, msync,
//! forked children, the end of the file.
//!
//! A mapping that can be stored to shows what the file holds, whatever changes it, for as long as
//! it lasts; so loads are compared with the model of the file.

use super::Run;
use super::plan::any_fd;
use super::world::Data;
use crate::call::{self, Mapping};
use crate::expected;

const PAGE: u64 = 4096;
/// So many are held at a time.
const HELD_MAX: usize = 6;
/// Longer files are not mapped: where a shared copy is made, holes of gigabytes would be read.
const FILE_BYTES_MAX: u64 = 4 << 20;
const MAP_BYTES_MAX: u64 = 200_000;

/// A mapping of a file of the model.
pub(crate) struct Held {
    map: Mapping,
    file: usize,
    /// What it shows: `offset..offset + bytes`.
    offset: u64,
    bytes: u64,
}

impl Held {
    /// How many of its bytes lie within a file of `size` bytes.
    fn reach(&self, size: u64) -> u64 {
        size.saturating_sub(self.offset).min(self.bytes)
    }
}

impl Run {
    /// One operation on a mapping.
    pub(super) fn use_maps(&mut self) -> Result<(), String> {
        if self.held.is_empty() || self.held.len() < HELD_MAX && self.rng.one_in(8) {
            return self.map();
        }
        let index = self.rng.below(self.held.len() as u64) as usize;
        match self.rng.below(40) {
            0..16 => self.store(index),
            16..30 => self.load(index),
            30..34 => self.sync_map(index),
            34 => self.store_in_child(index),
            35 => self.touch_behind_the_end(index),
            36 => self.unmap_head(index),
            _ => {
                let held = self.held.swap_remove(index);
                self.note(format!("unmap file {} from {}", held.file, held.offset));
                let one = self.world.mapped.iter().position(|&file| file == held.file);
                self.world.mapped.swap_remove(one.unwrap_or_default());
                drop(held);
                Ok(())
            }
        }
    }

    fn size(&self, index: usize) -> u64 {
        self.world.files[self.held[index].file].contents.size()
    }

    fn map(&mut self) -> Result<(), String> {
        let Some(fd) = any_fd(&mut self.rng, &self.world) else { return Ok(()) };
        let description = self.world.description(fd).clone();
        let size = self.world.file_of(fd).contents.size();
        if !description.readable || size > FILE_BYTES_MAX {
            return Ok(());
        }
        let offset = self.rng.below(size / PAGE + 2) * PAGE;
        let bytes = 1 + self.rng.below(MAP_BYTES_MAX);
        self.note(format!("map file {} from {offset}, {bytes} bytes", description.file));
        match (Mapping::writable(fd, offset, bytes as usize), description.writable) {
            (Ok(map), true) => {
                self.world.mapped.push(description.file);
                self.held.push(Held { map, file: description.file, offset, bytes });
            }
            (Err(libc::EACCES), false) => {}
            (Ok(_), false) => return Err("mmap: a descriptor that is only read lets be stored".to_owned()),
            (Err(errno), _) => return Err(format!("mmap: errno {errno}")),
        }
        Ok(())
    }

    /// A range of a mapping that lies within the file: from where in the mapping, and how long.
    fn range(&mut self, index: usize) -> Option<(u64, u64)> {
        let reach = self.held[index].reach(self.size(index));
        if reach == 0 {
            return None;
        }
        let at = self.rng.below(reach);
        let longest = if self.rng.one_in(8) { MAP_BYTES_MAX } else { 6000 };
        Some((at, 1 + self.rng.below((reach - at).min(longest))))
    }

    /// Stores on the model; what it stores in reality the caller does.
    fn plan_store(&mut self, index: usize) -> Option<(u64, Vec<u8>)> {
        let (at, bytes) = self.range(index)?;
        let data = Data { seed: self.rng.word(), bytes: bytes as usize }.bytes();
        let (file, offset) = (self.held[index].file, self.held[index].offset);
        self.note(format!("store to file {file} through {offset}: from {} on, {bytes} bytes", offset + at));
        self.world.files[file].contents.write(offset + at, &data);
        Some((at, data))
    }

    fn store(&mut self, index: usize) -> Result<(), String> {
        let size = self.size(index);
        let Some((at, data)) = self.plan_store(index) else { return Ok(()) };
        let held = &self.held[index];
        held.map.store(at as usize, &data);
        // The rest of the last page may be stored to; it is not part of the file.
        let end = held.offset + at + data.len() as u64;
        let rest = end.next_multiple_of(PAGE).min(held.offset + held.bytes).saturating_sub(end);
        if self.orders.array && end == size && rest > 0 {
            held.map.store((end - held.offset) as usize, &vec![0xdd; rest as usize]);
            self.note("and behind the end");
        }
        Ok(())
    }

    fn load(&mut self, index: usize) -> Result<(), String> {
        let Some((at, bytes)) = self.range(index) else { return Ok(()) };
        let held = &self.held[index];
        let got = held.map.load(at as usize, bytes as usize);
        let expected = self.world.files[held.file].contents.read(held.offset + at, bytes as usize);
        if got == expected {
            return Ok(());
        }
        let difference = expected::difference(&expected, &got);
        Err(format!("file {} loaded through {} from {} on: {difference}", held.file, held.offset, held.offset + at))
    }

    fn sync_map(&mut self, index: usize) -> Result<(), String> {
        let flags = [libc::MS_SYNC, libc::MS_ASYNC, libc::MS_SYNC | libc::MS_INVALIDATE][self.rng.below(3) as usize];
        self.note(format!("msync file {} from {}", self.held[index].file, self.held[index].offset));
        self.held[index].map.sync(flags).map_err(|errno| format!("msync: errno {errno}"))
    }

    /// A child has the mapping too; its end is nothing to the parent.
    fn store_in_child(&mut self, index: usize) -> Result<(), String> {
        let Some((at, data)) = self.plan_store(index) else { return Ok(()) };
        let map = &self.held[index].map;
        let pid = call::fork(|| {
            map.store(at as usize, &data);
            map.load(at as usize, data.len()) == data
        });
        self.note("in a child");
        match pid.and_then(call::wait) {
            Ok(0) => self.load(index),
            other => Err(format!("a child that stores: {other:?}")),
        }
    }

    /// Pages behind the last one are SIGBUS, for loads and stores.
    fn touch_behind_the_end(&mut self, index: usize) -> Result<(), String> {
        let size = self.size(index);
        let held = &self.held[index];
        let behind = size.next_multiple_of(PAGE).max(held.offset) - held.offset;
        if behind >= held.bytes {
            return Ok(());
        }
        let at = behind + self.rng.below(held.bytes - behind);
        let store = self.rng.one_in(2);
        self.note(format!("touch file {} at {}, size {size}", self.held[index].file, self.held[index].offset + at));
        let map = &self.held[index].map;
        let pid = call::fork(|| {
            // SAFETY: no memory is concerned: no core is to be left.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
            // The runtime of Rust has a handler of its own.
            // SAFETY: the default is what a program begins with.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            if store {
                map.store(at as usize, &[1])
            } else {
                // Not to be left out as a load whose value nobody needs.
                std::hint::black_box(map.load(at as usize, 1));
            }
            true
        });
        match pid.and_then(call::wait) {
            Ok(status) if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS => Ok(()),
            other => Err(format!("a page behind the end was touched: {other:?}")),
        }
    }

    /// Unmaps the first pages.
    fn unmap_head(&mut self, index: usize) -> Result<(), String> {
        let pages = self.held[index].bytes.div_ceil(PAGE);
        if pages < 2 {
            return Ok(());
        }
        let head = (1 + self.rng.below(pages - 1)) * PAGE;
        self.note(format!("unmap {head} bytes of file {} from {}", self.held[index].file, self.held[index].offset));
        let held = &mut self.held[index];
        held.map.unmap_head(head as usize).map_err(|errno| format!("munmap: errno {errno}"))?;
        held.offset += head;
        held.bytes -= head;
        Ok(())
    }

    /// Loads all that is mapped.
    pub(super) fn compare_maps(&mut self) -> Result<(), String> {
        for held in &self.held {
            let contents = &self.world.files[held.file].contents;
            let reach = held.reach(contents.size());
            let (got, expected) = (held.map.load(0, reach as usize), contents.read(held.offset, reach as usize));
            if got != expected {
                return Err(format!("file {} through {}: {}", held.file, held.offset, expected::difference(&expected, &got)));
            }
        }
        Ok(())
    }

    /// Before a member goes: what was stored is in the redundancy.
    pub(super) fn sync_maps(&self) -> Result<(), String> {
        let sync = |held: &Held| held.map.sync(libc::MS_SYNC).map_err(|errno| format!("msync: errno {errno}"));
        self.held.iter().try_for_each(sync)
    }
}
