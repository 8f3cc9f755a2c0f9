//! The x86-64 instructions of the patcher, as bytes: it searches the code of programs for some, and
//! writes others into sites and trampolines.

/// Bytes of the `jmp rel32` at the beginning of a patched site.
pub(crate) const JUMP_BYTES: usize = 5;
/// `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov rax, 15` before a `syscall` is glibc's signal return. Unwinders recognise it by these
/// bytes, so such a site is not patched.
pub(crate) const SIGRETURN_PREFIX: [u8; 7] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0];
/// What fills the bytes of a site behind the jump: `int3`.
pub(crate) const FILLER: u8 = 0xcc;

/// The most bytes that a trampoline has besides the displaced instructions: those of
/// [`Writer::call_entry`], a `syscall` and a jump, and some to spare.
pub(crate) const FRAME_BYTES_MAX: usize = 48;
/// `lea rsp, [rsp + 128]`, behind the call of a trampoline.
const STEP_BACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
/// `jrcxz` over the jump behind it.
const SKIP_JUMP: [u8; 2] = [0xe3, JUMP_BYTES as u8];
/// Offset of the jump in [`Writer::call_entry`], counted from the return address of the call. The
/// unwind entry in `entry.rs` has the same number.
const RESUME_JUMP: usize = STEP_BACK.len() + SKIP_JUMP.len();
const _: () = assert!(RESUME_JUMP == 10);

/// Whether `code` begins with an instruction that loads the number of a system call: `mov eax,
/// constant`, `mov rax, constant`, or a move ([`is_move`]).
pub(crate) fn begins_load(code: &[u8]) -> bool {
    matches!(code, [0xb8, ..] | [0x48, 0xc7, 0xc0, ..]) || is_move(code)
}

/// Whether `code` begins with a move of 64 bits to a register, from another one or from memory.
pub(crate) const fn is_move(code: &[u8]) -> bool {
    matches!(code, [0x48..=0x4f, 0x8b, ..] | [0x48..=0x4f, 0x89, 0xc0..=0xff, ..])
}

/// Calls `found` with the offset of every pair of bytes in `code` that would be a `syscall`, in
/// ascending order. Pairs in the middle of other instructions are reported too.
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

/// Calls `found` with the target of everything in `code` (at `address`) that looks like a jump with
/// a displacement of 32 bits, conditional or not (`e9`, `0f 80` to `0f 8f`).
///
/// A superset: byte values inside other instructions are reported too. Short jumps (`eb`, `70` to
/// `7f`) are not looked for.
pub(crate) fn find_near_jumps(code: &[u8], address: u64, mut found: impl FnMut(u64)) {
    let mut at = 0;
    while at + JUMP_BYTES <= code.len() {
        let field = match code[at] {
            0xe9 => at + 1,
            0x0f if code[at + 1] & 0xf0 == 0x80 && at + 6 <= code.len() => at + 2,
            _ => {
                at += 1;
                continue;
            }
        };
        let bytes = [code[field], code[field + 1], code[field + 2], code[field + 3]];
        let end = address + field as u64 + 4;
        found(end.wrapping_add_signed(i64::from(i32::from_le_bytes(bytes))));
        at += 1;
    }
}

/// The bytes of `jmp target` for an instruction that stands at `address`. None if `target` is 2 GiB
/// or more away.
pub(crate) fn jump(address: u64, target: u64) -> Option<[u8; JUMP_BYTES]> {
    let distance = i32::try_from(target.wrapping_sub(address + JUMP_BYTES as u64) as i64).ok()?.to_le_bytes();
    Some([0xe9, distance[0], distance[1], distance[2], distance[3]])
}

/// Writes machine code into a buffer, in ascending order. The code will run at `address`, which
/// need not be the buffer's.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    address: u64,
    length: usize,
    /// False once a byte had no room or a target was out of reach.
    is_good: bool,
}

impl<'a> Writer<'a> {
    /// Code that will run at `address`, written to `buffer`.
    pub(crate) const fn new(buffer: &'a mut [u8], address: u64) -> Self {
        Self { buffer, address, length: 0, is_good: true }
    }

    /// The address of the next byte.
    pub(crate) const fn here(&self) -> u64 {
        self.address + self.length as u64
    }

    /// Appends bytes. Bytes without room are only counted, and [`Self::finish`] returns None.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.length..self.length + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.is_good = false,
        }
        self.length += bytes.len();
    }

    /// Stores, in the four bytes that will lie at address `position`, the distance from address
    /// `end` to address `target`. Those bytes have been written.
    pub(crate) fn fix(&mut self, position: u64, end: u64, target: u64) {
        let at = (position - self.address) as usize;
        match (i32::try_from(target.wrapping_sub(end) as i64), self.buffer.get_mut(at..at + 4)) {
            (Ok(distance), Some(place)) => place.copy_from_slice(&distance.to_le_bytes()),
            _ => self.is_good = false,
        }
    }

    /// Appends `jmp target`.
    pub(crate) fn jump(&mut self, target: u64) {
        match jump(self.here(), target) {
            Some(bytes) => self.put(&bytes),
            None => self.is_good = false,
        }
    }

    /// Appends code that
    /// 1. lowers the stack pointer by 128, so that the program's red zone (the bytes below its
    ///    stack pointer that it may use) is kept,
    /// 2. calls the function whose address lies in memory at `pointer`,
    /// 3. raises the stack pointer again,
    /// 4. jumps to the place that [`Self::resume_at`] sets, if the function returned with `rcx` not
    ///    0: the system call is done; otherwise goes on behind, where the program's `syscall` is
    ///    still to run.
    ///
    /// Returns the address behind the call, which `resume_at`, [`continuation`] and [`instruction`]
    /// take.
    pub(crate) fn call_entry(&mut self, pointer: u64) -> u64 {
        self.put(&[0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp, [rsp - 128]
        self.put(&[0xff, 0x15, 0, 0, 0, 0]); // call [pointer]; `fix` sets the distance
        let resume = self.here();
        self.fix(resume - 4, resume, pointer);
        self.put(&STEP_BACK);
        self.put(&SKIP_JUMP);
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
        if self.is_good { Some(self.length) } else { None }
    }
}

/// Where the program goes on when its system call is done: the target that [`Writer::resume_at`]
/// set in the trampoline whose call returns to `resume`, which is the instruction behind the
/// program's `syscall`.
///
/// # Safety
/// [`Writer::call_entry`] returned `resume`, [`Writer::resume_at`] was called for it, and the
/// trampoline is mapped.
pub(crate) unsafe fn continuation(resume: usize) -> usize {
    let end = resume + RESUME_JUMP + JUMP_BYTES;
    // SAFETY: the caller's promise: the four bytes before `end` are the displacement of that jump.
    let distance = unsafe { ((end - 4) as *const i32).read_unaligned() };
    end.wrapping_add_signed(distance as isize)
}

/// Where the program goes on if its `syscall` is still to run. Behind the jump of `resume_at` a
/// trampoline has either a `jmp` to the program's own `syscall`, whose target is returned, or the
/// `syscall` itself, whose address is returned.
///
/// # Safety
/// As for [`continuation`]; at least five bytes of the trampoline's area follow the jump of
/// `resume_at` ([`FRAME_BYTES_MAX`] has room for them).
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
        // The search goes by blocks of 16 bytes: the code has four whole blocks, and from 0 to 16
        // bytes behind them.
        for length in 64..=80 {
            for position in 0..=length - 2 {
                let mut code = std::vec![0x90u8; length];
                code[position..position + 2].copy_from_slice(&SYSCALL);
                let mut found = std::vec::Vec::new();
                find_syscalls(&code, |offset| found.push(offset));
                assert_eq!(found, [position], "of {length}");
            }
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
    fn both_ways_on_are_read_from_a_trampoline() {
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
    }

    #[test]
    fn a_jump_reaches_less_than_2_gib() {
        assert!(jump(0x1000, 0x1000 + (1 << 33)).is_none());
        assert!(jump(0x1000, 0x1000 + (1 << 31)).is_some());
        assert!(jump(0x1000, 0x1005 + (1 << 31)).is_none());
    }
}
