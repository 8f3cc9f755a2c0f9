//! Programs that once told an array from a plain directory, as short as they became. They are run
//! before the drawn ones, whatever is asked for.

mod paths;
mod steps;

use crate::{
    draw::{Argument, Control, MAPS, Place},
    program::{Child, Program, Rights, Step, Who},
};
use Argument::{Bytes, Memory, Number, Wide};
use steps::*;

/// Seeds from here on are numbers of these programs.
pub(crate) const FIRST: u64 = 1 << 62;
/// How many there are.
pub(crate) const COUNT: u64 = (PROGRAMS.len() + paths::PROGRAMS.len() + DEEP.len()) as u64;

const PAGE: i64 = 4096;
/// mmap(2) and madvise(2) by numbers, as programs are written down.
const SHARED: i64 = libc::MAP_SHARED as i64;
const PRIVATE: i64 = libc::MAP_PRIVATE as i64;
const FIXED: i64 = libc::MAP_FIXED as i64;
const LOCKED: i64 = libc::MAP_LOCKED as i64;
const READ_WRITE: i64 = 3;
const HUGE: i64 = i64::MAX;

const PROGRAMS: &[fn() -> Vec<Step>] = &[
    // A process that may only read a file maps it. On an array with a member missing the mapping
    // shows a copy, whose end must not be made good by who cannot store.
    || {
        let open = call("open", vec![path("@/d0/f0"), Number(0), Number(0)]);
        vec![
            rights(Rights::Drop),
            open,
            map(0, 2 * PAGE, 1, SHARED | FIXED, 16),
            load(0, 100),
            map(0, PAGE, 1, SHARED | FIXED, 16),
            load(0, 100),
        ]
    },
    // A range that nobody has is refused also to a call whose process is named by an odd number.
    || {
        let ranges: Vec<u8> = [i64::MIN, 1, MAPS, PAGE].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let advise = vec![Number(-10_001), Bytes(ranges, Place::Good), Number(2), Wide(3, 1 << 31), Number(0)];
        vec![map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3), call("process_madvise", advise), load(0, PAGE)]
    },
    // Where the program's half of the address space ends, differs by processor.
    || {
        let read = |buffer: i64| call("pread64", vec![Number(3), Number(buffer), Number(0), Number(0)]);
        let ranges: Vec<u8> = [1 << 47, PAGE, MAPS, PAGE].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let advise = vec![Number(-10_000), Bytes(ranges, Place::Good), Number(2), Number(11), Number(0)];
        let ends = [(1 << 47) - PAGE, 1 << 47, (1 << 56) - PAGE, 1 << 56, i64::MAX - PAGE + 1, i64::MIN];
        let mut steps: Vec<Step> = ends.into_iter().map(read).collect();
        steps.extend([map(0, PAGE, READ_WRITE, SHARED | FIXED, 3), call("process_madvise", advise)]);
        steps
    },
    // The kernel reads an argument of 32 bits from the lower half of its register: these calls
    // remove the file's bytes, and its redundancy must follow.
    || {
        let ranges: Vec<u8> = [MAPS, PAGE].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let remove = |task: Argument, flags: Argument| {
            let ranges = Bytes(ranges.clone(), Place::Good);
            call("process_madvise", vec![task, ranges, Number(1), Wide(9, 1), flags])
        };
        let fill = || call("pwrite64", vec![Number(3), Memory(Place::Good), Number(10_000), Number(0)]);
        vec![
            fill(),
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remove(Number(-10_000), Wide(0, 1)),
            load(0, 2 * PAGE),
            fill(),
            remove(Wide(-10_000_i32 as u32, 5), Number(0)),
            load(0, 2 * PAGE),
        ]
    },
    // A message that claims more control data than a process can have is refused at once.
    || {
        let send = |told: u64, length: u64| {
            let bytes = [told, 1 << 32 | 1, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let control = Control { bytes, place: Place::Good, length };
            let message = Argument::Message(vec![(Place::Good, 10)], Place::Good, control);
            call("sendmsg", vec![Number(12), message, Number(0)])
        };
        vec![send(20, 24), send(i64::MAX as u64 - 600, u64::MAX >> 1), send(u64::MAX, 1 << 40), send(20, 1 << 31)]
    },
    // What is to be moved onto itself is refused before what lies there is looked at.
    || {
        let wide = |flags: i64| call("mremap", vec![at(0), Number(i64::MAX), Number(PAGE), Number(flags), at(1)]);
        vec![map(16, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3), wide(3), wide(7), wide(0), load(16, 2 * PAGE)]
    },
    // That a range ends behind all offsets is said before that it begins behind the last one of a
    // file.
    || {
        let last = || Bytes(i64::MAX.to_ne_bytes().to_vec(), Place::Good);
        let copy = |to: Argument, bytes: i64| {
            call("copy_file_range", vec![Number(11), Number(0), Number(3), to, Number(bytes), Number(0)])
        };
        vec![copy(last(), -1), copy(last(), 10), copy(last(), 0), copy(Number(0), -1)]
    },
    // dup3 of a closed number to a number that none can be: they are not equal.
    || vec![call("close", vec![Number(3)]), call("dup3", vec![Number(3), Number(-1), Number(0)])],
    // FICLONE of a directory of the array, from what is no descriptor, and onto what is none of the
    // array's.
    || vec![ioctl(5, 0x4004_9409), call("ioctl", vec![Number(3), Number(0x4004_9409), Number(-1)])],
    || vec![call("ioctl", vec![Number(9), Number(0x4004_9409), Number(3)]), ioctl_of(3, 4), ioctl_of(3, 5), ioctl_of(10, 4)],
    // remap_file_pages of a mapping whose descriptor cannot be written to, and far behind the end.
    || vec![map(0, PAGE, 0, SHARED | FIXED, 4), remap(0, PAGE, 0)],
    || {
        vec![
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remap(0, 2 * PAGE, i64::MAX >> 12),
            remap(0, PAGE, 1),
            load(0, 2 * PAGE),
        ]
    },
    || vec![call("chdir", vec![path("%")]), link((-100, ""), (5, "s4"), 0x1000), link((6, ""), (5, "s5"), 0x1000)],
    // An open directory and file after rights were given up, and without a second path.
    || vec![rights(Rights::Drop), link_to_nothing(5), link_to_nothing(3), link((3, ""), (13, "d1/x"), 0x1000)],
    || {
        vec![
            link_to_nothing(5),
            link_to_nothing(3),
            link((3, ""), (-100, "%/hd/x"), 0x1000),
            link((3, ""), (-100, "%/h0"), 0x1000),
        ]
    },
    // madvise over a hole, a locked mapping, and more than the address space.
    || {
        vec![
            map(32, PAGE, READ_WRITE, SHARED | FIXED | LOCKED, 3),
            advise(16, 70_000, 9),
            advise(16, 70_000, 4),
            advise(32, PAGE, 20),
        ]
    },
    || {
        vec![
            map(32, PAGE, 1, SHARED | FIXED, 4),
            advise(16, 70_000, 9),
            advise(16, 70_000, 4),
            advise(0, HUGE, 20),
            advise(32, HUGE, 21),
        ]
    },
    || {
        vec![
            map(32, PAGE, READ_WRITE, SHARED | FIXED | LOCKED, 3),
            sync(32, PAGE, 2),
            sync(31, 3 * PAGE, 3),
            sync(31, 3 * PAGE, 1),
        ]
    },
    // mprotect stops where nothing is mapped, or what it asks for may not be.
    || {
        vec![
            map(0, PAGE, READ_WRITE, SHARED | FIXED, 3),
            call("mprotect", vec![at(0), Number(HUGE), Number(0)]),
            load(0, PAGE),
            call("mprotect", vec![at(0), Number(2 * PAGE), Number(READ_WRITE)]),
            load(0, PAGE),
        ]
    },
    || {
        vec![
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            map(2, PAGE, 1, SHARED | FIXED, 4),
            map(3, PAGE, READ_WRITE, SHARED | FIXED, 3),
            call("mprotect", vec![at(1), Number(3 * PAGE), Number(2)]),
            call("store", vec![at(1), Number(5)]),
            call("mprotect", vec![at(0), Number(4 * PAGE), Number(0)]),
            call("mprotect", vec![at(0), Number(4 * PAGE), Number(READ_WRITE)]),
            load(0, 4 * PAGE),
        ]
    },
    // A place that cannot be comes before an offset that cannot be.
    || vec![call("mmap", vec![Number(i64::MAX), Number(1), Number(0), Number(SHARED | FIXED), Number(11), Number(-PAGE)])],
    // The offset is stored whatever is sent.
    || {
        vec![
            send(8, 11, Bytes(10_000_i64.to_ne_bytes().to_vec(), Place::ReadOnly), i64::MAX),
            send(8, 4, Memory(Place::ReadOnly), 100),
            send(8, 4, Memory(Place::ReadOnly), 0),
            send(3, 4, Memory(Place::ReadOnly), 10),
        ]
    },
    // A file that is sent to its own end repeats itself.
    || {
        vec![
            call("lseek", vec![Number(3), Number(5_000), Number(0)]),
            send(3, 3, Bytes(0_i64.to_ne_bytes().to_vec(), Place::Good), 70_000),
            call("lseek", vec![Number(3), Number(100), Number(0)]),
            send(3, 3, Bytes(30_i64.to_ne_bytes().to_vec(), Place::Good), 20_000),
            call("lseek", vec![Number(3), Number(100), Number(0)]),
            send(3, 3, Bytes(200_i64.to_ne_bytes().to_vec(), Place::Good), 20_000),
        ]
    },
    // access(2) asks for the real user, on the way to the file as well.
    || {
        vec![
            call("chmod", vec![path("d0"), Number(0o700)]),
            rights(Rights::DropEffective),
            call("access", vec![path("d0/f0"), Number(4)]),
            call("faccessat2", vec![Number(-100), path("d0/f0"), Number(4), Number(0x200)]),
            call("open", vec![path("d0/f0"), Number(0), Number(0)]),
        ]
    },
    // What may not be cut, before whose file it is.
    || vec![rights(Rights::DropForFiles), call("openat", vec![Number(-100), path("f2"), Number(0x4_0200), Number(0)])],
    // Out of the array and in again, by symlinks of both, and past what is no directory.
    || {
        vec![
            call("symlink", vec![path("%/hs"), path("d1/new")]),
            call("stat", vec![path("d1/new"), Memory(Place::Good)]),
            call("open", vec![path("d1/new"), Number(0), Number(0)]),
            call("open", vec![path("d1/new/x"), Number(0), Number(0)]),
            call("stat", vec![path("d1/new/../f0"), Memory(Place::Good)]),
            link((-100, "../data/s4/../f0"), (5, "../data/l2"), 0),
            call("unlink", vec![path("d1/new")]),
            call("symlink", vec![path("%/hs/x"), path("d1/new")]),
            call("chdir", vec![path("d1/new")]),
            call("unlink", vec![path("d1/new")]),
        ]
    },
    // mremap of a mapping of a file: lengths that cannot be, and a copy that may not move.
    || {
        vec![
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, 0, 16 * PAGE, 0, 0),
            remapped(0, PAGE, HUGE, 1, 0),
            remapped(0, PAGE, 1 << 47, 1, 0),
            remapped(0, PAGE, 2 * PAGE, 2, 40),
            remapped(0, PAGE, 2 * PAGE, 7, 40),
            remapped(0, PAGE, PAGE, 3, 1 << 36),
            remapped(0, 0, PAGE, 3, 40),
            load(0, 2 * PAGE),
            load(40, PAGE),
        ]
    },
    // What is said of the limit, the flags and the pipe comes before what is said of the bytes.
    || {
        let pieces = Argument::Pieces(vec![(Place::Null, 5000), (Place::Good, 1)], Place::Good);
        vec![
            call("pwritev2", vec![Number(3), pieces, Number(2), Number(8 << 20), Number(0), Number(1)]),
            ioctl_to_nowhere(5),
            ioctl_to_nowhere(3),
            call("close", vec![Number(7)]),
            send(8, 10, Number(0), 10_000),
            call("splice", vec![Number(10), Number(0), Number(8), Number(0), Number(100), Number(0)]),
        ]
    },
    // A pipe takes so many pages, of which the first may begin in its middle.
    || {
        let offset = Bytes(4095_i64.to_ne_bytes().to_vec(), Place::Good);
        vec![call("splice", vec![Number(4), offset, Number(8), Number(0), Number(65_536), Number(0)])]
    },
    // A limit that is set by a call which fails.
    || {
        let limit = [5_000_001_u64, 8 << 20].iter().flat_map(|word| word.to_ne_bytes()).collect();
        vec![
            call("prlimit64", vec![Number(0), Number(1), Bytes(limit, Place::Good), Memory(Place::Unmapped)]),
            call("ftruncate", vec![Number(3), Number(5_000_001)]),
            call("ftruncate", vec![Number(3), Number(5_000_002)]),
        ]
    },
    // A range of copy_file_range that ends behind all offsets, from the descriptor's position.
    || {
        let copied = |from: i64, to: i64| {
            call("copy_file_range", vec![Number(from), Number(0), Number(to), Number(0), Number(-1), Number(0)])
        };
        vec![call("lseek", vec![Number(3), Number(1), Number(0)]), copied(3, 11), copied(11, 3), copied(4, 11)]
    },
    // With AT_EMPTY_PATH a descriptor that was opened with other rights leads nowhere, whatever the
    // path.
    || vec![rights(Rights::DropForFiles), link((13, "f0"), (4, "./s4"), 0x1000), link((13, "@/f0"), (4, "./s4"), 0x1000)],
    // sendfile to a pipe moves pages, and to a socket of messages no more than one of them.
    || {
        let offset = Bytes(4097_i64.to_ne_bytes().to_vec(), Place::Good);
        vec![
            send(8, 4, offset, 1 << 20),
            call("fallocate", vec![Number(3), Number(0), Number(1 << 20), Number(4095)]),
            send(15, 3, Number(0), i64::MAX),
        ]
    },
    // What is advised of all memory is not advised of the library's, which a child needs.
    || {
        let mut step = call("read", vec![Number(3), Memory(Place::Good), Number(10_000)]);
        step.who = Who::Child(Child::Fork, 1);
        vec![advise(0, HUGE, 18), step]
    },
    // A key that nobody has made comes before what the mapping may be protected as.
    || {
        let protect = |key: i64| call("pkey_mprotect", vec![at(0), Number(PAGE), Number(READ_WRITE), Number(key)]);
        vec![map(0, 2 * PAGE, 1, SHARED | FIXED, 4), protect(15), protect(-2), protect(0), protect(-1), load(0, PAGE)]
    },
    // What is said of a pipe comes before what is said of a directory.
    || {
        let offset = || Bytes(4097_i64.to_ne_bytes().to_vec(), Place::Good);
        vec![
            call("write", vec![Number(8), Memory(Place::Good), Number(70_000)]),
            send(8, 5, offset(), 70_000),
            call("splice", vec![Number(13), offset(), Number(8), Number(0), Number(100), Number(2)]),
            send(3, 5, Number(0), 100),
            call("close", vec![Number(7)]),
            send(8, 5, Number(0), 100),
            call("splice", vec![Number(13), offset(), Number(8), Number(0), Number(i64::MAX), Number(5)]),
        ]
    },
    // mremap of more than a mapping to a place of its own: what is moved lies within the mapping,
    // or its end is given back and nothing is moved.
    || {
        vec![
            map(0, PAGE, READ_WRITE, SHARED | FIXED, 3),
            map(6, PAGE, READ_WRITE, SHARED | FIXED, 3),
            map(42, PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, 70_000, 5 * PAGE, 3, 40),
            load(0, PAGE),
            load(6, PAGE),
            load(42, PAGE),
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, 70_000, PAGE, 3, 40),
            load(0, PAGE),
            load(40, PAGE),
            map(0, PAGE, READ_WRITE, PRIVATE | FIXED, 3),
            remapped(0, 70_000, 5 * PAGE, 3, 40),
            load(0, PAGE),
            load(40, PAGE),
        ]
    },
    // A locked mapping is locked also behind the end of the file.
    || {
        vec![
            call(
                "mmap",
                vec![at(0), Number(2 * PAGE), Number(READ_WRITE), Number(SHARED | FIXED | LOCKED), Number(3), Number(1 << 16)],
            ),
            sync(0, PAGE, 2),
            sync(0, 5 * PAGE, 6),
            call("ftruncate", vec![Number(3), Number(70_000)]),
            sync(0, PAGE, 2),
            sync(1, PAGE, 2),
            call("ftruncate", vec![Number(3), Number(0)]),
            sync(0, PAGE, 2),
            advise(1, PAGE, 4),
        ]
    },
    // The limit for files comes before what there is to be copied.
    || {
        let copied =
            |bytes: i64| call("copy_file_range", vec![Number(3), Number(0), Number(11), Number(0), Number(bytes), Number(0)]);
        let limit = |bytes: u64| {
            let limit = [bytes, 16 << 20].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("setrlimit", vec![Number(1), Bytes(limit, Place::Good)])
        };
        vec![
            limit(8 << 20),
            call("lseek", vec![Number(3), Number(8 << 20), Number(2)]),
            call("copy_file_range", vec![Number(3), Number(0), Number(3), Number(0), Number(1 << 32), Number(0)]),
            call("lseek", vec![Number(11), Number(8 << 20), Number(0)]),
            copied(100),
            copied(0),
            call("lseek", vec![Number(3), Number(0), Number(0)]),
            copied(100),
            call("lseek", vec![Number(11), Number((8 << 20) - 50), Number(0)]),
            copied(100),
        ]
    },
    // Locked memory is not locked in a child.
    || {
        let locked = SHARED | FIXED | LOCKED;
        let mut step = sync(0, 5 * PAGE, 3);
        step.who = Who::Child(Child::Fork, 1);
        vec![map(0, 5 * PAGE, READ_WRITE, locked, 3), sync(0, 5 * PAGE, 3), step]
    },
    // A thread that has left the others' descriptors is told first what is wrong with a mapping.
    || {
        let mut steps = vec![
            call("close_range-apart", vec![Number(18), Number(400), Number(6)]),
            call("mmap", vec![at(20), Number(PAGE), Number(READ_WRITE), Number(0x1f), Number(13), Number(0)]),
            map(0, PAGE, READ_WRITE, 0x0f, 3),
            map(0, PAGE, READ_WRITE, SHARED | FIXED, 4),
        ];
        steps.iter_mut().for_each(|step| step.who = Who::Thread(1));
        steps
    },
    // A private mapping of several chunks is one mapping.
    || {
        let map = |bytes: i64| map(0, bytes, READ_WRITE, PRIVATE | FIXED, 3);
        vec![
            call("write", vec![Number(3), Memory(Place::Good), Number(70_000)]),
            map(3 * PAGE),
            call("store", vec![at(1), Number(100)]),
            remapped(0, 3 * PAGE, 5 * PAGE, 0, 0),
            load(0, 5 * PAGE),
            remapped(0, 5 * PAGE, 2 * PAGE, 3, 40),
            load(40, 2 * PAGE),
            remapped(40, 2 * PAGE, 6 * PAGE, 3, 80),
            load(80, 6 * PAGE),
            remapped(80, PAGE, 2 * PAGE, 1, 0),
            map(5 * PAGE),
            remapped(0, HUGE, 5 * PAGE, 3, 40),
            remapped(0, 5 * PAGE, 6 * PAGE, 0, 40),
            remapped(0, 3 * PAGE, 3 * PAGE, 5, 40),
            load(40, 3 * PAGE),
            load(0, 6 * PAGE),
            remapped(0, 0, PAGE, 1, 40),
        ]
    },
    // What no file can hold comes before the limit for files and before the bytes, of all pieces
    // together.
    || {
        let pieces = |first: Place| Argument::Pieces(vec![(first, 5000), (Place::Good, 100)], Place::Good);
        vec![
            call("lseek", vec![Number(3), Number(i64::MAX - 5050), Number(0)]),
            call("writev", vec![Number(3), pieces(Place::Unmapped), Number(2)]),
            call("writev", vec![Number(3), pieces(Place::Good), Number(2)]),
            call("readv", vec![Number(3), pieces(Place::Good), Number(2)]),
            call("lseek", vec![Number(10), Number(i64::MAX - 5050), Number(0)]),
            call("writev", vec![Number(10), pieces(Place::Unmapped), Number(2)]),
            call("writev", vec![Number(10), pieces(Place::Good), Number(2)]),
        ]
    },
    // A file system that is read-only comes before the border of the array.
    || vec![call("chdir", vec![path("/")]), call("link", vec![path("@/f0"), path("x")]), link((3, ""), (-100, "x"), 0x1000)],
    // Where a mapping is to go that stays where it is (MREMAP_DONTUNMAP) is a wish, and may not be
    // where it is.
    || {
        vec![
            map(0, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, PAGE, PAGE, 5, 40),
            remapped(0, PAGE, PAGE, 5, 40),
            remapped(0, 2 * PAGE, 2 * PAGE, 5, 1),
            remapped(0, 2 * PAGE, 2 * PAGE, 7, 1),
            load(40, PAGE),
            load(0, 2 * PAGE),
        ]
    },
    // A file without a name that is open with O_PATH only: it has its length, also when its number
    // is another file's.
    || {
        let stat = || call("fstat", vec![Number(6), Memory(Place::Good)]);
        vec![
            call("unlink", vec![path("f0")]),
            stat(),
            call("dup2", vec![Number(8), Number(3)]),
            stat(),
            call("statx", vec![Number(6), path(""), Number(0x1000), Number(0x7ff), Memory(Place::Good)]),
            call("open", vec![path("f0"), Number(0o102), Number(0o644)]),
            stat(),
        ]
    },
    // One that nobody had open when its name went.
    || {
        vec![
            call("close", vec![Number(3)]),
            call("unlink", vec![path("f0")]),
            call("fstat", vec![Number(6), Memory(Place::Good)]),
            call("creat", vec![path("f0"), Number(0o644)]),
            call("newfstatat", vec![Number(6), path(""), Memory(Place::Good), Number(0x1000)]),
        ]
    },
    // mremap of all mappings of a range, with what lies between them.
    || {
        vec![
            map(0, PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, 2 * PAGE, 2 * PAGE, 3, 40),
            load(0, PAGE),
            load(40, 2 * PAGE),
            map(2, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            map(5, 3 * PAGE, READ_WRITE, PRIVATE | FIXED, 4),
            call("store", vec![at(5), Number(9)]),
            map(9, PAGE, 1, SHARED | FIXED, 4),
            map(22, 3 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(1, 9 * PAGE, 9 * PAGE, 3, 20),
            remapped(3, 8 * PAGE, 8 * PAGE, 3, 20),
            load(0, 20 * PAGE),
            load(20, 20 * PAGE),
            call("store", vec![at(20), Number(77)]),
            remapped(20, 7 * PAGE, 7 * PAGE, 5, 60),
            remapped(20, 7 * PAGE, 7 * PAGE, 7, 60),
            load(20, 20 * PAGE),
            load(60, 20 * PAGE),
            call("store", vec![at(60), Number(78)]),
            call("store", vec![at(20), Number(79)]),
            remapped(20, 7 * PAGE, 9 * PAGE, 3, 60),
            remapped(20, 7 * PAGE, 7 * PAGE, 3, 24),
            call("pread64", vec![Number(3), Memory(Place::Good), Number(10_000), Number(0)]),
        ]
    },
    // Nobody listens at an open file without a name, by what /proc says of it.
    || {
        let address = || Argument::Address("u", "%/hf".to_owned(), Place::Good);
        let connect = |socket: i64| call("connect", vec![Number(socket), address(), Number(110)]);
        let bytes = || Memory(Place::Good);
        vec![
            connect(15),
            call("unlink", vec![path("f0")]),
            connect(15),
            connect(14),
            call("sendto", vec![Number(15), bytes(), Number(10), Number(0x40), address(), Number(110)]),
            call("bind", vec![Number(15), address(), Number(110)]),
            call("creat", vec![path("f0 (deleted)"), Number(0o644)]),
            connect(15),
            call("unlink", vec![path("f0 (deleted)")]),
            connect(15),
        ]
    },
    // A socket is bound out of the array, by way of symlinks.
    || {
        let address = |text: &str| Argument::Address("u", text.to_owned(), Place::Good);
        let bind = |socket: i64, text: &str| call("bind", vec![Number(socket), address(text), Number(110)]);
        let lead = |target: &str, name: &str| call("symlink", vec![path(target), path(name)]);
        vec![
            lead("%/hd", "out"),
            lead("%/none", "dangling"),
            bind(12, "@/s4/../f0"),
            bind(12, "s4/x"),
            bind(12, "s4"),
            bind(12, "dangling"),
            bind(12, "out/none/x"),
            bind(12, "@/out/socket"),
            call("connect", vec![Number(14), address("out/socket"), Number(110)]),
            call("unlink", vec![path("out/socket")]),
        ]
    },
    // A file grows in advance for a write that fails, and gets set-group-id before the process gives
    // up the right to keep that.
    || {
        vec![
            call("pwrite64", vec![Number(3), Memory(Place::Null), Number(70_000), Number(0)]),
            call("fchmodat", vec![Number(-100), path("@/f0"), Number(0o2755)]),
            rights(Rights::DropForFiles),
        ]
    },
    // A write that fails and may not keep set-user-id: the bits that the file gets afterwards stay.
    || {
        vec![
            rights(Rights::DropForFiles),
            rights(Rights::TakeBack),
            call("pwrite64", vec![Number(3), Memory(Place::Before(0)), Number(4097), Number(1 << 20)]),
            call("chmod", vec![path("f0"), Number(0o7777)]),
        ]
    },
    // The owner of a file who is not in its group closes it, with space that it got in advance.
    || {
        vec![
            call("fchown", vec![Number(3), Number(1001), Number(1002)]),
            call("ftruncate", vec![Number(3), Number(70_000)]),
            call("chmod", vec![path("f0"), Number(0o6777)]),
            call("write", vec![Number(3), Memory(Place::Good), Number(4095)]),
            rights(Rights::DropEffective),
        ]
    },
    // What a private mapping shows of a file that is written to afterwards, on an array that lacks
    // a member.
    || {
        vec![
            map(0, 2 * PAGE, READ_WRITE, PRIVATE | FIXED, 3),
            map(2, 2 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            call("pwrite64", vec![Number(3), Memory(Place::Good), Number(8192), Number(0)]),
            load(0, 4 * PAGE),
            load(0, 5 * PAGE),
        ]
    },
    // A mapping that cannot be made leaves a private one as it was: it shows what the file grows
    // by.
    || {
        let over = |page: i64, bytes: i64, flags: i64, fd: i64| {
            call("mmap", vec![at(page), Number(bytes), Number(READ_WRITE), Number(flags), Number(fd), Number(0)])
        };
        vec![
            call("mmap", vec![at(0), Number(4 * PAGE), Number(READ_WRITE), Number(PRIVATE | FIXED), Number(3), Number(2 * PAGE)]),
            over(0, 1 << 47, PRIVATE | FIXED | 0x20, -1),
            over(0, 1 << 47, SHARED | FIXED, 3),
            over(0, 1 << 47, PRIVATE | FIXED, 4),
            call("ftruncate", vec![Number(3), Number(70_000)]),
            load(0, 4 * PAGE),
        ]
    },
    // A mapping that a driver refuses (a socket's) leaves a gap in the place of what was there.
    || {
        let over = |fd: i64| map(2, 2 * PAGE, READ_WRITE, SHARED | FIXED, fd);
        let mapped = |kind: i64| {
            vec![
                map(0, 5 * PAGE, READ_WRITE, kind | FIXED, 3),
                call("store", vec![at(0), Number(7)]),
                call("store", vec![at(2), Number(7)]),
                over(15),
                sync(0, 5 * PAGE, 4),
                sync(2, 2 * PAGE, 1),
                load(0, 5 * PAGE),
                load(2, PAGE),
                load(4, PAGE),
                map(2, PAGE, READ_WRITE, PRIVATE | 0x10_0020, -1),
                call("store", vec![at(2), Number(9)]),
                call("pwrite64", vec![Number(3), Memory(Place::Good), Number(10_000), Number(0)]),
                call("ftruncate", vec![Number(3), Number(9_000)]),
                load(2, PAGE),
                call("mprotect", vec![at(0), Number(5 * PAGE), Number(1)]),
                call("munmap", vec![at(0), Number(5 * PAGE)]),
            ]
        };
        [mapped(SHARED), mapped(PRIVATE)].concat()
    },
    // A child that shares its parent's memory finds an open file without a name by what /proc says
    // of it.
    || {
        let mut steps = vec![call("unlink", vec![path("f0")])];
        steps.extend([
            call("openat", vec![Number(12), path("%/hf"), Number(0), Number(0)]),
            call("fstat", vec![Number(16), Memory(Place::Good)]),
            call("read", vec![Number(16), Memory(Place::Good), Number(10_000)]),
            call("open", vec![path("%/hf"), Number(0o102), Number(0o644)]),
            call("pwrite64", vec![Number(17), Memory(Place::Good), Number(4097), Number(100)]),
            call("stat", vec![path("%/hf"), Memory(Place::Good)]),
            call("lstat", vec![path("%/hf"), Memory(Place::Good)]),
            call("open", vec![path("%/hf/"), Number(0), Number(0)]),
            call("open", vec![path("%/hf"), Number(0o200_000), Number(0)]),
            call("truncate", vec![path("%/hf"), Number(5000)]),
            call("chmod", vec![path("%/hf"), Number(0o600)]),
            call("access", vec![path("%/hf"), Number(2)]),
            call("rename", vec![path("%/hf"), path("f1")]),
            call("mkdir", vec![path("%/hf"), Number(0o755)]),
        ]);
        steps[1..].iter_mut().for_each(|step| step.who = Who::Child(Child::Vfork, 1));
        steps.push(call("pread64", vec![Number(3), Memory(Place::Good), Number(10_000), Number(0)]));
        steps.push(call("fstat", vec![Number(3), Memory(Place::Good)]));
        steps
    },
    // A copy of a shared mapping over its own beginning.
    || {
        vec![
            map(0, 5 * PAGE, READ_WRITE, SHARED | FIXED, 3),
            remapped(0, -1, PAGE, 3, 0),
            load(0, PAGE),
            load(1, 4 * PAGE),
            remapped(1, 0, PAGE, 3, 0),
            load(0, 5 * PAGE),
            remapped(2, 0, 2 * PAGE, 3, 1),
            load(0, 5 * PAGE),
        ]
    },
    // That a file is no directory is said before that it may not be cut, also by what /proc says of
    // it.
    || {
        vec![
            rights(Rights::DropEffective),
            call("openat", vec![Number(13), path("%/hw/f1"), Number(0o201_000), Number(0)]),
            call("openat", vec![Number(13), path("f1"), Number(0o201_000), Number(0)]),
            call("open", vec![path("%/hf"), Number(0o201_000), Number(0)]),
            call("open", vec![path("%/hk"), Number(0o201_000), Number(0)]),
            call("open", vec![path("%/hf"), Number(0o20_200_002), Number(0)]),
        ]
    },
    // What would make a file too long leaves it its set-ID bits.
    || {
        vec![
            call("fchmod", vec![Number(3), Number(0o2755)]),
            rights(Rights::Drop),
            call("ftruncate", vec![Number(3), Number((8 << 20) + 1)]),
            call("fallocate", vec![Number(3), Number(0), Number(8 << 20), Number(1)]),
            call("pwrite64", vec![Number(3), Memory(Place::Good), Number(10), Number(8 << 20)]),
        ]
    },
    // A program that is not there leaves a child the directory that it shares with its parent
    // (CLONE_FS).
    || {
        let execute = |base: i64, text: &str| call("execveat", vec![Number(base), path(text), Number(0), Number(0), Number(0)]);
        let mut steps = vec![execute(5, "../data/d1/new"), execute(-100, "@/f0/x"), call("chdir", vec![path("..")])];
        steps.iter_mut().for_each(|step| step.who = Who::Child(Child::Clone(libc::CLONE_FS), 1));
        steps.push(call("faccessat", vec![Number(-100), path("../data/s2/f0"), Number(5)]));
        steps.push(call("access", vec![path("data/f0"), Number(4)]));
        steps
    },
    // An append whose bytes cannot be read leaves a file its set-ID bits, whoever the process is
    // when it ends.
    || {
        vec![
            call("fchmod", vec![Number(3), Number(0o7777)]),
            call("openat", vec![Number(-100), path("f0"), Number(0o2001), Number(0)]),
            call("pwrite64", vec![Number(16), Memory(Place::Unmapped), Number(10), Number(4095)]),
            call("fchmod", vec![Number(11), Number(0o6755)]),
            call("write", vec![Number(11), Memory(Place::Unmapped), Number(10_000)]),
            rights(Rights::DropEffective),
            call("fstat", vec![Number(3), Memory(Place::Good)]),
        ]
    },
    // Behind a file's end there is no page (SIGBUS), also where stores are noticed by page
    // protection, as in a process that has given up rights before it maps.
    || {
        let protect = |bits: i64| call("mprotect", vec![at(0), Number(32 * PAGE), Number(bits)]);
        let store = |page: i64| call("store", vec![at(page), Number(5)]);
        let mapped = map(0, 32 * PAGE, READ_WRITE, SHARED | FIXED, 3);
        let mut steps = vec![rights(Rights::Drop), mapped, store(20)];
        // MADV_POPULATE_WRITE finds the right to store.
        steps.extend([advise(0, 2 * PAGE, 23), advise(0, 32 * PAGE, 23), advise(1, HUGE, 23), load(0, 3 * PAGE)]);
        for bits in [2, 3, 1, 0, 2] {
            steps.extend([protect(bits), store(20), store(0), store(31), load(2, PAGE), load(20, PAGE)]);
        }
        steps
    },
    // Positions in a directory that nobody has told.
    || {
        let seek = |fd: i64, offset: i64, whence: i64| call("lseek", vec![Number(fd), Number(offset), Number(whence)]);
        let list = |fd: i64, bytes: i64| call("getdents64", vec![Number(fd), Memory(Place::Good), Number(bytes)]);
        vec![
            list(13, 10_000),
            seek(13, 0, 0),
            list(13, 10_000),
            list(5, 100),
            seek(5, 1 << 20, 1),
            list(5, 10_000),
            seek(13, 65_536, 2),
        ]
    },
];

/// Programs that run in a directory whose path is nearly as long as a path may be.
const DEEP: &[fn() -> Vec<Step>] = &[
    // No socket listens at a file.
    || {
        let address = |bytes| vec![Number(12), Argument::Address("u", "./f0".to_owned(), Place::Good), Number(bytes)];
        let above = vec![Number(12), Argument::Address("u", "..".to_owned(), Place::Good), Number(110)];
        vec![call("connect", address(3)), call("connect", address(110)), call("connect", above)]
    },
];

/// The program with a number, if it is one of these.
pub(crate) fn program(seed: u64) -> Option<Program> {
    let index = usize::try_from(seed.checked_sub(FIRST)?).ok()?;
    let shallow = PROGRAMS.iter().chain(paths::PROGRAMS).map(|steps| (steps, false));
    let (steps, is_deep) = shallow.chain(DEEP.iter().map(|steps| (steps, true))).nth(index)?;
    Some(Program { steps: steps(), waits: false, is_deep })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Deed;

    #[test]
    fn every_step_is_a_call_of_the_table_with_its_arguments() {
        for number in 0..COUNT {
            for step in program(FIRST + number).unwrap().steps {
                let Deed::Call(call, arguments) = step.deed else { continue };
                assert_eq!(call.kinds.len(), arguments.len(), "program {number}: {}", call.name);
            }
        }
        assert!(program(FIRST - 1).is_none() && program(FIRST + COUNT).is_none());
        assert_eq!(named("linkat").number, libc::SYS_linkat);
    }
}
