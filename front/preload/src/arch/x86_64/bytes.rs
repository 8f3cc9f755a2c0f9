//! Machine code as bytes: what is searched for, and what is written.

/// The length of the instruction that replaces a site: `jmp rel32`.
pub(crate) const JUMP_BYTES: usize = 5;
/// `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov $15, %rax` before a `syscall`: the signal return of glibc, which unwinders recognise by its bytes.
pub(crate) const SIGRETURN_PREFIX: [u8; 7] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0];
/// What fills the bytes of a site behind the jump: `int3`.
pub(crate) const FILLER: u8 = 0xcc;

/// Bytes of the trampoline around the displaced instructions, at most.
pub(crate) const FRAME_BYTES_MAX: usize = 48;
/// Where the `jmp` to the end of the call lies, counted from the address the stub returns to.
const RESUME_JUMP: usize = 10;

/// Calls `found` with the offset of every `syscall` byte pair in `code`.
pub(crate) fn find_syscalls(code: &[u8], mut found: impl FnMut(usize)) {
    use core::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let mut offset = 0;
    while offset + 16 <= code.len() {
        // SAFETY: 16 bytes at `offset` lie within `code`; SSE2 is part of x86-64.
        let mut hits = unsafe {
            let block = _mm_loadu_si128(code.as_ptr().add(offset).cast::<__m128i>());
            _mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8(SYSCALL[1] as i8))) as u32
        };
        while hits != 0 {
            let second = offset + hits.trailing_zeros() as usize;
            hits &= hits - 1;
            if second > 0 && code[second - 1] == SYSCALL[0] {
                found(second - 1);
            }
        }
        offset += 16;
    }
    for second in offset.max(1)..code.len() {
        if code[second] == SYSCALL[1] && code[second - 1] == SYSCALL[0] {
            found(second - 1);
        }
    }
}

/// Calls `found` with the target of everything in `code` (at `address`) that looks like a near jump, conditional or not.
///
/// A superset: byte values inside other instructions are reported too.
pub(crate) fn find_near_jumps(code: &[u8], address: u64, mut found: impl FnMut(u64)) {
    let mut at = 0;
    while at + JUMP_BYTES <= code.len() {
        let displacement = match code[at] {
            0xe9 => at + 1,
            0x0f if code[at + 1] & 0xf0 == 0x80 && at + 6 <= code.len() => at + 2,
            _ => {
                at += 1;
                continue;
            }
        };
        let bytes = [code[displacement], code[displacement + 1], code[displacement + 2], code[displacement + 3]];
        let end = address + displacement as u64 + 4;
        found(end.wrapping_add_signed(i64::from(i32::from_le_bytes(bytes))));
        at += 1;
    }
}

/// `jmp target` as placed at `address`; None beyond the reach of 2 GiB.
pub(crate) fn jump(address: u64, target: u64) -> Option<[u8; JUMP_BYTES]> {
    let reach = i32::try_from(target.wrapping_sub(address + JUMP_BYTES as u64) as i64).ok()?.to_le_bytes();
    Some([0xe9, reach[0], reach[1], reach[2], reach[3]])
}

/// Writes machine code forwards from an address it will run at.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    address: u64,
    length: usize,
    fits: bool,
}

impl<'a> Writer<'a> {
    /// Code that will run at `address`, written to `buffer`.
    pub(crate) const fn new(buffer: &'a mut [u8], address: u64) -> Self {
        Self { buffer, address, length: 0, fits: true }
    }

    /// The address of the next byte.
    pub(crate) const fn here(&self) -> u64 {
        self.address + self.length as u64
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.length..self.length + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.fits = false,
        }
        self.length += bytes.len();
    }

    /// Overwrites the four bytes at `position` of what was written so far with the distance from `end` to `target`.
    pub(crate) fn fix(&mut self, position: u64, end: u64, target: u64) {
        let at = (position - self.address) as usize;
        match (i32::try_from(target.wrapping_sub(end) as i64), self.buffer.get_mut(at..at + 4)) {
            (Ok(distance), Some(place)) => place.copy_from_slice(&distance.to_le_bytes()),
            _ => self.fits = false,
        }
    }

    /// Appends `jmp target`.
    pub(crate) fn jump(&mut self, target: u64) {
        match jump(self.here(), target) {
            Some(bytes) => self.put(&bytes),
            None => self.fits = false,
        }
    }

    /// Appends: step over the red zone, call through the pointer at `slot`, step back; then, with `rcx` not 0, jump to a place
    /// given later by [`Self::resume_here`]. Returns a handle for that.
    pub(crate) fn call_entry(&mut self, slot: u64) -> u64 {
        self.put(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp, [rsp - 128]
        self.put(&[0xff, 0x15, 0, 0, 0, 0]); // call [rip + slot]
        let resume = self.here();
        self.fix(resume - 4, resume, slot);
        self.put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp, [rsp + 128]
        self.put(&[0xe3, JUMP_BYTES as u8]); // jrcxz over the jump
        self.put(&[0xe9, 0, 0, 0, 0]);
        resume
    }

    /// Makes the jump of the [`Self::call_entry`] that returned `resume` lead to `target`.
    pub(crate) fn resume_at(&mut self, resume: u64, target: u64) {
        let end = resume + (RESUME_JUMP + JUMP_BYTES) as u64;
        self.fix(end - 4, end, target);
    }

    /// The number of bytes written, or None if something was out of room or reach.
    pub(crate) const fn finish(self) -> Option<usize> {
        if self.fits { Some(self.length) } else { None }
    }
}

/// Where the program goes on after the call whose stub returns to `resume`: the instruction behind the system call.
///
/// # Safety
/// `resume` is such an address: the trampoline was written by [`Writer::call_entry`] and is mapped.
pub(crate) unsafe fn continuation(resume: usize) -> usize {
    let end = resume + RESUME_JUMP + JUMP_BYTES;
    // SAFETY: the caller's promise: the four bytes before `end` are the displacement of that jump.
    let distance = unsafe { ((end - 4) as *const i32).read_unaligned() };
    end.wrapping_add_signed(distance as isize)
}

/// Where the program goes on if the instruction is still to run: the trampoline's code behind that jump, which is either the
/// system call itself or a jump to it.
///
/// # Safety
/// As for [`continuation`].
pub(crate) unsafe fn instruction(resume: usize) -> usize {
    let at = resume + RESUME_JUMP + JUMP_BYTES;
    // SAFETY: the caller's promise: at least five bytes of trampoline lie here.
    let (opcode, distance) = unsafe { (*(at as *const u8), ((at + 1) as *const i32).read_unaligned()) };
    if opcode == 0xe9 { (at + JUMP_BYTES).wrapping_add_signed(distance as isize) } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syscalls_are_found_at_every_position() {
        for position in 0..70 {
            let mut code = [0x90u8; 80];
            code[position..position + 2].copy_from_slice(&SYSCALL);
            let mut found = std::vec::Vec::new();
            find_syscalls(&code, |offset| found.push(offset));
            assert_eq!(found, [position]);
        }
        find_syscalls(&[], |_| panic!());
        find_syscalls(&[5], |_| panic!());
    }

    #[test]
    fn jumps_report_their_targets() {
        let code = [0x90, 0xe9, 0x10, 0, 0, 0, 0x0f, 0x84, 0xf0, 0xff, 0xff, 0xff];
        let mut found = std::vec::Vec::new();
        find_near_jumps(&code, 0x1000, |target| found.push(target));
        assert_eq!(found, [0x1016, 0xffc]);
    }

    #[test]
    fn a_call_knows_where_it_resumes() {
        let mut buffer = [0u8; 64];
        let address = buffer.as_ptr() as u64;
        let mut writer = Writer::new(&mut buffer, address);
        let resume = writer.call_entry(address + 56);
        writer.jump(address + 1000);
        writer.resume_at(resume, address + 1002);
        assert!(writer.finish().is_some());
        // SAFETY: `resume` is what call_entry returned for code that lies in `buffer`.
        unsafe {
            assert_eq!(continuation(resume as usize) as u64, address + 1002);
            assert_eq!(instruction(resume as usize) as u64, address + 1000);
        }
        assert!(jump(0x1000, 0x1000 + (1 << 33)).is_none());
    }
}
