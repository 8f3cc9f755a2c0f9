//! Changes of names and descriptors: open, close, dup, rename, link, unlink; and the loss of a
//! member.

use super::world::{Description, NAME_COUNT};
use super::{Run, plan};
use crate::call::{self, Answer, Fd};
use crate::expected;
use std::path::{Path, PathBuf};

/// Descriptors open at a time.
const FD_COUNT_MAX: usize = 12;
/// Where dup2 puts descriptors.
const FD_HIGH: i32 = 60;

impl Run {
    pub(super) fn path(&self, name: usize) -> PathBuf {
        self.orders.directory.join(format!("file{name}"))
    }

    fn any_name(&mut self) -> usize {
        self.rng.below(NAME_COUNT as u64) as usize
    }

    pub(super) fn change_names(&mut self) -> Result<(), String> {
        let full = self.world.descriptors.len() >= FD_COUNT_MAX;
        match self.rng.below(32) {
            0..10 if !full => self.open(),
            10..14 if !full => self.duplicate(),
            14..20 => self.close_one(),
            20..23 => self.rename(),
            23..25 => self.link(),
            25 => self.unlink(),
            26..28 => self.truncate_by_name(),
            28 if !full => self.open_unnamed(),
            29 => self.stat_by_name(),
            _ => self.close_one(),
        }
    }

    fn check(&self, what: &str, got: Answer, expected: Answer) -> Result<(), String> {
        // A new descriptor may have any number.
        let same = if expected == Ok(i64::MAX) { got.is_ok() } else { got == expected };
        if same { Ok(()) } else { Err(format!("{what} gave {got:?}, not {expected:?}")) }
    }

    fn open(&mut self) -> Result<(), String> {
        let name = self.any_name();
        let access = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR][self.rng.below(5) as usize];
        let mut flags = access;
        let mut sometimes = |flag: i32, n: u64| if self.rng.one_in(n) { flag } else { 0 };
        flags |= sometimes(libc::O_CREAT, 2)
            | sometimes(libc::O_EXCL, 12)
            | sometimes(libc::O_APPEND, 6)
            | sometimes(libc::O_DSYNC, 10);
        if access != libc::O_RDONLY {
            flags |= sometimes(libc::O_TRUNC, 6);
        }
        let path = self.path(name);
        self.note(format!("open {} {flags:#o}", path.display()));
        let expected = match self.world.names[name] {
            None if flags & libc::O_CREAT == 0 => Err(libc::ENOENT),
            Some(_) if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL => Err(libc::EEXIST),
            _ => Ok(i64::MAX),
        };
        let got = call::open(&path, flags, 0o640);
        self.check("open", got, expected)?;
        if let Ok(fd) = got {
            let file = self.world.names[name].unwrap_or_else(|| self.world.new_file());
            self.world.files[file].name_count = self.world.files[file].name_count.max(1);
            self.world.names[name] = Some(file);
            if flags & libc::O_TRUNC != 0 {
                self.world.files[file].contents.truncate(0);
            }
            self.describe_descriptor(fd as Fd, file, flags);
        }
        Ok(())
    }

    pub(super) fn describe_descriptor(&mut self, fd: Fd, file: usize, flags: i32) {
        let key = (0..).find(|key| !self.world.descriptions.contains_key(key)).unwrap_or_default();
        let access = flags & libc::O_ACCMODE;
        let description = Description {
            file,
            position: 0,
            append: flags & libc::O_APPEND != 0,
            readable: access != libc::O_WRONLY,
            writable: access != libc::O_RDONLY,
        };
        self.world.descriptions.insert(key, description);
        self.world.descriptors.insert(fd, key);
    }

    /// O_TMPFILE, and often a name for it.
    fn open_unnamed(&mut self) -> Result<(), String> {
        self.note("open O_TMPFILE");
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let fd = call::open(&self.orders.directory, flags, 0o600).map_err(|errno| format!("O_TMPFILE: errno {errno}"))? as Fd;
        let file = self.world.new_file();
        self.describe_descriptor(fd, file, libc::O_RDWR);
        let name = self.any_name();
        if self.rng.one_in(2) {
            let path = self.path(name);
            self.note(format!("link descriptor {fd} to {}", path.display()));
            let expected = if self.world.names[name].is_some() { Err(libc::EEXIST) } else { Ok(0) };
            self.check("linkat of a descriptor", call::link_descriptor(fd, &path), expected)?;
            if expected.is_ok() {
                self.world.names[name] = Some(file);
                self.world.files[file].name_count = 1;
            }
        }
        Ok(())
    }

    fn duplicate(&mut self) -> Result<(), String> {
        let Some(fd) = plan::any_fd(&mut self.rng, &self.world) else { return Ok(()) };
        let key = self.world.descriptors[&fd];
        let to = FD_HIGH + self.rng.below(6) as i32;
        let (got, expected) = match self.rng.below(3) {
            0 => (call::dup(fd), Ok(i64::MAX)),
            1 => (call::dup2(fd, to), Ok(i64::from(to))),
            _ if fd == to => (call::dup3(fd, to, 0), Err(libc::EINVAL)),
            _ => (call::dup3(fd, to, libc::O_CLOEXEC), Ok(i64::from(to))),
        };
        self.note(format!("dup {fd} to {got:?}"));
        self.check("dup", got, expected)?;
        if let Ok(copy) = got {
            self.world.descriptors.insert(copy as Fd, key);
            self.world.sweep();
        }
        Ok(())
    }

    fn close_one(&mut self) -> Result<(), String> {
        let Some(fd) = plan::any_fd(&mut self.rng, &self.world) else { return Ok(()) };
        self.note(format!("close {fd}"));
        self.check("close", call::close(fd), Ok(0))?;
        self.check("close of a closed descriptor", call::lseek(fd, 0, libc::SEEK_CUR), Err(libc::EBADF))?;
        self.world.descriptors.remove(&fd);
        self.world.sweep();
        Ok(())
    }

    fn rename(&mut self) -> Result<(), String> {
        let (from, to) = (self.any_name(), self.any_name());
        self.note(format!("rename file{from} file{to}"));
        let (source, target) = (self.world.names[from], self.world.names[to]);
        let expected = if source.is_some() { Ok(0) } else { Err(libc::ENOENT) };
        self.check("rename", call::rename(&self.path(from), &self.path(to)), expected)?;
        if source.is_none() || source == target {
            return Ok(());
        }
        if let Some(target) = target {
            self.world.files[target].name_count -= 1;
        }
        self.world.names[to] = source;
        self.world.names[from] = None;
        self.world.sweep();
        Ok(())
    }

    fn link(&mut self) -> Result<(), String> {
        let (from, to) = (self.any_name(), self.any_name());
        self.note(format!("link file{from} file{to}"));
        let expected = match (self.world.names[from], self.world.names[to]) {
            (None, _) => Err(libc::ENOENT),
            (_, Some(_)) => Err(libc::EEXIST),
            _ => Ok(0),
        };
        self.check("link", call::link(&self.path(from), &self.path(to)), expected)?;
        if let (Ok(_), Some(file)) = (expected, self.world.names[from]) {
            self.world.names[to] = Some(file);
            self.world.files[file].name_count += 1;
        }
        Ok(())
    }

    fn unlink(&mut self) -> Result<(), String> {
        let name = self.any_name();
        self.note(format!("unlink file{name}"));
        let expected = if self.world.names[name].is_some() { Ok(0) } else { Err(libc::ENOENT) };
        self.check("unlink", call::unlink(&self.path(name)), expected)?;
        if let Some(file) = self.world.names[name].take() {
            self.world.files[file].name_count -= 1;
            self.world.sweep();
        }
        Ok(())
    }

    fn truncate_by_name(&mut self) -> Result<(), String> {
        let (name, size) = (self.any_name(), self.rng.below(200_000));
        self.note(format!("truncate file{name} {size}"));
        let expected = if self.world.names[name].is_some() { Ok(0) } else { Err(libc::ENOENT) };
        self.check("truncate", call::truncate(&self.path(name), size as i64), expected)?;
        if let Some(file) = self.world.names[name] {
            self.world.files[file].contents.truncate(size);
        }
        Ok(())
    }

    fn stat_by_name(&mut self) -> Result<(), String> {
        let name = self.any_name();
        self.note(format!("stat file{name}"));
        let expected = match self.world.names[name] {
            Some(file) => Ok((self.world.files[file].contents.size(), self.world.files[file].name_count)),
            None => Err(libc::ENOENT),
        };
        let got = call::stat(Err(&self.path(name)));
        if got == expected { Ok(()) } else { Err(format!("stat gave {got:?}, not {expected:?}")) }
    }

    /// Cuts the files of one member short, and reads from them until that must have been noticed.
    pub(super) fn cut_member(&mut self, member: &Path) -> Result<(), String> {
        self.orders.coherent_maps = false;
        self.sync_maps()?;
        // Only a file whose first byte is on the member tells reliably, and not one whose mappings
        // show a shared copy.
        let tells = |file: usize| self.world.files[file].contents.size() > 0 && !self.world.mapped.contains(&file);
        let Some(name) = (0..NAME_COUNT).find(|&name| self.world.names[name].is_some_and(tells)) else {
            self.note("no file to cut");
            return Ok(());
        };
        self.note(format!("the member loses file{name}"));
        let path = self.path(name);
        let backing = member.join(path.strip_prefix("/").unwrap_or(&path));
        let descriptor = call::open(&path, libc::O_RDWR, 0).map_err(|errno| format!("{}: errno {errno}", path.display()))? as Fd;
        std::fs::OpenOptions::new()
            .write(true)
            .open(&backing)
            .and_then(|file| file.set_len(0))
            .map_err(|error| format!("{}: {error}", backing.display()))?;
        let mut byte = [0];
        let count = call::pread(descriptor, &mut byte, 0);
        // Copies take turns to be read, and all are stored to: from here on the member is out.
        // Found out later, its loss would take along what mappings store to it meanwhile.
        let written = call::pwrite(descriptor, &byte, 0);
        call::close(descriptor).map_err(|errno| format!("close: errno {errno}"))?;
        let file = self.world.names[name].unwrap_or_default();
        if count != Ok(1) || written != Ok(1) || self.world.files[file].contents.read(0, 1) != byte {
            return Err(format!("the first byte of a file cut on one member: read {count:?}, {byte:?}, written {written:?}"));
        }
        self.world.files[file].contents.write(0, &byte);
        self.compare_all()
    }

    /// Closes everything, cuts what lies far, and writes down what the files must hold.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        for name in 0..NAME_COUNT {
            let Some(file) = self.world.names[name] else { continue };
            if self.world.files[file].contents.size() > 1 << 32 {
                // Extents past 4 GiB are compared with members out too, but what lies between them
                // is never read.
                self.note(format!("file{name} reaches past 4 GiB"));
            }
        }
        let open: Vec<Fd> = self.world.descriptors.keys().copied().collect();
        for fd in open {
            self.check("close", call::close(fd), Ok(0))?;
        }
        let Some(path) = &self.orders.expected else { return Ok(()) };
        let files = (0..NAME_COUNT).filter_map(|name| {
            let contents = &self.world.files[self.world.names[name]?].contents;
            Some(expected::File { path: self.path(name), size: contents.size(), extents: contents.extents() })
        });
        expected::save(path, &files.collect::<Vec<_>>()).map_err(|error| format!("{}: {error}", path.display()))
    }
}
