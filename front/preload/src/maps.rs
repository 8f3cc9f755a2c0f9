//! What /proc/<pid>/maps says of an address (proc_pid_maps(5)).

use core::ops::Range;
use heap::vec::Vec;
use linux_raw_sys::general::{PROT_EXEC, PROT_READ, PROT_WRITE};
use sys::rustix::fs::{CWD, Mode, OFlags, openat};
use sys::rustix::io::read;

/// Addresses that the kernel maps in one way: a line.
pub(crate) struct Area {
    pub(crate) addresses: Range<usize>,
    /// PROT_*.
    pub(crate) protection: usize,
    pub(crate) is_shared: bool,
    /// The offset in the file that the first address shows.
    pub(crate) offset: usize,
    /// The file that it shows: device, inode number. Zeros if it shows none.
    pub(crate) file: (u64, u64),
    /// Whether it shows no file.
    pub(crate) is_anonymous: bool,
    /// The file's path, or the kernel's name for what is not a file; often empty.
    pub(crate) name: Vec<u8>,
}

impl Area {
    /// The one that holds `address`.
    pub(crate) fn around(address: usize) -> Option<Self> {
        Self::find(b"/proc/self/maps\0", |area| area.addresses.contains(&address))
    }

    /// Whether another process' area shows the same part of the same file, by whatever name.
    pub(crate) fn shows_the_same(&self, other: &Self) -> bool {
        !self.is_anonymous && (self.file, self.offset) == (other.file, other.offset)
    }

    /// The first in the file `maps`, whose name ends with NUL, that `is_meant`.
    pub(crate) fn find(maps: &[u8], is_meant: impl Fn(&Self) -> bool) -> Option<Self> {
        let maps = core::ffi::CStr::from_bytes_with_nul(maps).ok()?;
        let maps = openat(CWD, maps, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (mut buffer, mut line) = ([0; 4096], Vec::new());
        while let Ok(count @ 1..) = read(&maps, &mut buffer) {
            for &byte in &buffer[..count] {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                if let Some(area) = Self::parse(&line).filter(&is_meant) {
                    return Some(area);
                }
                line.clear();
            }
        }
        None
    }

    /// `55d8a000-55d8b000 r--p 00002000 fe:01 1234       /path`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let hexadecimal = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
        let mut addresses = words.next()?.splitn(2, |&byte| byte == b'-').map(hexadecimal);
        let addresses = addresses.next()??..addresses.next()??;
        let rights = words.next()?;
        let right = |index: usize, letter: u8, value: u32| if rights.get(index) == Some(&letter) { value as usize } else { 0 };
        let protection = right(0, b'r', PROT_READ) | right(1, b'w', PROT_WRITE) | right(2, b'x', PROT_EXEC);
        let offset = hexadecimal(words.next()?)?;
        let mut device = words.next()?.splitn(2, |&byte| byte == b':').map(hexadecimal);
        let device = (device.next()?? as u64) << 32 | device.next()?? as u64;
        let inode = core::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let name = words.next().unwrap_or_default().trim_ascii_start().to_vec();
        Some(Self {
            addresses,
            protection,
            is_shared: rights.get(3) != Some(&b'p'),
            offset,
            file: (device, inode),
            is_anonymous: inode == 0,
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = b"7f0a10000000-7f0a10021000 r-xp 00003000 fe:01 131077                     /m/a b (deleted)";
        let area = Area::parse(line).unwrap();
        assert_eq!((area.addresses, area.offset), (0x7f0a_1000_0000..0x7f0a_1002_1000, 0x3000));
        assert_eq!((area.protection, &area.name[..]), ((PROT_READ | PROT_EXEC) as usize, &b"/m/a b (deleted)"[..]));
        assert!(!area.is_shared && !area.is_anonymous);
        assert_eq!(area.file, (0xfe_0000_0001, 131_077));
        let area = Area::parse(b"7ffe0000-7fff0000 rw-s 00000000 00:00 0 ").unwrap();
        assert!(area.is_shared && area.is_anonymous && area.name.is_empty());
        assert_eq!(area.protection, (PROT_READ | PROT_WRITE) as usize);
    }

    #[test]
    fn another_file_of_the_same_name_is_another_one() {
        let line = |end: &str| Area::parse(std::format!("7f0a10000000-7f0a10021000 r-xp 00003000 {end}").as_bytes()).unwrap();
        let own = line("fe:01 131077 /usr/lib/libcxlraid.so");
        assert!(own.shows_the_same(&line("fe:01 131077 /usr/lib/libcxlraid.so (deleted)")));
        assert!(!own.shows_the_same(&line("fe:01 131078 /usr/lib/libcxlraid.so")));
        assert!(!own.shows_the_same(&line("fe:02 131077 /usr/lib/libcxlraid.so")));
        assert!(!line("00:00 0 ").shows_the_same(&line("00:00 0 ")));
    }

    #[test]
    fn an_address_is_found() {
        let on_the_stack = 0;
        let area = Area::around(&raw const on_the_stack as usize).unwrap();
        assert!(area.is_anonymous && !area.is_shared && area.protection & PROT_WRITE as usize != 0);
        let code = Area::around(Area::parse as fn(&[u8]) -> Option<Area> as usize).unwrap();
        assert!(!code.is_anonymous && code.protection & PROT_EXEC as usize != 0 && code.name.starts_with(b"/"));
        assert!(Area::around(0).is_none());
    }
}
