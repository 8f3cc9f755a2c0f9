//! An object as its file has it, mapped a second time for as long as it is looked at.

use super::elf::{Image, LOADED, ProgramHeader, header_of, headers_of};
use heap::vec::Vec;
use sys::OwnedFd;
use sys::rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use units::PAGE_BYTES;

/// The second mapping. It is taken away with this.
pub(crate) struct Original {
    pub(crate) image: Image,
    address: usize,
    bytes: usize,
}

impl Original {
    /// Maps `file`, if it has the same program headers as `image`, the object that is loaded.
    pub(crate) fn map(image: &Image, file: &OwnedFd) -> Option<Self> {
        let headers = headers_of(file, &header_of(file)?)?;
        let loaded: Vec<&ProgramHeader> = headers.iter().filter(|header| header.kind() == LOADED).collect();
        let start = page_below(loaded.first()?.range()?.start);
        let end = loaded
            .iter()
            .filter_map(|header| header.range())
            .map(|range| range.end)
            .max()?
            .checked_next_multiple_of(PAGE_BYTES as u64)?;
        let bytes = usize::try_from(end.checked_sub(start)?).ok()?;
        // SAFETY: a new mapping at a place that the kernel agrees to.
        let address = unsafe { mmap_anonymous(sys::place::wish(bytes) as *mut _, bytes, ProtFlags::empty(), MapFlags::PRIVATE) }
            .ok()? as usize;
        let original = Self { image: image.moved_to((address as u64).wrapping_sub(start)), address, bytes };
        for header in loaded {
            let range = header.range()?;
            let within = range.start - page_below(range.start);
            let place = address + (page_below(range.start) - start) as usize;
            let length = (range.end - range.start + within) as usize;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: the place lies in the mapping just made, which holds every segment.
            unsafe { mmap(place as *mut _, length, ProtFlags::READ, flags, file, header.offset().checked_sub(within)?) }.ok()?;
        }
        (original.image.build_id() == image.build_id()).then_some(original)
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and its image goes with it.
        let _ = unsafe { munmap(self.address as *mut _, self.bytes) };
    }
}

const fn page_below(address: u64) -> u64 {
    address & !(PAGE_BYTES as u64 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::rustix::fs::{Mode, OFlags, open};

    #[test]
    fn a_file_shows_the_text_that_runs() {
        let image = crate::patch::elf::tests::own_image();
        let file = open(c"/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap();
        let original = Original::map(&image, &file).unwrap();
        let text = image.texts().next().unwrap();
        assert_ne!(original.image.bias, image.bias);
        assert!(original.image.bytes(text) == image.bytes(text));
        let other = open(c"/bin/true", OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(Original::map(&image, &other).is_none());
    }
}
