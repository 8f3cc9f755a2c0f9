//! What a mapped ELF object says of itself: segments, build-id, functions, and every place that may
//! be jumped to.
//!
//! Addresses are the object's own ("virtual"); `bias` is added to reach memory. Everything is read
//! through [`Image::bytes`], which stays within the readable segments, so a malformed object is not
//! followed out of its mapping.

use core::ffi::CStr;
use heap::vec::Vec;
use sys::OwnedFd;
use sys::rustix::io::pread;

/// Of segments that are mapped (PT_LOAD).
pub(crate) const LOADED: u32 = 1;
const PT_LOAD: u32 = LOADED;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
/// Of segments that hold notes (PT_NOTE).
pub(crate) const NOTE: u32 = 4;
const PT_NOTE: u32 = NOTE;
const PT_PHDR: u32 = 6;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_SONAME: u64 = 14;
pub(crate) const DT_DEBUG: u64 = 21;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS: u64 = 30;
const DT_RELRSZ: u64 = 35;
const DT_RELR: u64 = 36;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DF_TEXTREL: u64 = 4;

const R_X86_64_RELATIVE: u32 = 8;
const R_X86_64_IRELATIVE: u32 = 37;
const NT_GNU_BUILD_ID: u32 = 3;
/// version 1, encoded pointer any, count udata4, table of sdata4 relative to the header: the only
/// form linkers write.
const EH_FRAME_HDR_FORM: [u8; 2] = [0x03, 0x3b];
/// How much of a function may follow its unwind entry: that of glibc's clone and clone3 ends in the
/// middle, before the system call.
const TAIL_BYTES_MAX: u64 = 256;
const SYMBOL_BYTES: u64 = 24;

/// A program header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

impl ProgramHeader {
    pub(crate) const fn kind(&self) -> u32 {
        self.kind
    }

    /// Where its bytes are in the file.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes in the file.
    pub(crate) fn file_range(&self) -> Option<core::ops::Range<u64>> {
        Some(self.offset..self.offset.checked_add(self.file_bytes)?)
    }

    /// The addresses that come from the file.
    pub(crate) fn range(&self) -> Option<Range> {
        Some(Range { start: self.address, end: self.address.checked_add(self.file_bytes)? })
    }
}

/// More program headers than an executable has: the kernel takes at most 64 KiB of them.
const PROGRAM_HEADER_COUNT_MAX: usize = 65536 / size_of::<ProgramHeader>();

/// The header of the object in `file`; None if it is no object of ours.
pub(crate) fn header_of(file: &OwnedFd) -> Option<Header> {
    let mut bytes = [0u8; size_of::<Header>()];
    pread(file, &mut bytes[..], 0).ok().filter(|count| *count == bytes.len())?;
    // SAFETY: as many bytes as a header has, which is plain numbers.
    let header = unsafe { bytes.as_ptr().cast::<Header>().read_unaligned() };
    header.is_ours().then_some(header)
}

/// The program headers of the object in `file`, whose header is given.
pub(crate) fn headers_of(file: &OwnedFd, header: &Header) -> Option<Vec<ProgramHeader>> {
    let (offset, count) = header.program_headers();
    if count > PROGRAM_HEADER_COUNT_MAX {
        return None;
    }
    let mut bytes = heap::vec![0u8; count * size_of::<ProgramHeader>()];
    let read = pread(file, bytes.as_mut_slice(), offset).ok()?;
    let whole = |index: usize| (index + 1) * size_of::<ProgramHeader>() <= read;
    // SAFETY: entry `index` lies within what was read, as just checked; it is plain numbers.
    let entry = |index: usize| unsafe { bytes.as_ptr().cast::<ProgramHeader>().add(index).read_unaligned() };
    Some((0..count).take_while(|&index| whole(index)).map(entry).collect())
}

/// The ELF header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Header {
    magic: [u8; 4],
    class: u8,
    order: u8,
    rest: [u8; 10],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    program_headers: u64,
    section_headers: u64,
    flags: u32,
    header_bytes: u16,
    program_header_bytes: u16,
    program_header_count: u16,
    section_words: [u16; 3],
}

impl Header {
    /// Whether this is a 64-bit little-endian x86-64 object with program headers of the usual size.
    pub(crate) fn is_ours(&self) -> bool {
        &self.magic == b"\x7fELF"
            && self.class == 2
            && self.order == 1
            && self.machine == 62
            && self.program_header_bytes as usize == size_of::<ProgramHeader>()
    }

    /// File offset and number of the program headers.
    pub(crate) const fn program_headers(&self) -> (u64, usize) {
        (self.program_headers, self.program_header_count as usize)
    }
}

/// The parts of a section header (ELF-64, figure 4) that say where a section is in the file, and
/// the header's size.
const SECTION_OFFSET_AT: usize = 24;
const SECTION_BYTES_AT: usize = 32;
const SECTION_HEADER_BYTES: u16 = 64;

impl Header {
    /// The names of the sections, one behind the other, each with a NUL. None if there is no table
    /// of sections. `read` gives bytes of the file.
    pub(crate) fn section_names(&self, read: impl Fn(core::ops::Range<u64>) -> Vec<u8>) -> Option<Vec<u8>> {
        let [entry_bytes, count, names] = self.section_words;
        if entry_bytes != SECTION_HEADER_BYTES || names >= count {
            return None;
        }
        let start = self.section_headers.checked_add(u64::from(names) * u64::from(entry_bytes))?;
        let entry = read(start..start.checked_add(u64::from(entry_bytes))?);
        let number = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
        let offset = number(SECTION_OFFSET_AT)?;
        Some(read(offset..offset.checked_add(number(SECTION_BYTES_AT)?)?))
    }
}

/// Where in an executable file with these program headers the path of the dynamic linker is that it
/// asks for; None if it asks for none.
pub(crate) fn interpreter(headers: &[ProgramHeader]) -> Option<core::ops::Range<u64>> {
    let header = headers.iter().find(|header| header.kind == PT_INTERP)?;
    Some(header.offset..header.offset.saturating_add(header.file_bytes))
}

/// What must be added to the addresses of the object whose table of program headers lies at `table`
/// in memory.
pub(crate) fn bias_of_table(headers: &[ProgramHeader], table: u64) -> u64 {
    let own = headers.iter().find(|header| header.kind == PT_PHDR).map(|header| header.address);
    // Without an entry for itself, the table follows the ELF header at the start of the first
    // segment.
    let first = || headers.iter().find(|header| header.kind == PT_LOAD).map(|header| header.address + size_of::<Header>() as u64);
    table.wrapping_sub(own.or_else(first).unwrap_or(table))
}

/// A range of virtual addresses.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    pub(crate) const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// A mapped object.
pub(crate) struct Image {
    /// What is added to its addresses.
    pub(crate) bias: u64,
    segments: Vec<(Range, u32)>,
    dynamic: Range,
    eh_frame_hdr: u64,
    notes: [Range; 4],
}

impl Image {
    /// The object whose program headers these are.
    ///
    /// # Safety
    /// The object is mapped as they say, `bias` away from its own addresses, and stays mapped while
    /// the image is used.
    pub(crate) unsafe fn new(bias: u64, headers: &[ProgramHeader]) -> Option<Self> {
        let mut image =
            Self { bias, segments: Vec::new(), dynamic: Range::default(), eh_frame_hdr: 0, notes: Default::default() };
        let mut note_count = 0;
        for header in headers {
            let range = header.range()?;
            match header.kind {
                PT_LOAD => image.segments.push((range, header.flags)),
                PT_DYNAMIC => image.dynamic = range,
                PT_GNU_EH_FRAME => image.eh_frame_hdr = header.address,
                PT_NOTE if note_count < image.notes.len() => {
                    image.notes[note_count] = range;
                    note_count += 1;
                }
                _ => {}
            }
        }
        Some(image)
    }

    /// The object whose ELF header lies at `address`, where its first byte is mapped.
    ///
    /// # Safety
    /// The first page there is readable; if it holds an ELF header, the object is mapped as it says
    /// and stays so.
    pub(crate) unsafe fn at(address: usize) -> Option<Self> {
        // SAFETY: the caller's promise: a readable page.
        let header = unsafe { (address as *const Header).read_unaligned() };
        let (offset, count) = header.program_headers();
        if !header.is_ours() || offset as usize + count * size_of::<ProgramHeader>() > 4096 {
            return None;
        }
        // SAFETY: the table lies within the readable page, as just checked; its alignment is that
        // of the file format.
        let headers = unsafe { core::slice::from_raw_parts((address + offset as usize) as *const ProgramHeader, count) };
        let first = headers.iter().find(|header| header.kind == PT_LOAD && header.offset == 0)?;
        // SAFETY: the caller's promise.
        unsafe { Self::new((address as u64).wrapping_sub(first.address), headers) }
    }

    /// The object in `file`, whose first byte is mapped at `address`. For one whose program headers lie
    /// behind its first page: tools that change an object put them at its end. None if another object
    /// is mapped there.
    ///
    /// # Safety
    /// As for [`Self::at`].
    pub(crate) unsafe fn of_file(file: &OwnedFd, address: usize) -> Option<Self> {
        let header = header_of(file)?;
        // SAFETY: the caller's promise: a readable page.
        let mapped = unsafe { (address as *const Header).read_unaligned() };
        if !mapped.is_ours()
            || mapped.section_headers != header.section_headers
            || mapped.program_headers() != header.program_headers()
        {
            return None;
        }
        let headers = headers_of(file, &header)?;
        let first = headers.iter().find(|header| header.kind == PT_LOAD && header.offset == 0)?;
        // SAFETY: the caller's promise.
        unsafe { Self::new((address as u64).wrapping_sub(first.address), &headers) }
    }

    /// Returns this image as it is mapped `bias` away from its own addresses.
    pub(crate) fn moved_to(&self, bias: u64) -> Self {
        Self { bias, segments: self.segments.clone(), ..*self }
    }

    /// Returns where its segments are in its own addresses, as far as they come from its file, and
    /// their flags (`p_flags`, elf(5)).
    pub(crate) fn segments(&self) -> &[(Range, u32)] {
        &self.segments
    }

    /// Where its segments are in memory, as far as they come from its file.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range> + '_ {
        let moved = |address: u64| self.bias.wrapping_add(address);
        self.segments().iter().map(move |(range, _)| Range { start: moved(range.start), end: moved(range.end) })
    }

    /// The executable ranges.
    pub(crate) fn texts(&self) -> impl Iterator<Item = Range> + '_ {
        self.segments().iter().filter(|(_, flags)| flags & PF_X != 0).map(|(range, _)| *range)
    }

    /// Tells whether the program may store to the executable range that holds `address`.
    pub(crate) fn is_writable_text(&self, address: u64) -> bool {
        self.segments().iter().any(|(range, flags)| flags & PF_X != 0 && flags & PF_W != 0 && range.contains(address))
    }

    /// Whether `address` is in an executable range.
    pub(crate) fn is_text(&self, address: u64) -> bool {
        self.texts().any(|range| range.contains(address))
    }

    /// The bytes of `range`, if it is within one readable segment.
    pub(crate) fn bytes(&self, range: Range) -> Option<&[u8]> {
        let within = |(segment, flags): &(Range, u32)| {
            flags & PF_R != 0 && segment.start <= range.start && range.start <= range.end && range.end <= segment.end
        };
        if !self.segments().iter().any(within) {
            return None;
        }
        let address = self.bias.wrapping_add(range.start) as *const u8;
        // SAFETY: `new` was promised that the segments are mapped; the range is inside a readable
        // one.
        Some(unsafe { core::slice::from_raw_parts(address, (range.end - range.start) as usize) })
    }

    fn value<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        self.bytes(Range { start: address, end: address.checked_add(N as u64)? })?.try_into().ok()
    }

    /// The 4-byte number at `address`.
    pub(crate) fn word(&self, address: u64) -> Option<u32> {
        self.value(address).map(u32::from_le_bytes)
    }

    /// The 8-byte number at `address`.
    pub(crate) fn quad(&self, address: u64) -> Option<u64> {
        self.value(address).map(u64::from_le_bytes)
    }

    /// The GNU build-id, if the object has one.
    pub(crate) fn build_id(&self) -> Option<&[u8]> {
        for note in self.notes.iter().filter(|note| note.end > note.start) {
            let mut at = note.start;
            while at + 12 <= note.end {
                let (name, description, kind) = (u64::from(self.word(at)?), u64::from(self.word(at + 4)?), self.word(at + 8)?);
                let body = at + 12 + name.next_multiple_of(4);
                if kind == NT_GNU_BUILD_ID && self.value(at + 12) == Some(*b"GNU\0") {
                    return self.bytes(Range { start: body, end: body + description });
                }
                at = body + description.next_multiple_of(4);
            }
        }
        None
    }

    /// The value of the first entry with `tag` in the dynamic section.
    pub(crate) fn dynamic(&self, tag: u64) -> Option<u64> {
        let mut at = self.dynamic.start;
        while at + 16 <= self.dynamic.end {
            match self.quad(at)? {
                0 => return None,
                found if found == tag => return self.quad(at + 8),
                _ => at += 16,
            }
        }
        None
    }

    /// As [`Self::dynamic`], for a value that is an address: ld.so has added the bias already, or
    /// has not yet.
    fn dynamic_address(&self, tag: u64) -> Option<u64> {
        let value = self.dynamic(tag)?;
        let loaded = self.bias != 0 && self.segments().iter().any(|(range, _)| range.contains(value.wrapping_sub(self.bias)));
        Some(if loaded { value.wrapping_sub(self.bias) } else { value })
    }

    /// Whether relocations change the text, so that bytes seen now are not those that run.
    pub(crate) fn relocates_text(&self) -> bool {
        self.dynamic(DT_TEXTREL).is_some() || self.dynamic(DT_FLAGS).is_some_and(|flags| flags & DF_TEXTREL != 0)
    }

    /// The object's own name for itself.
    pub(crate) fn soname(&self) -> Option<&CStr> {
        let start = self.dynamic_address(DT_STRTAB)? + self.dynamic(DT_SONAME)?;
        let segment = self.segments().iter().find(|(range, _)| range.contains(start))?.0;
        CStr::from_bytes_until_nul(self.bytes(Range { start, end: segment.end })?).ok()
    }

    /// The function that contains `address`, by the table of unwind entries; with what follows it
    /// and is in no function, if that is short. Up to the next one where its entry does not say how
    /// long it is, and everything where there is no table. None for what is in no function: data
    /// that lies among the instructions, or in one segment with them.
    pub(crate) fn function(&self, address: u64) -> Option<Range> {
        if self.function_count() == 0 {
            return Some(Range { start: 0, end: u64::MAX });
        }
        let (function, next) = self.function_before(address)?;
        let end = if next - function.end <= TAIL_BYTES_MAX { next } else { function.end };
        (address < end).then_some(Range { start: function.start, end })
    }

    /// Tells whether an unwind entry says that `address` is in a function. Elsewhere data may lie
    /// among the instructions.
    pub(crate) fn is_surely_code(&self, address: u64) -> bool {
        self.function_count() != 0 && self.function_before(address).is_some_and(|(function, _)| function.contains(address))
    }

    /// The last function that begins at `address` or before, as long as its unwind entry says, and
    /// where the next one begins.
    fn function_before(&self, address: u64) -> Option<(Range, u64)> {
        let count = self.function_count();
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            if self.function_start(middle).is_some_and(|start| start <= address) { low = middle + 1 } else { high = middle }
        }
        let index = low.checked_sub(1)?;
        let start = self.function_start(index)?;
        let next = if low < count { self.function_start(low).unwrap_or(u64::MAX) } else { u64::MAX };
        let end = self.function_bytes(index).map_or(next, |bytes| next.min(start.saturating_add(bytes)));
        Some((Range { start, end }, next))
    }

    /// Whether `address` is in an executable range and, as far as is known, in a function.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.is_text(address) && self.function(address).is_some()
    }

    fn function_count(&self) -> u64 {
        let header = self.eh_frame_hdr;
        let form = self.value::<4>(header).filter(|_| header != 0);
        match form {
            Some([version, _, EH_COUNT, table]) if table == EH_FRAME_HDR_FORM[1] && version == 1 => {
                u64::from(self.word(header + 8).unwrap_or(0))
            }
            _ => 0,
        }
    }

    fn function_start(&self, index: u64) -> Option<u64> {
        let distance = self.word(self.eh_frame_hdr + 12 + 8 * index)? as i32;
        Some(self.eh_frame_hdr.wrapping_add_signed(i64::from(distance)))
    }

    /// How long the function with this index is, if its unwind entry (a frame description, LSB 5.0,
    /// 10.6.1.1) is of a usual form.
    fn function_bytes(&self, index: u64) -> Option<u64> {
        let entry = self.eh_frame_hdr.wrapping_add_signed(i64::from(self.word(self.eh_frame_hdr + 16 + 8 * index)? as i32));
        let common = entry.checked_add(4)?.checked_sub(u64::from(self.word(entry.checked_add(4)?)?))?;
        // Length, reference, start, bytes.
        match self.pointer_bytes(common)? {
            4 => self.word(entry + 12).map(u64::from),
            _ => self.quad(entry + 16),
        }
    }

    /// How many bytes the addresses have in unwind entries with this common part: length, 0,
    /// version, augmentation, three numbers, then the augmentation's length and data.
    fn pointer_bytes(&self, common: u64) -> Option<u64> {
        let byte = |at: u64| self.value::<1>(at).map(|[byte]| byte);
        let letters = common.checked_add(9)?;
        let mut at = letters;
        while byte(at)? != 0 {
            at += 1;
        }
        at += 1;
        for _ in 0..4 {
            while byte(at)? & 0x80 != 0 {
                at += 1;
            }
            at += 1;
        }
        if byte(letters)? != b'z' {
            return None;
        }
        for index in 1.. {
            match byte(letters + index)? {
                b'R' => return encoded_bytes(byte(at)?),
                b'L' => at += 1,
                b'P' => at += 1 + encoded_bytes(byte(at)?)?,
                b'S' | b'B' => {}
                _ => return None,
            }
        }
        None
    }

    /// Calls `found` with every address in the text that data or symbols refer to: targets of
    /// relocations, symbols, function starts. Addresses outside the text may be reported too.
    pub(crate) fn referenced(&self, mut found: impl FnMut(u64)) {
        self.relocations(&mut found);
        self.packed_relocations(&mut found);
        for index in 0..self.symbol_count() {
            let symbol = self.dynamic_address(DT_SYMTAB).unwrap_or(0) + u64::from(index) * SYMBOL_BYTES;
            self.quad(symbol + 8).into_iter().for_each(&mut found);
        }
        for index in 0..self.function_count() {
            self.function_start(index).into_iter().for_each(&mut found);
        }
    }

    fn relocations(&self, found: &mut impl FnMut(u64)) {
        let (Some(start), Some(bytes)) = (self.dynamic_address(DT_RELA), self.dynamic(DT_RELASZ)) else { return };
        let Some(table) = self.bytes(Range { start, end: start + bytes }) else { return };
        for entry in table.chunks_exact(24) {
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| entry[at + index]));
            if matches!(word(8) as u32, R_X86_64_RELATIVE | R_X86_64_IRELATIVE) {
                found(word(16));
            }
        }
    }

    fn packed_relocations(&self, found: &mut impl FnMut(u64)) {
        let (Some(start), Some(bytes)) = (self.dynamic_address(DT_RELR), self.dynamic(DT_RELRSZ)) else { return };
        let Some(table) = self.bytes(Range { start, end: start + bytes }) else { return };
        let mut next = 0;
        let mut place = |address: u64| {
            // Before ld.so relocated it the word is a plain address, afterwards the bias has been
            // added.
            if let Some(value) = self.quad(address) {
                found(value);
                found(value.wrapping_sub(self.bias));
            }
        };
        for entry in table.chunks_exact(8) {
            let entry = u64::from_le_bytes(core::array::from_fn(|index| entry[index]));
            if entry & 1 == 0 {
                place(entry);
                next = entry + 8;
            } else {
                (0..63).filter(|bit| entry >> (bit + 1) & 1 == 1).for_each(|bit| place(next + 8 * bit));
                next += 8 * 63;
            }
        }
    }

    /// The value of the exported symbol `name`, found by walking the symbol table.
    pub(crate) fn symbol(&self, name: &[u8]) -> Option<u64> {
        let (table, strings) = (self.dynamic_address(DT_SYMTAB)?, self.dynamic_address(DT_STRTAB)?);
        for index in 0..u64::from(self.symbol_count()) {
            let symbol = table + index * SYMBOL_BYTES;
            let start = strings + u64::from(self.word(symbol)?);
            let end = start + name.len() as u64;
            if self.bytes(Range { start, end }) == Some(name) && self.value::<1>(end) == Some([0]) {
                return self.quad(symbol + 8);
            }
        }
        None
    }

    fn symbol_count(&self) -> u32 {
        if let Some(hash) = self.dynamic_address(DT_HASH) {
            return self.word(hash + 4).unwrap_or(0);
        }
        self.dynamic_address(DT_GNU_HASH).and_then(|hash| self.symbol_count_by_gnu_hash(hash)).unwrap_or(0)
    }

    /// The GNU hash table does not say how many symbols there are: the last chain's end does.
    fn symbol_count_by_gnu_hash(&self, hash: u64) -> Option<u32> {
        let (bucket_count, first, bloom) = (self.word(hash)?, self.word(hash + 4)?, self.word(hash + 8)?);
        let buckets = hash + 16 + 8 * u64::from(bloom);
        let chains = buckets + 4 * u64::from(bucket_count);
        let mut last = 0;
        for bucket in 0..u64::from(bucket_count) {
            last = last.max(self.word(buckets + 4 * bucket)?);
        }
        if last < first {
            return Some(first);
        }
        while self.word(chains + 4 * u64::from(last - first))? & 1 == 0 {
            last += 1;
        }
        Some(last + 1)
    }
}

/// How long an address of this encoding is (LSB 5.0, 10.5: DW_EH_PE_absptr, udata4, udata8, sdata4,
/// sdata8; none that is aligned).
fn encoded_bytes(encoding: u8) -> Option<u64> {
    match (encoding & 0x70, encoding & 0x0f) {
        (0x50, _) => None,
        (_, 0x00 | 0x04 | 0x0c) => Some(8),
        (_, 0x03 | 0x0b) => Some(4),
        _ => None,
    }
}

const EH_COUNT: u8 = EH_FRAME_HDR_FORM[0];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The test program itself, as ld.so mapped it.
    pub(crate) fn own_image() -> Image {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let line = maps.lines().find(|line| line.ends_with(own.to_str().unwrap())).unwrap();
        let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        // SAFETY: the kernel mapped the running program there.
        unsafe { Image::at(start) }.unwrap()
    }

    #[test]
    fn a_loaded_object_describes_itself() {
        let image = own_image();
        let here = (a_loaded_object_describes_itself as *const () as usize as u64).wrapping_sub(image.bias);
        assert!(image.is_text(here));
        let function = image.function(here + 1).unwrap();
        assert_eq!(function.start, here);
        assert!(function.end > here + 16);
        // The last byte is its own; what aligns the next one is nobody's, and neither is what lies
        // before all functions.
        assert_eq!(image.function(function.end - 1), Some(function));
        assert!(image.function(function.end).is_none_or(|next| next.start == function.end));
        assert_eq!(image.function(0), None);
        let lengths = (0..image.function_count()).filter(|index| image.function_bytes(*index).is_some()).count() as u64;
        assert_eq!(lengths, image.function_count());
        let mut starts = 0;
        image.referenced(|address| starts += u32::from(address == here));
        assert!(starts >= 1);
        assert!(!image.relocates_text());
        assert_eq!(image.bytes(Range { start: u64::MAX - 8, end: u64::MAX }), None);
    }
}
