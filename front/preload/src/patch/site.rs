//! One `syscall` instruction, and the instructions that make room for the jump to its trampoline.
//!
//! **Before** (preferred): the instructions in front of it move to the trampoline; it stays where
//! it is and runs in place when the call is the kernel's, so cancellation points, unwinding and
//! clone see what they always saw. **Around**: where there is no room in front, it moves too, with
//! instructions behind it.
//!
//! A moved instruction is stored as position-independent bytes and fix-ups, so a known site is
//! patched without decoding. The record is the on-disk form of the cache (fixed size, little
//! endian).

use crate::arch::bytes::SYSCALL;
use crate::arch::decode::{Flow, Step};
use core::fmt;

/// The most bytes a site may displace.
pub(crate) const DISPLACED_BYTES_MAX: usize = 24;
/// The most bytes displaced instructions may take after the move.
pub(crate) const MOVED_BYTES_MAX: usize = 40;
/// The most fix-ups of one site.
pub(crate) const FIXUP_COUNT_MAX: usize = 4;
/// The number of a site whose number is not constant.
pub(crate) const NUMBER_UNKNOWN: u32 = u32::MAX;

/// Why there are system calls of an object's that no site stands for. The numbers are those of the
/// cache's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gap {
    /// It is one of Go's ([`super::go`]).
    Go = 1,
    /// Its code makes some where no unwind entry is.
    Outside = 2,
    /// Relocations change its instructions.
    Relocated = 3,
}

impl Gap {
    /// The one with this number; None in the place of 0. The outer None: there is none.
    pub(crate) const fn of_code(code: u64) -> Option<Option<Self>> {
        match code {
            0 => Some(None),
            1 => Some(Some(Self::Go)),
            2 => Some(Some(Self::Outside)),
            _ => None,
        }
    }
}

/// What is said of the object.
impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Go => "is written in Go, whose runtime makes its own system calls",
            Self::Outside => "makes system calls in code without unwind entries",
            Self::Relocated => "makes system calls in code that is relocated",
        })
    }
}

/// A 4-byte distance inside moved code that depends on where the code lands.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixup {
    /// What it leads to, as an address of the object before relocation.
    pub(crate) target: u64,
    /// Where it lies in `moved`.
    pub(crate) position: u8,
    /// Where its instruction ends in `moved`: distances count from there.
    pub(crate) end: u8,
    reserved: [u8; 6],
}

/// A site and all that is needed to patch it. Addresses are the object's own, before relocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The first displaced byte, where the jump goes.
    pub(crate) start: u64,
    /// The system call number, or [`NUMBER_UNKNOWN`].
    pub(crate) number: u32,
    /// Displaced bytes; with Before they end at the instruction, with Around behind it.
    pub(crate) displaced: u8,
    /// Where in the displaced bytes the instruction lies; equals `displaced` with Before.
    pub(crate) instruction: u8,
    /// Moved bytes that run before the call.
    pub(crate) moved_before: u8,
    /// Moved bytes that run after it.
    pub(crate) moved_after: u8,
    /// What the displaced bytes and the instruction must be for this record to hold.
    pub(crate) original: [u8; DISPLACED_BYTES_MAX],
    pub(crate) moved: [u8; MOVED_BYTES_MAX],
    pub(crate) fixups: [Fixup; FIXUP_COUNT_MAX],
    pub(crate) fixup_count: u8,
    /// 1 if the last moved instruction never falls through.
    pub(crate) ends: u8,
    reserved: [u8; 6],
}

/// The size of a record, part of the cache's format.
pub(crate) const SITE_BYTES: usize = size_of::<Site>();
const _: () = assert!(SITE_BYTES == 152 && size_of::<Fixup>() == 16);

impl Site {
    /// Whether the instruction stays in place.
    pub(crate) const fn stays(&self) -> bool {
        self.instruction == self.displaced
    }

    /// The address of the instruction.
    pub(crate) const fn syscall(&self) -> u64 {
        self.start + self.instruction as u64
    }

    /// The bytes that must be found at `start`.
    pub(crate) fn original(&self) -> &[u8] {
        let length = if self.stays() { self.displaced as usize + SYSCALL.len() } else { self.displaced as usize };
        &self.original[..length.min(DISPLACED_BYTES_MAX)]
    }

    /// Whether the lengths are within bounds, which a record from a file must prove.
    pub(crate) fn is_sound(&self) -> bool {
        let moved = self.moved_before as usize + self.moved_after as usize;
        let original = self.displaced as usize + if self.stays() { SYSCALL.len() } else { 0 };
        moved <= MOVED_BYTES_MAX
            && original <= DISPLACED_BYTES_MAX
            && self.displaced as usize >= crate::arch::bytes::JUMP_BYTES
            && self.instruction <= self.displaced
            && self.fixup_count as usize <= FIXUP_COUNT_MAX
            && self.fixups[..self.fixup_count as usize]
                .iter()
                .all(|f| f.position as usize + 4 <= f.end as usize && f.end as usize <= moved)
            && self.original.get(self.instruction as usize..self.instruction as usize + 2) == Some(&SYSCALL[..])
    }

    /// The site that displaces `steps`, consecutive instructions of which `steps[syscall]` is the
    /// system call, or, with `syscall == steps.len()`, the one right behind them. `code_at` gives
    /// the bytes of an instruction. None if an instruction cannot be moved or room is short.
    pub(crate) fn new<'a>(
        steps: &[Step],
        syscall: usize,
        number: Option<u32>,
        code_at: impl Fn(&Step) -> &'a [u8],
    ) -> Option<Self> {
        let (start, end) = (steps.first()?.address, steps.last()?.end());
        let mut mover =
            Mover { moved: [0; MOVED_BYTES_MAX], length: 0, fixups: [Fixup::default(); FIXUP_COUNT_MAX], fixup_count: 0 };
        let mut original = [0; DISPLACED_BYTES_MAX];
        let (mut moved_before, mut instruction, mut taken) = (None, end - start, 0);
        for (index, step) in steps.iter().enumerate() {
            let bytes = code_at(step);
            original.get_mut(taken..taken + bytes.len())?.copy_from_slice(bytes);
            taken += bytes.len();
            if index == syscall {
                (moved_before, instruction) = (Some(mover.length), step.address - start);
            } else {
                mover.step(step, bytes)?;
            }
        }
        if syscall == steps.len() {
            original.get_mut(taken..taken + SYSCALL.len())?.copy_from_slice(&SYSCALL);
        }
        let before = moved_before.unwrap_or(mover.length);
        Some(Self {
            start,
            number: number.unwrap_or(NUMBER_UNKNOWN),
            displaced: (end - start) as u8,
            instruction: instruction as u8,
            moved_before: before as u8,
            moved_after: (mover.length - before) as u8,
            original,
            moved: mover.moved,
            fixups: mover.fixups,
            fixup_count: mover.fixup_count as u8,
            ends: u8::from(matches!(steps.last()?.flow, Flow::Away | Flow::Jump)),
            reserved: [0; 6],
        })
    }
}

/// Collects moved instructions.
struct Mover {
    moved: [u8; MOVED_BYTES_MAX],
    length: usize,
    fixups: [Fixup; FIXUP_COUNT_MAX],
    fixup_count: usize,
}

impl Mover {
    fn step(&mut self, step: &Step, bytes: &[u8]) -> Option<()> {
        match step.flow {
            Flow::Branch => {
                // Short or near, the condition is the low half of the last opcode byte.
                let opcode = match *bytes {
                    [0x0f, near, ..] => near,
                    [short @ 0x70..=0x7f, ..] => short,
                    _ => return None,
                };
                self.put(&[0x0f, 0x80 | opcode & 0x0f, 0, 0, 0, 0])?;
                self.fix(self.length - 4, step.target)
            }
            Flow::Jump => {
                self.put(&[0xe9, 0, 0, 0, 0])?;
                self.fix(self.length - 4, step.target)
            }
            Flow::Next | Flow::Away => {
                let start = self.length;
                self.put(bytes)?;
                match step.relative {
                    Some((target, position)) => self.fix(start + position as usize, target),
                    None => Some(()),
                }
            }
            Flow::Syscall | Flow::Fixed => None,
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.moved.get_mut(self.length..self.length + bytes.len())?.copy_from_slice(bytes);
        self.length += bytes.len();
        Some(())
    }

    fn fix(&mut self, position: usize, target: u64) -> Option<()> {
        let fixup = Fixup { target, position: position as u8, end: self.length as u8, reserved: [0; 6] };
        *self.fixups.get_mut(self.fixup_count)? = fixup;
        self.fixup_count += 1;
        Some(())
    }
}
