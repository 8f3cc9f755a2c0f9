//! The places where this program flushes and fences. They are found by decoding all of the
//! program's own text. In the process that is recorded a breakpoint takes the place of each.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;

/// Instructions that write lines back or order stores, by address.
pub(crate) struct Sites(HashMap<usize, Instruction>);

static SITES: OnceLock<Sites> = OnceLock::new();
const BREAKPOINT: u8 = 0xcc;

/// What an instruction does with the stores before it: write their lines back, or order them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Flush,
    Fence,
}

fn effect(instruction: &Instruction) -> Option<Effect> {
    match instruction.mnemonic() {
        Mnemonic::Clwb | Mnemonic::Clflushopt | Mnemonic::Clflush => Some(Effect::Flush),
        Mnemonic::Sfence | Mnemonic::Mfence => Some(Effect::Fence),
        _ => None,
    }
}

/// The sites of this program. They are looked for once, before any process is forked.
pub(crate) fn sites() -> Result<&'static Sites, String> {
    if let Some(sites) = SITES.get() {
        return Ok(sites);
    }
    let found = find()?;
    Ok(SITES.get_or_init(|| found))
}

fn find() -> Result<Sites, String> {
    let (start, end) = text()?;
    // SAFETY: the kernel says that the text is mapped for reading, and nobody unmaps a program's
    // text.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
    let mut decoder = Decoder::with_ip(64, bytes, start as u64, DecoderOptions::NONE);
    let mut sites = HashMap::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.code() != Code::INVALID && effect(&instruction).is_some() {
            sites.insert(instruction.ip() as usize, instruction);
        }
    }
    // If data lies among the instructions, decoding may take the wrong byte for the start of an
    // instruction, and a fence would be overlooked. So every place with the bytes of sfence must be
    // a site. The constant is the complement of these bytes, so that the bytes themselves are not
    // in this function's text.
    let sought = std::hint::black_box([0xf0u8, 0x51, 0x07]);
    for (at, window) in bytes.windows(3).enumerate() {
        if window.iter().zip(sought).all(|(&byte, sought)| byte == !sought) && !sites.contains_key(&(start + at)) {
            return Err(format!("the bytes at {:#x} look like a fence but were decoded otherwise", start + at));
        }
    }
    if sites.is_empty() { Err("this program has neither flush nor fence".into()) } else { Ok(Sites(sites)) }
}

/// Where the program's own `.text` section is mapped.
fn text() -> Result<(usize, usize), String> {
    let path = fs::read_link("/proc/self/exe").map_err(|error| format!("/proc/self/exe: {error}"))?;
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let own = maps.lines().find(|line| line.ends_with(&*path.to_string_lossy())).ok_or("the program is not mapped")?;
    let base = own.split('-').next().and_then(|word| usize::from_str_radix(word, 16).ok()).ok_or("an odd line in maps")?;
    let file = fs::read("/proc/self/exe").map_err(|error| format!("/proc/self/exe: {error}"))?;
    let (address, bytes) = section(&file, b".text").ok_or("the program has no .text")?;
    Ok((base + address, base + address + bytes))
}

/// Address and length of a section of a 64-bit ELF file (elf(5)).
fn section(file: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(file.get(at..at + bytes)?);
        Some(u64::from_le_bytes(word) as usize)
    };
    let (headers, each, count, names) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?, number(0x3e, 2)?);
    let names_at = number(headers + names * each + 0x18, 8)?;
    (0..count).map(|index| headers + index * each).find_map(|header| {
        let own = file.get(names_at + number(header, 4)?..)?;
        let is_it = own.starts_with(name) && own.get(name.len()) == Some(&0);
        if is_it { Some((number(header + 0x10, 8)?, number(header + 0x20, 8)?)) } else { None }
    })
}

impl Sites {
    /// Puts a breakpoint on every site of this process, which is about to be recorded.
    pub(crate) fn arm(&self) -> Result<(), String> {
        let (start, end) = text()?;
        let (first, last) = (start & !4095, end.next_multiple_of(4096));
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the pages are our own text, private to this process; it stays executable.
        if unsafe { libc::mprotect(first as *mut _, last - first, all) } != 0 {
            return Err(format!("mprotect of the text: {}", std::io::Error::last_os_error()));
        }
        for &address in self.0.keys() {
            // SAFETY: the first byte of an instruction of ours; no other thread runs.
            unsafe { (address as *mut u8).write_volatile(BREAKPOINT) };
        }
        Ok(())
    }

    /// What the breakpoint at `address` stands for.
    pub(crate) fn at(&self, address: usize) -> Option<(Effect, &Instruction)> {
        let instruction = self.0.get(&address)?;
        Some((effect(instruction)?, instruction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_fences_and_flushes() {
        persist::fence();
        let line = [0u8; 64];
        // SAFETY: our own memory.
        unsafe { persist::write_back(line.as_ptr(), 64) };
        let sites = sites().unwrap();
        let count = |wanted| sites.0.values().filter(|instruction| effect(instruction) == Some(wanted)).count();
        assert!(count(Effect::Fence) >= 1);
        assert!(count(Effect::Flush) >= 3, "clwb, clflushopt and clflush");
    }
}
