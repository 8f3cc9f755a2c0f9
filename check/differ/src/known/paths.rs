//! Programs about what paths lead to, and about names that are made, changed and taken away.

use super::steps::*;
use crate::{
    draw::{Argument, Place},
    program::{Child, Rights, Step, Who},
};
use Argument::{Bytes, Memory, Number, Path};

pub(super) const PROGRAMS: &[fn() -> Vec<Step>] = &[
    // `.` and `..` are there already, also with a slash behind them (O_CREAT and O_EXCL).
    || {
        let names = ["./", "d0/./", "d0/..//", "d0/../", ".", "d0/.", "d0/", "f0/./", "none/./"];
        let flags = [libc::O_CREAT | libc::O_EXCL, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR];
        let opened = |name: &&str| flags.map(|flags| call("open", vec![path(name), Number(flags.into()), Number(0o600)]));
        names.iter().flat_map(opened).collect()
    },
    // Names that are `.` or `..` are refused before all else, also with flags that a file system
    // lacks.
    || {
        let rename = |from: &str, to: &str, flags: i64| {
            call("renameat2", vec![Number(-100), path(from), Number(-100), path(to), Number(flags)])
        };
        let names = [
            ("d1/new", "s2/."),
            ("f0", "d0/.."),
            ("d1/.", "d0"),
            ("d1/..", "new"),
            ("d1/./", "d0"),
            ("nothing/x", "d0/."),
            ("f0/x", "new"),
        ];
        names.iter().flat_map(|&(from, to)| [4, 5].map(|flags| rename(from, to, flags))).collect()
    },
    // In the root directory a path means the array's also where it is to stay in that directory.
    || {
        let open = |text: &str, flags: u64| {
            let how = [flags, 0, 16].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(-100), path(text), Bytes(how, Place::Good), Number(24)])
        };
        vec![call("chdir", vec![path("/")]), open("@/d0", 0o100), open("@/f0", 0), open("@/../data/s0", 0), open("@/s4", 0)]
    },
    // A link from the host's path that a symlink leads into the array, and from the working
    // directory on the host.
    || {
        vec![
            link((5, "%/hs"), (5, "s0"), 0x1400),
            link((5, "%/hs"), (-100, "d1/linked"), 0x400),
            link((-100, "%/hs"), (5, "x"), 0),
        ]
    },
    // linkat(2) follows a symlink of the array to the host and gives the file there another name.
    || {
        vec![
            link((-100, "s4"), (-100, "%/hd/new"), 0x400),
            link((-100, "s0"), (-100, "%/hd/x"), 0x400),
            link((-100, "s4"), (-100, "%/hd/x"), 0),
            call("stat", vec![path("%/hd/new"), Memory(Place::Good)]),
        ]
    },
    // An empty path means the current directory, which is every member's.
    || {
        vec![
            call("fchmodat2", vec![Number(-100), path(""), Number(0o700), Number(0x1000)]),
            call("fchownat", vec![Number(-100), path(""), Number(1001), Number(-1), Number(0x1000)]),
            call("utimensat", vec![Number(-100), path(""), Memory(Place::Null), Number(0x1000)]),
            rights(Rights::DropEffective),
            call("faccessat2", vec![Number(-100), path(""), Number(2), Number(0x1000)]),
            call("newfstatat", vec![Number(-100), path(""), Memory(Place::Good), Number(0x1000)]),
        ]
    },
    // openat2 below a directory that is the root for it: `..` leaves nothing.
    || {
        let how = [0_u64, 0, 0x11].iter().flat_map(|word| word.to_ne_bytes()).collect();
        vec![call("openat2", vec![Number(13), path("../data/s2/f0"), Bytes(how, Place::Good), Number(24)])]
    },
    // Flags of calls on the current directory by an empty path are looked at.
    || {
        vec![
            call("newfstatat", vec![Number(-100), path(""), Memory(Place::Good), Number(0x1400)]),
            call("newfstatat", vec![Number(-100), Memory(Place::Null), Memory(Place::Good), Number(0x1000)]),
            call("statx", vec![Number(-100), path(""), Number(0x1200), Number(0xfff), Memory(Place::Good)]),
            call("statx", vec![Number(-100), path(""), Number(0x1000), Number(0xfff), Memory(Place::ReadOnly)]),
        ]
    },
    // The rights of the host's directories above the array hold.
    || {
        vec![
            call("chmod", vec![path(".."), Number(0o644)]),
            rights(Rights::Drop),
            call("open", vec![path("%/hs"), Number(0), Number(0)]),
            call("unlink", vec![path("%/hs/x")]),
        ]
    },
    // Without symlinks on its way a path may leave the array and come back.
    || {
        let open = |base: i64, text: &str| {
            let how = [0_u64, 0, 4].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(base), path(text), Bytes(how, Place::Good), Number(24)])
        };
        vec![
            open(13, ".."),
            open(5, "../.."),
            open(13, "../data/f0"),
            open(5, "../../data/d0/../f2"),
            open(5, "../../nothing/../data/f0"),
            open(5, "../../data/s0"),
            open(5, "../s2/../../data/f0"),
            open(5, "../f0/../.."),
            open(-100, "@/../data/f2/"),
            open(-100, "../data/../data/nothing"),
            call("fstat", vec![Number(17), Memory(Place::Good)]),
            call("read", vec![Number(18), Memory(Place::Good), Number(100)]),
        ]
    },
    // What is wrong with the first path of a rename is said before the second one is looked at.
    || {
        vec![
            call("fchmod", vec![Number(13), Number(0o444)]),
            call("fchmod", vec![Number(5), Number(0o444)]),
            rights(Rights::DropForFiles),
            call("renameat", vec![Number(13), path("s3"), Number(5), path("s2/../f2")]),
            call("renameat2", vec![Number(5), path("up"), Number(10), path("s2/f0"), Number(2)]),
            call("renameat2", vec![Number(5), path("up"), Number(11), path("f0"), Number(0)]),
            call("renameat", vec![Number(5), path("up"), Number(5), Path("x".to_owned(), Place::Unmapped)]),
            call("linkat", vec![Number(5), path("up"), Number(10), path("s2/f0"), Number(0)]),
        ]
    },
    // The host's directories above the array may be closed to the program.
    || {
        let nowhere = Path("d0/nothing/x".to_owned(), Place::Unmapped);
        vec![
            call("chmod", vec![path(".."), Number(0)]),
            rights(Rights::DropForFiles),
            call("open", vec![path("@/f0"), Number(0), Number(0)]),
            call("stat", vec![path("@/d0/f0"), Memory(Place::Good)]),
            call("open", vec![path("f0"), Number(0), Number(0)]),
            call("stat", vec![path("../data/f0"), Memory(Place::Good)]),
            call("mkdir", vec![path("@/new"), Number(0o755)]),
            call("rename", vec![path("@/f0"), path("@/f1")]),
            call("renameat2", vec![Number(-100), path("@//f2"), Number(5), nowhere, Number(0)]),
        ]
    },
    // A name with slashes behind it is not followed by calls that make, take away or rename it,
    // also if the host has it and it leads into the array.
    || {
        let names = |calls: &mut Vec<Step>| {
            calls.extend(["mkdir", "mkdirat"].map(|name| {
                let at = (name == "mkdirat").then_some(Number(13));
                call(name, at.into_iter().chain([path("%/hs//"), Number(0o755)]).collect())
            }));
            calls.extend([
                call("unlink", vec![path("%/hs//")]),
                call("unlinkat", vec![Number(-100), path("%/hs/"), Number(0)]),
                call("rmdir", vec![path("%/hs/")]),
                call("symlink", vec![path("x"), path("%/hs/")]),
                call("mknod", vec![path("%/hs/"), Number(0o10_644), Number(0)]),
                link((-100, "f2"), (-100, "%/hs/"), 0),
                call("rename", vec![path("%/hs//"), path("%/hd/y")]),
                call("rename", vec![path("f2"), path("%/hs/")]),
                call("rename", vec![path("d0"), path("%/hs/")]),
                call("rename", vec![path("%/hs//"), path("%/h0/x")]),
                call("lstat", vec![path("%/hs/"), Memory(Place::Good)]),
                call("unlinkat", vec![Number(5), path("%/hk//"), Number(0x200)]),
                call("rmdir", vec![path("%/hw/")]),
                call("mkdir", vec![path("%/hk/"), Number(0o755)]),
            ]);
        };
        let mut steps = Vec::new();
        names(&mut steps);
        steps.push(call("unlink", vec![path("f0")]));
        names(&mut steps);
        steps
    },
    // A symlink of the array leads out of it, and from there another leads back in, through a file:
    // both names are looked at as on one file system.
    || {
        let ways = ["d1/out/z", "d1/out/..", "d1/out/../d0/../f1/..", "d1/out"];
        let mut steps = vec![call("symlink", vec![path("%/hs/x"), path("d1/out")])];
        for way in ways {
            for other in ["f2", "%/h0", "%/new", "d1/new"] {
                steps.extend([[way, other], [other, way]].into_iter().flat_map(|[from, to]| {
                    [
                        call("rename", vec![path(from), path(to)]),
                        link((-100, from), (-100, to), 0),
                        link((-100, from), (-100, to), 0x400),
                    ]
                }));
            }
        }
        steps
    },
    // By what /proc says of what is open: a directory gets no other name, but the new name is
    // looked at first; a file without a name is no directory.
    || {
        vec![
            link((-100, "%/hk"), (-100, "d0/nothing/x"), 0x400),
            link((-100, "%/hk"), (-100, "f0/x"), 0x400),
            link((-100, "%/hk"), (-100, "f1"), 0x400),
            link((-100, "%/hk"), (-100, "new/"), 0x400),
            link((-100, "%/hk"), (-100, "new"), 0x400),
            call("unlink", vec![path("f0")]),
            link((13, "%/hf//"), (5, "%/hw/f1"), 0x1400),
            call("symlink", vec![path("%/hf"), path("f0")]),
            call("open", vec![path("%/hs"), Number(0), Number(0)]),
            call("stat", vec![path("f0"), Memory(Place::Good)]),
            call("lstat", vec![path("f0"), Memory(Place::Good)]),
            call("open", vec![path("%/hs"), Number(0o10_000_000), Number(0)]),
        ]
    },
    // What is to be made is in the way of a symlink by that name, wherever the symlink leads and
    // whatever the path may not do.
    || {
        let make = |text: &str, resolve: u64| {
            let how = [0o300_u64, 0, resolve].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(-100), path(text), Bytes(how, Place::Good), Number(24)])
        };
        vec![make("d0/../s4", 8), make("s4", 4), make("s0", 4), make("s2", 0x10), make("s2/../s4//", 1), make("s4/", 1)]
    },
    // Where no link under /proc may be followed, none leads into the array.
    || {
        let open = |text: &str, flags: u64| {
            let how = [flags, 0, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(-100), path(text), Bytes(how, Place::Good), Number(24)])
        };
        let look = ["%/hk/new", "%/hk/f0", "%/hk", "%/hf", "%/hs"].map(|text| open(text, 0));
        let make = ["%/hk/new", "%/hk/f0", "%/hk", "%/hw/new2", "%/hs"].map(|text| open(text, 0o101));
        look.into_iter().chain(make).collect()
    },
    // A new name for what is not open, over one that is there.
    || vec![link((19, ""), (-100, "d0/up"), 0x1000), link((19, ""), (-100, "new"), 0x1000)],
    // A new name for what is open, found by what /proc says of the program, where a symlink leads
    // the name out of the array: the name is looked at first.
    || {
        let goals = ["@/s4/..", "@/s4/../x", "@/s4/x", "@/s4", "s5/e/..", "d0/../s4/x"];
        let links = |from| goals.map(|goal| link((-100, from), (-100, goal), 0x400));
        let opened = goals.map(|goal| link((3, ""), (-100, goal), 0x1000));
        let made_by = |child, mut steps: Vec<Step>| {
            steps.iter_mut().for_each(|step| step.who = Who::Child(child, 1));
            steps
        };
        let steps: Vec<Step> = links("%/hf").into_iter().chain(links("%/hk")).chain(opened).collect();
        [steps.clone(), made_by(Child::Vfork, steps)].concat()
    },
    // The program has openat2(2) look in the kernel's caches only, across the array's border and
    // elsewhere.
    || {
        let open = |text: &str, resolve: u64| {
            let how = [0_u64, 0, resolve].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(-100), path(text), Bytes(how, Place::Good), Number(24)])
        };
        vec![open("@//d0", 0x21), open("@/nothing", 0x21), open("d0", 0x20)]
    },
    // A name that is to be made, with a slash behind it, is refused before a symlink there is
    // (RESOLVE_NO_SYMLINKS).
    || {
        let make = |text: &str| {
            let how = [0o101_u64, 0o777, 4].iter().flat_map(|word| word.to_ne_bytes()).collect();
            call("openat2", vec![Number(-100), path(text), Bytes(how, Place::Good), Number(24)])
        };
        ["s3//", "s2/", "s1/", "f0/", "d0/", "new/", "s2/new/", "s3"].map(make).to_vec()
    },
];
