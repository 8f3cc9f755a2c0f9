//! Decoding instructions: iced-x86 behind one function, [`decode`].
//!
//! It is needed only for an object seen for the first time; after that the site cache knows
//! everything.

use heap::vec::Vec;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Where control goes after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// To the next instruction.
    Next,
    /// The `syscall` instruction.
    Syscall,
    /// To the next instruction or `target`; can be moved (`jcc`).
    Branch,
    /// To `target`; can be moved.
    Jump,
    /// Away for good, needing nothing of its place: `ret`, `jmp` through a register or memory.
    Away,
    /// A call, a loop instruction or an undecodable byte: not to be moved.
    Fixed,
}

/// What an instruction does to the register that holds the number of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    Kept,
    Constant(u32),
    Unknown,
}

/// A table of jump targets an instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    None,
    /// 4-byte distances from the table's own address.
    Relative(u64),
    /// 8-byte addresses.
    Absolute(u64),
}

/// One instruction, as far as patching is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) address: u64,
    pub(crate) bytes: u8,
    pub(crate) flow: Flow,
    /// Where a branch or jump leads; 0 for others.
    pub(crate) target: u64,
    /// The address a position-dependent memory operand or `lea` means, and where in the instruction
    /// its distance lies.
    pub(crate) relative: Option<(u64, u8)>,
    pub(crate) number: Number,
    pub(crate) table: Table,
}

impl Step {
    pub(crate) const fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }
}

/// Appends every instruction of `code`, which lies at `address`, to `steps`.
pub(crate) fn decode(code: &[u8], address: u64, steps: &mut Vec<Step>) {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let offsets = decoder.get_constant_offsets(&instruction);
        let relative = instruction
            .is_ip_rel_memory_operand()
            .then(|| (instruction.ip_rel_memory_address(), offsets.displacement_offset() as u8));
        let (flow, target) = flow(&instruction);
        steps.push(Step {
            address: instruction.ip(),
            bytes: instruction.len() as u8,
            flow,
            target,
            relative,
            number: number(&instruction),
            table: table(&instruction),
        });
    }
}

fn flow(instruction: &Instruction) -> (Flow, u64) {
    let target = match instruction.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => instruction.near_branch_target(),
        _ => 0,
    };
    let flow = match instruction.flow_control() {
        _ if instruction.mnemonic() == Mnemonic::Syscall => Flow::Syscall,
        _ if instruction.is_invalid() => Flow::Fixed,
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => Flow::Branch,
        FlowControl::UnconditionalBranch if target != 0 => Flow::Jump,
        FlowControl::Return | FlowControl::IndirectBranch => Flow::Away,
        _ => Flow::Fixed,
    };
    (flow, target)
}

fn number(instruction: &Instruction) -> Number {
    use Mnemonic::{Bt, Cmp, Mov, Push, Test, Xor};
    if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        return Number::Unknown;
    }
    let to_rax = instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == Register::RAX;
    let exchanged = instruction.mnemonic() == Mnemonic::Xchg
        || instruction.mnemonic() == Mnemonic::Cpuid
        || instruction.mnemonic() == Mnemonic::Cmpxchg;
    if !to_rax && !exchanged {
        return Number::Kept;
    }
    let whole = matches!(instruction.op0_register(), Register::EAX | Register::RAX);
    match instruction.mnemonic() {
        Cmp | Test | Push | Bt => Number::Kept,
        Mov if whole && matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64) => {
            Number::Constant(instruction.immediate32())
        }
        Xor if whole
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register() =>
        {
            Number::Constant(0)
        }
        _ => Number::Unknown,
    }
}

fn table(instruction: &Instruction) -> Table {
    if instruction.is_ip_rel_memory_operand() {
        return match instruction.mnemonic() {
            Mnemonic::Lea => Table::Relative(instruction.ip_rel_memory_address()),
            _ => Table::None,
        };
    }
    let indexed = instruction.memory_base() == Register::None
        && instruction.memory_index() != Register::None
        && instruction.memory_index_scale() == 8;
    if indexed { Table::Absolute(instruction.memory_displacement64()) } else { Table::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_told_apart_by_what_moving_it_needs() {
        // xor eax, eax; je +2; mov rcx, [rip + 0x10]; syscall; ret; jmp -2; call 0; mov eax, 0x101;
        // lea rdx, [rip - 4]
        let code = [
            0x31, 0xc0, 0x74, 0x02, 0x48, 0x8b, 0x0d, 0x10, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xeb, 0xfe, 0xe8, 0, 0, 0, 0, 0xb8, 1, 1,
            0, 0, 0x48, 0x8d, 0x15, 0xfc, 0xff, 0xff, 0xff,
        ];
        let mut steps = Vec::new();
        decode(&code, 0x1000, &mut steps);
        let flows: Vec<_> = steps.iter().map(|step| step.flow).collect();
        let expected =
            [Flow::Next, Flow::Branch, Flow::Next, Flow::Syscall, Flow::Away, Flow::Jump, Flow::Fixed, Flow::Next, Flow::Next];
        assert_eq!(flows, expected);
        assert_eq!(steps[0].number, Number::Constant(0));
        assert_eq!(steps[1].target, 0x1006);
        assert_eq!(steps[2].relative, Some((0x101b, 3)));
        assert_eq!(steps[6].number, Number::Unknown);
        assert_eq!(steps[7].number, Number::Constant(0x101));
        assert_eq!(steps[8].table, Table::Relative(0x101d));
    }
}
