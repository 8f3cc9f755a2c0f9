//! A program of system calls, drawn from a seed: the same on an array and on a plain directory, whatever the calls answer.

use crate::calls::{CALLS, Call, Kind};
use oracle::Rng;

/// What a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The program's own memory, as much as a call can use.
    Good,
    Null,
    /// Memory that is not there.
    Unmapped,
    /// Memory that may only be read.
    ReadOnly,
    /// So many bytes before memory that is not there.
    Before(usize),
}

/// One argument, as it is drawn. Pointers get their addresses when the program runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Argument {
    Number(i64),
    /// A pointer to memory without content of its own.
    Memory(Place),
    /// A pointer to these bytes.
    Bytes(Vec<u8>, Place),
    /// A pointer to a path; `@` at its beginning is the directory under test, `%` the one outside.
    Path(String, Place),
    /// A pointer to pieces of memory, each of so many bytes.
    Pieces(Vec<(Place, usize)>, Place),
}

/// One step of a program.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Call(&'static Call, Vec<Argument>),
    /// From here on the program has the rights of a user that owns nothing.
    DropRights,
}

/// How many steps a program has.
pub(crate) const STEP_COUNT: u64 = 40;

/// Names that are there at the beginning, and some that are not.
const NAMES: [&str; 24] = [
    "f0",
    "f0",
    "f1",
    "f2",
    "d0",
    "d0",
    "d0/f0",
    "d0/e",
    "d1",
    "l2",
    "s0",
    "s1",
    "s2",
    "s3",
    "s4",
    "s5",
    "s2/f0",
    "d0/up",
    "new",
    "new2",
    "d1/new",
    "f0/x",
    "d0/nothing/x",
    "secret",
];
const OUTSIDE: [&str; 5] = ["%/h0", "%/hd", "%/hs", "%/hd/new", "%/hs/x"];

pub(crate) struct Drawer {
    random: Rng,
}

/// The program of a seed.
pub(crate) fn program(seed: u64) -> Vec<Step> {
    let mut drawer = Drawer { random: Rng::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
    let drops_at = if drawer.random.one_in(4) { drawer.random.below(STEP_COUNT) } else { STEP_COUNT };
    (0..STEP_COUNT).map(|number| if number == drops_at { Step::DropRights } else { drawer.step() }).collect()
}

impl Drawer {
    fn step(&mut self) -> Step {
        let all: u64 = CALLS.iter().map(|call| call.weight).sum();
        let mut left = self.random.below(all);
        let mut found = &CALLS[0];
        for call in CALLS {
            if left < call.weight {
                found = call;
                break;
            }
            left -= call.weight;
        }
        Step::Call(found, found.kinds.iter().map(|&kind| self.argument(kind)).collect())
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize]
    }

    /// Mostly good memory.
    fn place(&mut self) -> Place {
        match self.random.below(24) {
            0 => Place::Null,
            1 => Place::Unmapped,
            2 => Place::ReadOnly,
            3 => Place::Before(self.of(&[0, 1, 7, 100, 4096])),
            _ => Place::Good,
        }
    }

    fn argument(&mut self, kind: Kind) -> Argument {
        match kind {
            Kind::Fd => Argument::Number(self.descriptor()),
            Kind::Dir => Argument::Number(match self.random.below(8) {
                0 => self.descriptor(),
                1..3 => 5,
                3 => 13,
                _ => -100,
            }),
            Kind::Path => self.path(),
            Kind::In | Kind::Out => Argument::Memory(self.place()),
            Kind::Length => Argument::Number(self.length()),
            Kind::Offset => Argument::Number(self.offset()),
            Kind::Bits(bits) => Argument::Number(self.bits(bits)),
            Kind::Number(numbers) => Argument::Number(if self.random.one_in(12) { self.odd() } else { self.of(numbers) }),
            Kind::Mode => Argument::Number(
                self.of(&[0o644, 0o755, 0o600, 0o777, 0, 0o4755, 0o2755, 0o1777, 0o7777, 0o444, 0o40644, 0o200_000, -1]),
            ),
            Kind::Id => Argument::Number(self.of(&[-1, 0, 1001, 1002, 65_534])),
            Kind::Times => self.structure(&[
                &[1_000_000_000, 5, 1_100_000_000, 999_999_999],
                &[0, 0x3fff_ffff, 7, 0x3fff_fffe],
                &[1, 1_000_000_000, 1, 0],
                &[-5, 0, 1 << 40, 3],
            ]),
            Kind::OldTimes => {
                self.structure(&[&[1_000_000_000, 5, 1_100_000_000, 999_999], &[1, 1_000_000, 1, 0], &[1, -1, 1, 0]])
            }
            Kind::PiecesIn | Kind::PiecesOut => self.pieces(),
            Kind::PieceCount => Argument::Number(self.of(&[0, 1, 2, 3, 3, 3, 1024, 1025, -1])),
            Kind::OffsetPlace => {
                let offset = self.offset();
                if self.random.one_in(2) {
                    Argument::Number(0)
                } else {
                    Argument::Bytes(offset.to_ne_bytes().to_vec(), self.place())
                }
            }
            Kind::Lock => {
                let (kind, whence) = (self.of(&[0_i16, 1, 2, 3, -1]), self.of(&[0_i16, 0, 1, 2, 3]));
                let (start, length) = (self.of(&[0_i64, 0, 5, 100, -1, i64::MAX]), self.of(&[0_i64, 0, 1, 10, -5, i64::MAX]));
                let mut bytes = [kind.to_ne_bytes(), whence.to_ne_bytes()].concat();
                bytes.extend([0; 4]);
                bytes.extend([start.to_ne_bytes(), length.to_ne_bytes(), [0; 8]].concat());
                Argument::Bytes(bytes, self.place())
            }
            Kind::How => {
                let open = CALLS.iter().find(|call| call.name == "openat").map_or(kind, |call| call.kinds[2]);
                let Kind::Bits(bits) = open else { return Argument::Number(0) };
                let words = [self.bits(bits), self.of(&[0, 0, 0o644, 0o777, 0o10_000, -1]), self.bits(&[1, 2, 4, 8, 16])];
                Argument::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).chain([0; 40]).collect(), self.place())
            }
            Kind::HowBytes => Argument::Number(self.of(&[24, 24, 24, 24, 0, 8, 23, 25, 32, 64, 4096, 4097, -1])),
            Kind::Attribute => {
                let name =
                    self.of(&["user.a", "user.a", "user.b", "user.", "trusted.t", "system.x", "security.y", "nothing", ""]);
                Argument::Bytes([name.as_bytes(), b"\0"].concat(), self.place())
            }
            Kind::Pipe => Argument::Memory(self.place()),
            Kind::Fixed(number) => Argument::Number(number),
        }
    }

    /// 3 to 13 are open at the beginning (`tree`), those behind are opened by the program.
    fn descriptor(&mut self) -> i64 {
        match self.random.below(20) {
            0 => self.of(&[-1, -100, 500, 1 << 20, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 32]),
            1..4 => 3,
            4..13 => 3 + self.random.below(12) as i64,
            _ => 14 + self.random.below(5) as i64,
        }
    }

    fn odd(&mut self) -> i64 {
        self.of(&[-1, 1 << 31, i64::MAX, i64::MIN, 12_345, 0x7fff_ffff])
    }

    fn length(&mut self) -> i64 {
        self.of(&[0, 1, 10, 100, 511, 512, 4095, 4096, 4097, 10_000, 65_536, 70_000, i64::from(i32::MAX), i64::MAX, -1, 1 << 32])
    }

    fn offset(&mut self) -> i64 {
        if self.random.one_in(10) {
            return self.of(&[-1, -4096, i64::MIN, i64::MAX, i64::MAX - 4095, 1 << 40, (8 << 20) - 1, 8 << 20, (8 << 20) + 1]);
        }
        self.of(&[0, 0, 0, 1, 100, 4095, 4096, 4097, 9_999, 10_000, 10_001, 65_536, 70_000, 100_000, 1 << 20])
    }

    fn bits(&mut self, bits: &[i32]) -> i64 {
        let one = i64::from(self.of(bits));
        match self.random.below(16) {
            0..3 => 0,
            3..9 => one,
            9..13 => one | i64::from(self.of(bits)),
            13 => bits.iter().filter(|_| self.random.one_in(2)).fold(0, |all, &bit| all | i64::from(bit)),
            14 => one | 1 << self.random.below(33),
            _ => self.of(&[-1, 1 << 31, 0x7fff_ffff]),
        }
    }

    fn structure(&mut self, choices: &[&[i64]]) -> Argument {
        if self.random.one_in(4) {
            return Argument::Number(0);
        }
        let words = self.of(choices);
        Argument::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect(), self.place())
    }

    fn pieces(&mut self) -> Argument {
        let count = self.random.below(4);
        let piece = |drawer: &mut Self| {
            let bytes = if drawer.random.one_in(12) { usize::MAX } else { drawer.of(&[0, 1, 100, 4096, 5000, 30_000]) };
            (drawer.place(), bytes)
        };
        Argument::Pieces((0..count.max(1)).map(|_| piece(self)).collect(), self.place())
    }

    fn path(&mut self) -> Argument {
        let place = self.place();
        if self.random.one_in(20) {
            let text = match self.random.below(8) {
                0 => String::new(),
                1 => ".".to_owned(),
                2 => "..".to_owned(),
                3 => "%".to_owned(),
                4 => "n".repeat(255),
                5 => "n".repeat(256),
                6 => format!("{}f0", "./".repeat(2046)),
                _ => format!("{}f0", "./".repeat(2047)),
            };
            return Argument::Path(text, place);
        }
        let name = if self.random.one_in(12) { self.of(&OUTSIDE) } else { self.of(&NAMES) };
        let prefix = if name.starts_with('%') {
            ""
        } else {
            self.of(&["", "", "", "", "@/", "@/", "./", "d0/../", "@//", "d0/../d0/../", "@/../data/", "../data/", "s2/../"])
        };
        let suffix = if self.random.one_in(12) { self.of(&["/", "/.", "/..", "//", "/../f0"]) } else { "" };
        Argument::Path(format!("{prefix}{name}{suffix}"), place)
    }
}
