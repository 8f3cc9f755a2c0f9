//! One store instruction, done for the processor: where it goes, what it stores, and how the
//! registers are afterwards.
//!
//! The pages of members are read-only to the recorded engine, so each of its stores faults. It is
//! decoded here, its bytes go to another mapping of the same file, and the engine goes on behind
//! it.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The registers of an interrupted thread.
pub(crate) struct Registers<'a> {
    pub(crate) general: &'a mut [libc::greg_t; 23],
    /// The kernel's xsave area.
    pub(crate) extended: *const u8,
}

/// A decoded store.
pub(crate) struct Store {
    pub(crate) address: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) streamed: bool,
    /// Bytes of the instruction.
    length: usize,
    after: After,
}

/// What else the instruction does.
enum After {
    Nothing,
    /// Loads what was there into a register (xchg).
    Load(Register),
    /// Steps pointers (movs, stos) and, repeated, the count.
    Strings {
        bytes: usize,
        reads: bool,
        repeated: bool,
    },
}

const XSAVE_BITS: usize = 512;

/// Where the kernel has a general register.
fn index_of(register: Register) -> Option<i32> {
    use Register::*;
    Some(match register.full_register() {
        RAX => libc::REG_RAX,
        RBX => libc::REG_RBX,
        RCX => libc::REG_RCX,
        RDX => libc::REG_RDX,
        RSI => libc::REG_RSI,
        RDI => libc::REG_RDI,
        RBP => libc::REG_RBP,
        RSP => libc::REG_RSP,
        R8 => libc::REG_R8,
        R9 => libc::REG_R9,
        R10 => libc::REG_R10,
        R11 => libc::REG_R11,
        R12 => libc::REG_R12,
        R13 => libc::REG_R13,
        R14 => libc::REG_R14,
        R15 => libc::REG_R15,
        _ => return Option::None,
    })
}

impl Registers<'_> {
    pub(super) fn general(&self, register: Register) -> Option<u64> {
        let index = if register.full_register() == Register::RIP { Some(libc::REG_RIP) } else { index_of(register) };
        index.map(|index| self.general[index as usize] as u64)
    }

    fn set_general(&mut self, register: Register, value: u64) {
        let Some(index) = index_of(register).filter(|&index| index != libc::REG_RSP) else { return };
        let old = self.general[index as usize] as u64;
        self.general[index as usize] = match register.size() {
            8 => value,
            4 => value & 0xffff_ffff,
            2 => old & !0xffff | value & 0xffff,
            _ => old & !0xff | value & 0xff,
        } as libc::greg_t;
    }

    /// The value of a register, lowest byte first.
    fn value(&self, register: Register) -> Option<Vec<u8>> {
        if let Some(whole) = self.general(register) {
            let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
            let shifted = if high { whole >> 8 } else { whole };
            return Some(shifted.to_le_bytes()[..register.size()].to_vec());
        }
        if !register.is_vector_register() {
            return None;
        }
        let number = register.number();
        // In the order of the lowest bytes: xmm, what ymm adds, what zmm adds; zmm16 and higher lie
        // in one piece.
        let pieces = if number < 16 {
            vec![self.part(0, 160 + number * 16, 16), self.part(2, 576 + number * 16, 16), self.component(6, number * 32, 32)]
        } else {
            vec![self.component(7, (number - 16) * 64, 64)]
        };
        let mut value = pieces.concat();
        value.truncate(register.size());
        Some(value)
    }

    /// Bytes of a part of the xsave area (Intel SDM volume 1, 13.4: standard format); zeros if it
    /// was not stored.
    fn part(&self, component: u32, at: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: the kernel's xsave area: 512 bytes of fxsave, a header whose first word says
        // which further parts were stored, and those. The caller knows where they lie.
        unsafe {
            let stored = self.extended.add(XSAVE_BITS).cast::<u64>().read_unaligned();
            if component >= 2 && stored >> component & 1 == 0 {
                return vec![0; bytes];
            }
            std::slice::from_raw_parts(self.extended.add(at), bytes).to_vec()
        }
    }

    /// The same of a part whose place the processor tells.
    fn component(&self, component: u32, at: usize, bytes: usize) -> Vec<u8> {
        let leaf = std::arch::x86_64::__cpuid_count(0xd, component);
        if leaf.eax == 0 { vec![0; bytes] } else { self.part(component, leaf.ebx as usize + at, bytes) }
    }

    /// The value of a mask register (k0 to k7).
    fn mask(&self, register: Register) -> u64 {
        let bytes = self.component(5, register.number() * 8, 8);
        bytes.iter().rev().fold(0, |mask, &byte| mask << 8 | u64::from(byte))
    }
}

/// Decodes the store that a thread is about to execute; `text` is its code. None if it is none of
/// those the engine is known to use.
pub(crate) fn decode(registers: &Registers<'_>, text: &[u8]) -> Option<Store> {
    let at = registers.general(Register::RIP)?;
    let instruction = Decoder::with_ip(64, text, at, DecoderOptions::NONE).decode();
    if instruction.code() == Code::INVALID {
        return None;
    }
    if instruction.is_string_instruction() {
        return string_store(registers, &instruction);
    }
    if instruction.op0_kind() != OpKind::Memory {
        return None;
    }
    let address = instruction.virtual_address(0, 0, |register, _, _| {
        // Segments other than these two begin at 0.
        if matches!(register, Register::FS | Register::GS) { None } else { registers.general(register).or(Some(0)) }
    })? as usize;
    let length = instruction.memory_size().size();
    let after = if instruction.mnemonic() == Mnemonic::Xchg { After::Load(instruction.op1_register()) } else { After::Nothing };
    let mut bytes = stored_value(registers, &instruction)?;
    bytes.truncate(length);
    if instruction.op_mask() != Register::None {
        let mask = registers.mask(instruction.op_mask());
        // Partial lines: the lowest bytes of a register.
        let kept = mask.trailing_ones() as usize;
        if instruction.mnemonic() != Mnemonic::Vmovdqu8 || mask.checked_shr(kept as u32).unwrap_or(0) != 0 {
            return None;
        }
        bytes.truncate(kept);
    }
    let streamed = is_streamed(instruction.mnemonic());
    Some(Store { address, bytes, streamed, length: instruction.len(), after })
}

const fn is_streamed(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Movnti | Movntdq | Movntps | Movntpd | Vmovntdq | Vmovntps | Vmovntpd)
}

fn stored_value(registers: &Registers<'_>, instruction: &Instruction) -> Option<Vec<u8>> {
    use Mnemonic::*;
    let register = || registers.value(instruction.op1_register());
    match instruction.mnemonic() {
        Mov if instruction.op1_kind() != OpKind::Register => Some(instruction.immediate(1).to_le_bytes().to_vec()),
        Mov | Xchg | Movnti | Movups | Movaps | Movupd | Movapd | Movdqu | Movdqa | Movntdq | Movntps | Movntpd | Movq | Movd
        | Movss | Movsd | Movlps | Movlpd | Vmovups | Vmovaps | Vmovupd | Vmovapd | Vmovdqu | Vmovdqa | Vmovntdq | Vmovntps
        | Vmovntpd | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 | Vmovdqa32 | Vmovdqa64 | Vmovq | Vmovd | Vmovss | Vmovsd
        | Vmovlps | Vmovlpd => register(),
        Movhps | Movhpd | Vmovhps | Vmovhpd => register().map(|value| value[8..].to_vec()),
        Vextracti128 | Vextractf128 => register().map(|value| value[16 * (instruction.immediate(2) as usize & 1)..].to_vec()),
        _ => None,
    }
}

/// movs and stos, repeated or not, forwards.
fn string_store(registers: &Registers<'_>, instruction: &Instruction) -> Option<Store> {
    use Mnemonic::*;
    let (each, reads) = match instruction.mnemonic() {
        Movsb => (1, true),
        Movsq => (8, true),
        Stosb => (1, false),
        Stosq => (8, false),
        _ => return None,
    };
    let repeated = instruction.has_rep_prefix();
    let count = if repeated { registers.general(Register::RCX)? as usize } else { 1 };
    let length = count * each;
    let bytes = if reads {
        // SAFETY: the thread is about to load these bytes itself.
        unsafe { std::slice::from_raw_parts(registers.general(Register::RSI)? as *const u8, length) }.to_vec()
    } else {
        registers.general(Register::RAX)?.to_le_bytes()[..each].repeat(count)
    };
    let address = registers.general(Register::RDI)? as usize;
    Some(Store {
        address,
        bytes,
        streamed: false,
        length: instruction.len(),
        after: After::Strings { bytes: length, reads, repeated },
    })
}

impl Store {
    /// Puts the bytes to `to`, another mapping of the same place, and moves the thread behind its
    /// instruction.
    ///
    /// # Safety
    /// `to` is mapped for as many bytes as are stored.
    pub(crate) unsafe fn finish(&self, to: *mut u8, registers: &mut Registers<'_>) {
        if let After::Load(register) = self.after {
            let mut old = [0; 8];
            // SAFETY: the caller's promise; at most eight bytes are exchanged.
            unsafe { std::ptr::copy_nonoverlapping(to, old.as_mut_ptr(), self.bytes.len()) };
            registers.set_general(register, u64::from_le_bytes(old));
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), to, self.bytes.len()) };
        if let After::Strings { bytes, reads, repeated } = self.after {
            registers.general[libc::REG_RDI as usize] += bytes as libc::greg_t;
            if reads {
                registers.general[libc::REG_RSI as usize] += bytes as libc::greg_t;
            }
            if repeated {
                registers.general[libc::REG_RCX as usize] = 0;
            }
        }
        registers.general[libc::REG_RIP as usize] += self.length as libc::greg_t;
    }
}
