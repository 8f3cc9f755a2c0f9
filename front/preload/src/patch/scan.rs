//! Finding the sites of an object: which `syscall` bytes are instructions, with which number, and
//! what may be moved.
//!
//! Only functions that contain the two bytes are decoded; bytes in no function stay as they are.
//! Most of these are data. Those that what is in front of them shows to be an instruction
//! ([`is_call`]) are told of, since that call is not reached. Right behind a function, and in an
//! object without unwind entries, constants may lie: only what is so shown is a site there, or what
//! has a constant number of a call that the library looks at.
//!
//! An instruction may be displaced only if nothing jumps to it or behind it within the displaced
//! bytes. What can jump there: branches and jump tables of the same function (decoded), jumps of
//! other functions (a search through the text for anything that looks like one), relocations,
//! symbols, unwind entries. A false alarm only costs a site its preferred form.

use super::elf::{Image, Range};
use super::site::{NUMBER_UNKNOWN, Site};
use crate::arch::bytes::{JUMP_BYTES, SIGRETURN_PREFIX, SYSCALL, begins_load, find_near_jumps, find_syscalls, is_move};
use crate::arch::decode::{Flow, Number, Step, Table, decode};
use crate::table;
use heap::vec::Vec;

/// How many entries a jump table may have.
const TABLE_ENTRY_COUNT_MAX: u64 = 4096;
/// How far back the number of a call is looked for.
const NUMBER_STEP_COUNT_MAX: usize = 32;
/// How far a site's displaced bytes may lie from its instruction.
const REACH: u64 = 32;

/// How far in front of a system call that lies in no function its number is looked for.
const LOAD_REACH: u64 = 64;
/// How many moves in a row show that a system call behind them is one whose number is handed over.
const MOVE_COUNT_MIN: usize = 3;
/// How long a load of a constant is that cannot be taken for something else.
const LOAD_BYTES_MIN: u8 = 5;

/// What a scan found.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sites: Vec<Site>,
    /// Sites for which no form was possible, by address and number.
    pub(crate) hopeless: Vec<(u64, Option<u32>)>,
    /// The addresses of system calls that the library serves, in no function.
    pub(crate) outside: Vec<u64>,
}

/// Finds the sites of `image` whose number `wanted` accepts (None: not constant).
pub(crate) fn scan(image: &Image, wanted: impl Fn(Option<u32>) -> bool) -> Found {
    let mut found = Found::default();
    for text in image.texts() {
        let Some(code) = image.bytes(text) else { continue };
        let mut addresses = Vec::new();
        find_syscalls(code, |offset| addresses.push(text.start + offset as u64));
        if addresses.is_empty() {
            continue;
        }
        let outside = targets_from_outside(image, code, text, &addresses);
        let mut decoded = Range::default();
        for &address in &addresses {
            if decoded.contains(address) {
                continue;
            }
            // Outside functions the two bytes are data: constants of programs whose linker puts
            // them into one segment with the instructions.
            let Some(function) = image.function(address) else {
                if is_call(image, text, address) {
                    found.outside.push(address);
                }
                continue;
            };
            decoded = Range { start: function.start.max(text.start), end: function.end.min(text.end) };
            let count = found.sites.len();
            Function::decode(image, decoded, &outside).sites(&wanted, &mut found);
            // Where no unwind entry says that there are instructions, constants may look like one.
            let is_instruction = |site: &Site| {
                site.number != NUMBER_UNKNOWN || image.is_surely_code(site.syscall()) || is_call(image, text, site.syscall())
            };
            for site in found.sites.split_off(count) {
                if is_instruction(&site) { found.sites.push(site) } else { found.hopeless.push((site.syscall(), None)) }
            }
        }
    }
    found
}

/// Whether the two bytes at `address`, which lie in no function, are a system call that the library
/// serves. They are if instructions lead right to them of which the first loads the number of such
/// a call, or which all move arguments and a number from where a caller has put them. Chance, in
/// data, makes neither.
fn is_call(image: &Image, text: Range, address: u64) -> bool {
    let mut steps = Vec::new();
    let end = address + SYSCALL.len() as u64;
    (address.saturating_sub(LOAD_REACH).max(text.start)..address).any(|start| {
        let Some(code) = image.bytes(Range { start, end }).filter(|code| begins_load(code)) else { return false };
        steps.clear();
        decode(code, start, &mut steps);
        let Some((last, before)) = steps.split_last() else { return false };
        leads_to_call(code, start, before) && last.flow == Flow::Syscall && last.address == address
    })
}

/// Whether `steps`, the instructions of `code` in front of a system call, load the number of a call
/// that the library serves.
fn leads_to_call(code: &[u8], start: u64, steps: &[Step]) -> bool {
    let Some((first, rest)) = steps.split_first() else { return false };
    if steps.iter().any(|step| !matches!(step.flow, Flow::Next | Flow::Branch)) {
        return false;
    }
    if let Number::Constant(number) = first.number {
        let is_kept = rest.iter().all(|step| step.number == Number::Kept);
        return is_kept && first.bytes >= LOAD_BYTES_MIN && table::is_served(number);
    }
    let moves = |step: &Step| code.get((step.address - start) as usize..).is_some_and(is_move);
    let moves_number = steps.iter().any(|step| step.number == Number::Unknown);
    steps.len() >= MOVE_COUNT_MIN && moves_number && steps.iter().all(moves)
}

/// The addresses near one of `sites` that something outside the site's function may jump to,
/// ascending.
fn targets_from_outside(image: &Image, code: &[u8], text: Range, sites: &[u64]) -> Vec<u64> {
    let mut targets = Vec::new();
    let mut note = |target: u64| {
        let next = sites.partition_point(|site| site + REACH < target);
        if sites.get(next).is_some_and(|site| target + REACH > *site) {
            targets.push(target);
        }
    };
    find_near_jumps(code, text.start, &mut note);
    image.referenced(&mut note);
    targets.sort_unstable();
    targets
}

/// A decoded function.
struct Function<'a> {
    image: &'a Image,
    steps: Vec<Step>,
    /// Everything that may be jumped to, ascending.
    targets: Vec<u64>,
    outside: &'a [u64],
}

impl<'a> Function<'a> {
    fn decode(image: &'a Image, range: Range, outside: &'a [u64]) -> Self {
        let mut steps = Vec::new();
        if let Some(code) = image.bytes(range) {
            decode(code, range.start, &mut steps);
        }
        let mut targets: Vec<u64> = steps.iter().filter(|step| step.target != 0).map(|step| step.target).collect();
        for step in &steps {
            match step.table {
                Table::Relative(table) if image.is_code(table) => targets.push(table),
                Table::Relative(table) => Self::table(image, &mut targets, |index| {
                    let distance = image.word(table + 4 * index)? as i32;
                    Some(table.wrapping_add_signed(i64::from(distance)))
                }),
                Table::Absolute(table) => Self::table(image, &mut targets, |index| image.quad(table.checked_add(8 * index)?)),
                Table::None => {}
            }
        }
        targets.sort_unstable();
        targets.dedup();
        Self { image, steps, targets, outside }
    }

    fn table(image: &Image, targets: &mut Vec<u64>, entry: impl Fn(u64) -> Option<u64>) {
        let entries = (0..TABLE_ENTRY_COUNT_MAX).map_while(entry).take_while(|target| image.is_text(*target));
        targets.extend(entries);
    }

    fn is_target(&self, address: u64) -> bool {
        self.targets.binary_search(&address).is_ok() || self.outside.binary_search(&address).is_ok()
    }

    fn code(&self, step: &Step) -> &'a [u8] {
        self.image.bytes(Range { start: step.address, end: step.end() }).unwrap_or(&[])
    }

    fn sites(&self, wanted: &impl Fn(Option<u32>) -> bool, found: &mut Found) {
        for (index, step) in self.steps.iter().enumerate() {
            if step.flow != Flow::Syscall || self.is_signal_return(step) {
                continue;
            }
            let number = self.number(index);
            if !wanted(number) {
                continue;
            }
            match self.before(index, number).or_else(|| self.around(index, number)) {
                Some(site) => found.sites.push(site),
                None => found.hopeless.push((step.address, number)),
            }
        }
    }

    /// Unwinders know `__restore_rt` by its bytes, and its frame is not a call's: never touch it.
    fn is_signal_return(&self, step: &Step) -> bool {
        let prefix = Range { start: step.address.saturating_sub(SIGRETURN_PREFIX.len() as u64), end: step.address };
        self.image.bytes(prefix) == Some(&SIGRETURN_PREFIX[..])
    }

    /// The constant number of the system call at `index`, if on every way to it the same one was
    /// just loaded.
    fn number(&self, index: usize) -> Option<u32> {
        let mut joined = self.is_target(self.steps[index].address);
        for step in self.steps[..index].iter().rev().take(NUMBER_STEP_COUNT_MAX) {
            if joined || matches!(step.flow, Flow::Jump | Flow::Away | Flow::Syscall) {
                return None;
            }
            match step.number {
                Number::Constant(number) => return Some(number),
                Number::Unknown => return None,
                Number::Kept => joined = self.is_target(step.address),
            }
        }
        None
    }

    /// The site whose displaced instructions all lie in front of the system call.
    fn before(&self, syscall: usize, number: Option<u32>) -> Option<Site> {
        let end = self.steps[syscall].address;
        let mut first = syscall;
        loop {
            // What is displaced so far begins at `first`; to take one more in front, nothing may
            // jump to `first`.
            if self.is_target(self.steps[first].address) {
                return None;
            }
            first = first.checked_sub(1)?;
            let step = &self.steps[first];
            if !matches!(step.flow, Flow::Next | Flow::Branch) {
                return None;
            }
            if end - step.address >= JUMP_BYTES as u64 {
                return Site::new(&self.steps[first..syscall], syscall - first, number, |step| self.code(step));
            }
        }
    }

    /// The site that moves the system call too, with instructions behind it and as few as needed in
    /// front.
    fn around(&self, syscall: usize, number: Option<u32>) -> Option<Site> {
        let mut first = syscall;
        loop {
            if let Some(last) = self.room_behind(first, syscall) {
                let steps = &self.steps[first..=last];
                if let Some(site) = Site::new(steps, syscall - first, number, |step| self.code(step)) {
                    return Some(site);
                }
            }
            if self.is_target(self.steps[first].address) {
                return None;
            }
            first = first.checked_sub(1)?;
            if !matches!(self.steps[first].flow, Flow::Next | Flow::Branch) {
                return None;
            }
        }
    }

    /// The last step to displace so that a jump fits from `first` on.
    fn room_behind(&self, first: usize, syscall: usize) -> Option<usize> {
        let start = self.steps[first].address;
        let mut last = syscall;
        while self.steps[last].end() - start < JUMP_BYTES as u64 {
            let falls_through = matches!(self.steps[last].flow, Flow::Next | Flow::Branch | Flow::Syscall);
            let next = self.steps.get(last + 1)?;
            if !falls_through
                || self.is_target(next.address)
                || !matches!(next.flow, Flow::Next | Flow::Branch | Flow::Jump | Flow::Away)
            {
                return None;
            }
            last += 1;
        }
        Some(last)
    }
}
