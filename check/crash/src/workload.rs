//! What recorded programs do: short runs of calls, each there for something that a crash could
//! break.
//!
//! Operations name files by paths below the array's prefix. Content comes from a seed, so the model
//! knows it. Threads of one workload write to different bytes, so that what is on the members does
//! not depend on who came first.

use crate::case::Shape;
use crate::model::{Entry, World};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create(&'static str),
    Write {
        name: &'static str,
        at: u64,
        bytes: u64,
        seed: u64,
    },
    Append {
        name: &'static str,
        bytes: u64,
        seed: u64,
    },
    Truncate {
        name: &'static str,
        bytes: u64,
    },
    Punch {
        name: &'static str,
        at: u64,
        bytes: u64,
    },
    /// fallocate(2) mode 0: the size grows.
    Allocate {
        name: &'static str,
        at: u64,
        bytes: u64,
    },
    Sync(&'static str),
    /// mmap(2) of the whole file for writing, shared.
    Map(&'static str),
    /// The program stores whole words through its mapping.
    Store {
        name: &'static str,
        at: u64,
        bytes: u64,
        seed: u64,
    },
    /// msync(2) of all that was stored.
    Msync(&'static str),
    Unmap(&'static str),
    /// The last descriptor goes: what growth took in advance is given back.
    Close(&'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Symlink {
        target: &'static str,
        name: &'static str,
    },
    Link {
        from: &'static str,
        to: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
    },
    Exchange {
        one: &'static str,
        other: &'static str,
    },
    Unlink(&'static str),
    /// A member's memory fails: the array goes on without it.
    Fail(usize),
    /// A member is taken out that works.
    TakeOut(usize),
    /// A member that was taken out comes back, while nobody else uses the array.
    ReAdd(usize),
    Chmod {
        name: &'static str,
        mode: u32,
    },
    /// setxattr(2) of `user.note`; empty removes it.
    Note {
        name: &'static str,
        value: &'static str,
    },
}

use Operation::*;

/// A workload.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Done before the recording begins.
    pub(crate) before: Vec<Operation>,
    /// What each thread does.
    pub(crate) threads: Vec<Vec<Operation>>,
    /// How large the windows are through which backing files are mapped, if not as ever.
    pub(crate) window_bytes: Option<u64>,
}

/// Windows of a workload that crosses them.
const SMALL_WINDOW_BYTES: u64 = 128 << 10;

/// How large a workload's windows are, if not as ever.
pub(crate) fn window_bytes(workload: &str) -> Option<u64> {
    (workload == "windows").then_some(SMALL_WINDOW_BYTES)
}

/// The names of all workloads.
pub(crate) const NAMES: [&str; 20] = [
    "overwrite",
    "small",
    "append",
    "grow",
    "holes",
    "truncate",
    "lengths",
    "punch",
    "create",
    "rename",
    "link",
    "attributes",
    "orphan",
    "writers",
    "degraded",
    "failing",
    "away",
    "back",
    "mapped",
    "windows",
];

/// Workloads whose crash states a journal changes: those that write.
const JOURNALED: [&str; 10] =
    ["overwrite", "small", "append", "holes", "truncate", "punch", "writers", "degraded", "mapped", "windows"];

const fn write(name: &'static str, at: u64, bytes: u64, seed: u64) -> Operation {
    Write { name, at, bytes, seed }
}

const fn append(name: &'static str, bytes: u64, seed: u64) -> Operation {
    Append { name, bytes, seed }
}

const fn store(name: &'static str, at: u64, bytes: u64, seed: u64) -> Operation {
    Store { name, at, bytes, seed }
}

const fn truncate(name: &'static str, bytes: u64) -> Operation {
    Truncate { name, bytes }
}

impl Workload {
    /// The workload `name` for arrays of `shape`: lengths follow its stripes. None if it is nothing
    /// for them.
    pub(crate) fn new(name: &str, shape: &Shape) -> Option<Self> {
        if shape.has_journal() && !JOURNALED.contains(&name) {
            return None;
        }
        let chunk = shape.chunk_bytes;
        let stripe = chunk * shape.columns();
        let (a, b) = ("a", "b");
        let filled = |bytes| vec![Create(a), write(a, 0, bytes, 1)];
        let (before, threads) = match name {
            "overwrite" => (
                filled(2 * stripe + 100),
                vec![vec![
                    write(a, 0, 64, 2),
                    write(a, chunk - 24, 48, 3),
                    write(a, stripe, stripe.min(4096), 4),
                    write(a, stripe + 40, 200, 5),
                    write(a, 64, (stripe - 64).min(2048), 6),
                ]],
            ),
            "small" => (
                filled(stripe),
                vec![vec![write(a, 8, 8, 2), write(a, 13, 1, 3), write(a, 61, 6, 4), write(a, 128, 64, 5), write(a, 8, 16, 6)]],
            ),
            "append" => (
                vec![Create(a)],
                vec![vec![
                    append(a, 10, 2),
                    append(a, 64, 3),
                    append(a, chunk, 4),
                    append(a, 300, 5),
                    Close(a),
                    append(a, 5, 6),
                    Close(a),
                ]],
            ),
            // Past what is allocated in advance, and past the first pages of the inode table.
            "grow" => (
                vec![Create(a), append(a, 100, 1), Close(a)],
                vec![vec![
                    append(a, 3 * stripe + 8, 2),
                    Sync(a),
                    append(a, 64, 3),
                    Close(a),
                    Create(b),
                    write(b, 0, 2 * chunk, 4),
                    Close(b),
                ]],
            ),
            "holes" => (
                filled(100),
                vec![vec![
                    write(a, 2 * stripe + 16, 80, 2),
                    write(a, stripe, 72, 3),
                    truncate(a, 4 * stripe),
                    write(a, 3 * stripe, 64, 4),
                    Allocate { name: a, at: 4 * stripe, bytes: 100 },
                    append(a, 24, 5),
                    Close(a),
                ]],
            ),
            "truncate" => (
                filled(2 * stripe + 200),
                vec![vec![
                    truncate(a, 2 * stripe + 72),
                    truncate(a, stripe + 8),
                    truncate(a, 2 * stripe),
                    append(a, 64, 3),
                    truncate(a, 0),
                    append(a, 130, 4),
                    truncate(a, 65),
                    write(a, 0, 16, 5),
                    truncate(a, 200),
                    Close(a),
                ]],
            ),
            // Nothing is written: only the inode tables tell.
            "lengths" => (
                vec![Create(a), Create(b), write(b, 0, 100, 1)],
                vec![vec![
                    truncate(a, 3 * stripe),
                    Allocate { name: a, at: 3 * stripe, bytes: 10 },
                    Allocate { name: b, at: 50, bytes: 500 },
                    truncate(a, 5 * stripe),
                    Allocate { name: a, at: 0, bytes: 6 * stripe },
                    truncate(b, 700),
                    Close(a),
                    Close(b),
                ]],
            ),
            "punch" => (
                filled(3 * stripe),
                vec![vec![
                    Punch { name: a, at: 8, bytes: 48 },
                    Punch { name: a, at: stripe - 16, bytes: stripe + 32 },
                    write(a, stripe, 64, 3),
                    Punch { name: a, at: 0, bytes: 3 * stripe },
                    write(a, 0, 64, 4),
                    Close(a),
                ]],
            ),
            "create" => (
                vec![Mkdir("d")],
                vec![vec![
                    Create(a),
                    append(a, 100, 2),
                    Create("d/b"),
                    Mkdir("d/e"),
                    Symlink { target: "../a", name: "d/l" },
                    Create("d/e/c"),
                    Unlink("d/b"),
                    Unlink(a),
                    Create(a),
                    append(a, 30, 3),
                    Unlink("d/e/c"),
                    Rmdir("d/e"),
                    Unlink("d/l"),
                ]],
            ),
            "rename" => (
                vec![Create(a), append(a, 70, 1), Create(b), append(b, 90, 2), Mkdir("d"), Mkdir("e")],
                vec![vec![
                    Rename { from: a, to: "c" },
                    Rename { from: "c", to: b },
                    Rename { from: b, to: "d/b" },
                    Create(a),
                    append(a, 20, 3),
                    Exchange { one: a, other: "d/b" },
                    Rename { from: "d", to: "e" },
                    Rename { from: "e/b", to: a },
                    append(a, 8, 4),
                ]],
            ),
            "link" => (
                vec![Create(a), append(a, 70, 1), Mkdir("d")],
                vec![vec![
                    Link { from: a, to: "d/a" },
                    append("d/a", 10, 2),
                    Link { from: "d/a", to: "c" },
                    Unlink(a),
                    Rename { from: "c", to: "d/a" },
                    Link { from: "d/a", to: a },
                    Rename { from: a, to: "f" },
                    Unlink("f"),
                    Unlink("d/a"),
                ]],
            ),
            "attributes" => (
                vec![Create(a), append(a, 70, 1), Mkdir("d")],
                vec![vec![
                    Chmod { name: a, mode: 0o600 },
                    Note { name: a, value: "one" },
                    Chmod { name: "d", mode: 0o700 },
                    Note { name: a, value: "two" },
                    Note { name: "d", value: "three" },
                    Note { name: a, value: "" },
                    Chmod { name: a, mode: 0o444 },
                    Chmod { name: a, mode: 0o644 },
                ]],
            ),
            // The last name goes while the file is open; another takes its inode's place.
            "orphan" => (
                vec![Create(a), append(a, 70, 1)],
                vec![vec![
                    Unlink(a),
                    Create(b),
                    append(b, 80, 2),
                    Create("c"),
                    Rename { from: "c", to: b },
                    append(b, 8, 3),
                    Close(b),
                    Unlink(b),
                ]],
            ),
            // Without a member from the start of it: parity is updated or left alone, names are
            // changed on the others.
            "degraded" if shape.is_redundant() => (
                filled(2 * stripe + 100),
                vec![vec![
                    Fail(0),
                    write(a, 0, 64, 2),
                    write(a, chunk - 24, 48, 3),
                    write(a, stripe, stripe.min(4096), 4),
                    append(a, 200, 5),
                    Create(b),
                    append(b, 70, 6),
                    Close(b),
                    truncate(a, stripe + 9),
                ]],
            ),
            // A member fails between changes of names, another kind of change each time: the
            // superblocks are written before the next.
            "failing" if shape.is_redundant() => (
                filled(100),
                vec![vec![
                    Create(b),
                    Fail(shape.member_count - 1),
                    Rename { from: b, to: "c" },
                    append(a, 40, 2),
                    Unlink("c"),
                    Close(a),
                ]],
            ),
            // A member is away, and what changes meanwhile is marked: bytes, sizes, a file that is
            // there anew, one that is stored to as the member goes, and one through a mapping. Of
            // the files that nothing changes it is to keep all.
            "away" if shape.is_redundant() => (
                ["a", "b", "c", "d", "e"]
                    .into_iter()
                    .flat_map(|name| [Create(name), write(name, 0, stripe + 200, 1), Close(name)])
                    .collect(),
                vec![vec![
                    write(a, 0, 64, 2),
                    TakeOut(shape.member_count - 1),
                    write(a, chunk - 24, 48, 3),
                    append(b, 200, 4),
                    Close(b),
                    truncate("c", 9),
                    Rename { from: "d", to: "f" },
                    Map("e"),
                    store("e", 8, 16, 5),
                    Unmap("e"),
                ]],
            ),
            // The member comes back, and files go on.
            "back" if shape.is_redundant() => (
                [a, b, "c"].into_iter().flat_map(|name| [Create(name), write(name, 0, stripe + 200, 1), Close(name)]).collect(),
                vec![vec![
                    TakeOut(0),
                    write(a, chunk - 24, 48, 2),
                    Create("d"),
                    append("d", 100, 3),
                    Unlink("c"),
                    ReAdd(0),
                    write(a, 0, 64, 4),
                    append(b, 100, 5),
                ]],
            ),
            // Stores that the engine does not see, and what makes them durable; beside them, over
            // what they left behind the end, after them. Where copies or parity have to follow
            // them: what a mapping of RAID 0 stores is the kernel's affair.
            "mapped" if shape.is_redundant() => {
                let bytes = 2 * stripe + 3 * 4096 + 100;
                (
                    filled(bytes),
                    vec![vec![
                        Map(a),
                        store(a, 0, 64, 2),
                        store(a, chunk - 8, 16, 3),
                        write(a, chunk + 200, 100, 4),
                        Msync(a),
                        store(a, 8, 16, 5),
                        store(a, bytes.next_multiple_of(8) + 8, 16, 6),
                        append(a, 300, 7),
                        store(a, stripe + 4096 + 24, 72, 8),
                        Unmap(a),
                        write(a, 16, 64, 9),
                        append(a, 64, 10),
                        Close(a),
                    ]],
                )
            }
            "writers" => (
                vec![Create(a), write(a, 0, stripe + 512, 1), Create(b)],
                vec![
                    vec![write(a, 0, 32, 2), write(a, 64, 128, 3), append(b, 40, 4), write(a, stripe, 256, 5)],
                    vec![write(a, 32, 32, 6), append(b, 100, 7), write(a, 192, 64, 8), write(a, stripe + 256, 200, 9)],
                ],
            ),
            // Backing files grow into further windows, over holes too, are written where two meet,
            // and are cut back over that.
            "windows" => {
                let border = SMALL_WINDOW_BYTES * shape.columns();
                (
                    vec![Create(a), truncate(a, border - 500), write(a, border - 700, 200, 1)],
                    vec![vec![
                        append(a, 900, 2),
                        write(a, border - 100, 200, 3),
                        write(a, 2 * border - 64, 128, 4),
                        Punch { name: a, at: border - 8, bytes: 16 },
                        truncate(a, 2 * border - 40),
                        append(a, 64, 5),
                        truncate(a, border - 24),
                        append(a, 80, 6),
                        Close(a),
                    ]],
                )
            }
            _ => return None,
        };
        Some(Self { before, threads, window_bytes: window_bytes(name) })
    }
}

/// What the program does next when a recovery has shown it this: it writes over what the last
/// record of a journal may have been about, and behind it.
pub(crate) fn afterwards(world: &World) -> Vec<Operation> {
    let file = |name: &&'static str| match world.names.get(*name) {
        Some(&Entry::File(number)) => Some((*name, world.files[number].bytes.len() as u64)),
        _ => None,
    };
    let present = ["a", "b", "c", "d/a", "d/b", "e/b"].iter().find_map(file);
    let Some((name, bytes)) = present else { return vec![Create("z"), append("z", 90, 31)] };
    let over = (bytes >= 8).then(|| write(name, 0, bytes.min(200) / 8 * 8, 31));
    over.into_iter().chain([append(name, 90, 32), Create("z")]).collect()
}

/// The bytes that an operation with `seed` writes; none is zero, so that lost ones show.
pub(crate) fn content(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = oracle::Rng::new(seed.wrapping_mul(0x9e37_79b9) ^ 0x5151);
    (0..bytes).map(|_| (rng.below(255) + 1) as u8).collect()
}
