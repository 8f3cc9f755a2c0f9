//! The arguments of system calls, good and bad, drawn from a seed.

use crate::{calls::Kind, table::CALLS};
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
    /// A pointer to the address of a local socket: a letter for its family, and its path.
    Address(&'static str, String, Place),
    /// A pointer to a message with so many pieces of memory, and with control data.
    Message(Vec<(Place, usize)>, Place, Control),
    /// A number with other bits in the upper half of its register.
    Wide(u32, u32),
}

/// The control data of a message (cmsg(3)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Control {
    pub(crate) bytes: Vec<u8>,
    pub(crate) place: Place,
    /// How long the message says that it is.
    pub(crate) length: u64,
}

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
const OUTSIDE: [&str; 13] =
    ["%/h0", "%/hd", "%/hs", "%/hs", "%/hd/new", "%/hs/x", "%/hf", "%/hf", "%/hk", "%/hk/f0", "%/hk/new", "%/hw/f1", "%/hw/new2"];

/// The program's own pieces of address space for mappings begin here: far from where the kernel
/// puts mappings by itself, so that nobody else's are ever met.
pub(crate) const MAPS: i64 = 1 << 40;
const PAGE: i64 = 4096;
const SOCKET_NAME_BYTES_MAX: usize = 60;

pub(crate) struct Drawer {
    random: Rng,
}

impl Drawer {
    /// From a program's seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Rng::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.random.one_in(count)
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
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

    pub(crate) fn argument(&mut self, kind: Kind) -> Argument {
        let argument = self.of_kind(kind);
        // The kernel reads an argument of 32 bits from the lower half of its register: the upper
        // half must not matter.
        match (kind, argument) {
            (Kind::Fd | Kind::Dir | Kind::Bits(_) | Kind::Number(_) | Kind::Mode | Kind::Id, Argument::Number(number))
                if self.random.one_in(40) =>
            {
                Argument::Wide(number as u32, self.of(&[1, 0x8000_0000, u32::MAX, 0xdead_beef]))
            }
            (_, argument) => argument,
        }
    }

    fn of_kind(&mut self, kind: Kind) -> Argument {
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
            Kind::Message => match self.pieces() {
                Argument::Pieces(pieces, place) => Argument::Message(pieces, place, self.control()),
                other => other,
            },
            Kind::Ranges => {
                let ranges =
                    (0..3).flat_map(|_| [self.at(), self.of(&[0, 1, PAGE, PAGE, 2 * PAGE, 5 * PAGE, 16 * PAGE, 70_000])]);
                let words: Vec<i64> = ranges.collect();
                Argument::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect(), self.place())
            }
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
            Kind::At => Argument::Number(self.at()),
            Kind::MapBytes => Argument::Number(self.of(&[
                0,
                1,
                PAGE - 1,
                PAGE,
                PAGE,
                PAGE,
                PAGE + 1,
                2 * PAGE,
                5 * PAGE,
                16 * PAGE,
                70_000,
                1 << 20,
                -1,
                i64::MAX,
                1 << 47,
            ])),
            Kind::MapFlags => Argument::Number(self.map_flags()),
            Kind::MapOffset => Argument::Number(match self.random.below(10) {
                0 => self.of(&[1, 100, PAGE - 1, -PAGE, -1, i64::MAX, i64::MAX - 4095, 1 << 40]),
                1..6 => 0,
                _ => self.of(&[PAGE, 2 * PAGE, 16 * PAGE, 17 * PAGE, 1 << 20]),
            }),
            _ => self.structure_of(kind),
        }
    }

    /// Mostly none, else descriptors (SCM_RIGHTS), some more than may be, or lengths that lie.
    fn control(&mut self) -> Control {
        const HEADER_BYTES: u64 = 16;
        let header =
            |bytes: u64, level: i32, kind: i32| [&bytes.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()].concat();
        let count = match self.random.below(16) {
            0..8 => return Control { bytes: Vec::new(), place: Place::Null, length: self.of(&[0, 0, 0, 0, 16, 1 << 40]) },
            8..12 => 1,
            12 => 3,
            13 => self.of(&[0, 2, 253, 254]),
            // For the kernel to fill, or not there.
            14 => return Control { bytes: vec![0; 64], place: self.place(), length: self.of(&[16, 20, 24, 64, 64]) },
            _ => {
                let told = self.of(&[0, 15, 16, 17, 1 << 20, i64::MAX as u64, u64::MAX]);
                let length = self.of(&[8, 15, 16, 24, 1 << 20, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX]);
                return Control { bytes: [header(told, 1, 1), vec![3; 8]].concat(), place: self.place(), length };
            }
        };
        let (level, kind) = if self.random.one_in(8) { (self.of(&[0, 1, 6]), self.of(&[0, 2, 3])) } else { (1, 1) };
        let mut bytes = header(HEADER_BYTES + 4 * count, level, kind);
        bytes.extend((0..count).flat_map(|_| (self.descriptor() as i32).to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let length = bytes.len() as u64;
        Control { bytes, place: self.place(), length }
    }

    /// Structures that few calls take.
    fn structure_of(&mut self, kind: Kind) -> Argument {
        let place = self.place();
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        match kind {
            Kind::Address => {
                let Argument::Path(mut text, place) = self.path() else { return Argument::Number(0) };
                if text.len() > SOCKET_NAME_BYTES_MAX {
                    // README.md says how long the name of a socket may be.
                    text = "new".to_owned();
                }
                let family = self.of(&["u", "u", "u", "u", "u", "u", "i", "n"]);
                // The place of the family is taken by a letter that the program replaces.
                Argument::Address(family, text, place)
            }
            Kind::AddressBytes => Argument::Number(self.of(&[110, 110, 110, 110, 110, 0, 1, 2, 3, 60, 111, 128, 129, -1])),
            Kind::SizePlace => {
                Argument::Bytes(self.of(&[110_u32, 110, 110, 0, 2, 5, u32::MAX, 1 << 20]).to_ne_bytes().to_vec(), place)
            }
            Kind::Handle => {
                let (bytes, kind) = (self.of(&[128_u32, 128, 0, 8, 12, 129, u32::MAX]), self.of(&[1_i32, 0, 2, -1]));
                Argument::Bytes([&bytes.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 128]].concat(), place)
            }
            Kind::Action if self.one_in(3) => Argument::Number(0),
            // SIG_DFL or SIG_IGN, flags without a meaning here, no restorer, no other signals.
            Kind::Action => Argument::Bytes(words(&[self.of(&[0, 1]), self.of(&[0, 0x1000_0000, 1 << 40]), 0, 0]), place),
            Kind::SignalSet if self.one_in(3) => Argument::Number(0),
            Kind::SignalSet => Argument::Bytes(words(&[self.of(&[0, 1 << 9, 1 << 11, 1 << 9 | 1 << 11])]), place),
            Kind::Limit if self.one_in(4) || place == Place::ReadOnly => Argument::Number(0),
            Kind::Limit => {
                // Lower limits keep an array from making files: its tables grow with them.
                let values = [4 << 20, 5_000_001, 8 << 20, 9 << 20, u64::MAX];
                Argument::Bytes(words(&[self.of(&values), self.of(&values).max(8 << 20)]), place)
            }
            _ => Argument::Number(0),
        }
    }

    /// Mostly one of the first pages of the program's own address space.
    fn at(&mut self) -> i64 {
        match self.random.below(24) {
            0 => self.of(&[MAPS + 1, MAPS + 5 * PAGE + 100, MAPS - PAGE]),
            1 => self.of(&[-PAGE, -(1 << 47), 1 << 47, i64::MAX, i64::MIN]),
            2..14 => MAPS + self.random.below(3) as i64 * 16 * PAGE,
            _ => MAPS + self.random.below(48) as i64 * PAGE,
        }
    }

    fn map_flags(&mut self) -> i64 {
        const SHARED: i64 = libc::MAP_SHARED as i64;
        const PRIVATE: i64 = libc::MAP_PRIVATE as i64;
        const VALIDATE: i64 = libc::MAP_SHARED_VALIDATE as i64;
        let kind = self.of(&[SHARED, SHARED, SHARED, SHARED, PRIVATE, PRIVATE, PRIVATE, VALIDATE, VALIDATE, 0, 4, 0xf]);
        let where_to = self.of(&[0, 0, libc::MAP_FIXED, libc::MAP_FIXED, libc::MAP_FIXED_NOREPLACE]);
        let others = [
            libc::MAP_ANONYMOUS,
            libc::MAP_NORESERVE,
            libc::MAP_POPULATE,
            libc::MAP_SYNC,
            libc::MAP_GROWSDOWN,
            libc::MAP_LOCKED,
            libc::MAP_STACK,
            libc::MAP_DENYWRITE,
            libc::MAP_NONBLOCK,
        ];
        let one = i64::from(self.of(&others));
        let more = match self.random.below(8) {
            0 => one,
            1 => one | i64::from(self.of(&others)),
            2 => 1 << self.random.below(33),
            _ => 0,
        };
        kind | i64::from(where_to) | more
    }

    /// 3 to 15 are open at the beginning (`tree`), and mostly 22; the others are opened by the
    /// program.
    fn descriptor(&mut self) -> i64 {
        match self.random.below(20) {
            1 if self.one_in(4) => 22,
            0 => self.of(&[-1, -100, 500, 1 << 20, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 32]),
            1..4 => 3,
            4..13 => 3 + self.random.below(13) as i64,
            _ => 16 + self.random.below(5) as i64,
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
        let mut pieces: Vec<(Place, usize)> = (0..count.max(1)).map(|_| piece(self)).collect();
        let place = self.place();
        if matches!(place, Place::Before(_)) {
            // A piece at the end of the same memory would hold the list, whose addresses are this
            // process' own affair.
            pieces.iter_mut().filter(|piece| matches!(piece.0, Place::Before(_))).for_each(|piece| piece.0 = Place::Good);
        }
        Argument::Pieces(pieces, place)
    }

    fn path(&mut self) -> Argument {
        let place = self.place();
        if self.random.one_in(20) {
            let text = match self.random.below(8) {
                0 => String::new(),
                1 => ".".to_owned(),
                2 => "..".to_owned(),
                3 => "%".to_owned(),
                4 => "n".repeat(self.of(&[254, 255, 256])),
                5 => format!("@{}/f0", "/.".repeat(self.of(&[2020, 2030, 2040]))),
                // With their NUL they have 4095, 4096 and 4097 bytes.
                6 => format!("{}{}", "./".repeat(2046), self.of(&["f0", "new", "d0/e", "d0/f0"])),
                _ => format!("{}{}", "./".repeat(2046), self.of(&["f0/", "f00", "f000", "new/", "d0/", "s0/"])),
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
