//! What is done on both doors, and what must come of it.

use crate::{
    Options, alone, copies, dying,
    ground::{Ground, succeed, wait},
    handed, many, mapped, meanwhile,
    peer::{Peer, Programs},
    rights,
};
use std::{collections::BTreeMap, fs, process::Command, thread};

type Scene = fn(&Options, &Programs) -> Result<(), String>;

pub(crate) const ALL: [(&str, Scene); 53] = [
    ("data", data),
    ("names", names),
    ("attributes", attributes),
    ("copies", copies::copies),
    ("times", copies::times),
    ("set-id", set_id),
    ("capabilities", rights::capabilities),
    ("listed", listed),
    ("looked-up", looked_up),
    ("locks", locks),
    ("nameless", nameless),
    ("mappings", mappings),
    ("mapped-in-turn", mapped::in_turn),
    ("appends", appends),
    ("io-uring", meanwhile::ring),
    ("io-uring-refused", meanwhile::refused_append),
    ("sqlite", sqlite),
    ("sqlite-wal", mapped::wal),
    ("loss", loss),
    ("member-away", dying::away),
    ("member-removed", dying::removed),
    ("member-cut", dying::cut),
    ("member-shut", dying::shut),
    ("member-read-only", dying::read_only),
    ("member-barred", dying::barred),
    ("renamed", renamed_in_a_loss),
    ("killed", killed),
    ("remounted", meanwhile::remounted),
    ("from-mapping", meanwhile::from_mapping),
    ("stopped", meanwhile::stopped),
    ("moved-meanwhile", meanwhile::moved),
    ("replaced-meanwhile", meanwhile::replaced),
    ("moved-away", moved_away),
    ("many-directories", many::as_root),
    ("many-by-names", many::by_names),
    ("many-without-root", many::without_root),
    ("many-removed", many::removed),
    ("service", service),
    ("refusals", refusals),
    ("fstab", fstab),
    ("handed", handed::handed),
    ("started-in", handed::started),
    ("makes", handed::makes),
    ("silent", handed::silent),
    ("raced", handed::raced),
    ("locks-of-threads", handed::locks),
    ("alone", alone::alone),
    ("alone-apart", alone::apart),
    ("alone-started", alone::started),
    ("alone-twice", alone::twice),
    ("alone-forbidden", alone::forbidden),
    ("alone-without-root", alone::without_root),
    ("in-namespace", alone::in_namespace),
];

/// A scene that fails now and then (one run of fifty), and runs only where it is named: while
/// somebody removes all files of the lowest member by hand, linkat(2) through the mount may be
/// answered ENOENT, without a request that the mount has answered so.
pub(crate) const UNSOLVED: &str = "member-removed";

/// On which door a call is made.
#[derive(Clone, Copy)]
pub(crate) enum Door {
    /// The mount.
    M,
    /// The library.
    L,
}
pub(crate) use Door::{L, M};

/// Both programs.
pub(crate) struct Doors {
    pub(crate) mount: Peer,
    pub(crate) library: Peer,
}

impl Doors {
    pub(crate) fn open(ground: &Ground<'_>) -> Result<Self, String> {
        Ok(Self { mount: ground.through_mount()?, library: ground.intercepted()? })
    }

    fn at(&mut self, door: Door) -> &mut Peer {
        match door {
            M => &mut self.mount,
            L => &mut self.library,
        }
    }

    /// Makes calls one after the other.
    pub(crate) fn play(&mut self, steps: &[(Door, &str, &str)]) -> Result<(), String> {
        for &(door, line, expected) in steps {
            let name = if matches!(door, M) { "mount" } else { "library" };
            let answer = self.at(door).ask(line).map_err(|why| format!("{name}: {why}"))?;
            if answer != expected {
                return Err(format!("{name}: '{line}' gave {answer}, not {expected}"));
            }
        }
        Ok(())
    }
}

/// Runs calls on a mounted array of RAID 5, and looks at its members afterwards.
pub(crate) fn on_both(options: &Options, programs: &Programs, steps: &[(Door, &str, &str)]) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(steps)?;
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

fn data(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (L, "o 0 @/file wc", "0"),
            (M, "o 0 @/file w", "0"),
            (L, "w 0 0 abcdef", "6"),
            (M, "r 0 0 9", "abcdef"),
            (M, "w 0 3 XYZW", "4"),
            (L, "r 0 0 9", "abcXYZW"),
            (L, "z 0", "7"),
            (M, "w 0 20000 far", "3"),
            (L, "z 0", "20003"),
            (L, "r 0 20000 9", "far"),
            (L, "t 0 5", "0"),
            (M, "z 0", "5"),
            (M, "h 0 0 2", "5"),
            (M, "r 0 0 9", "abcXY"),
            (M, "t 0 3", "0"),
            (L, "h 0 0 2", "3"),
            // What was cut reads as zeros when the file grows again.
            (L, "t 0 6", "0"),
            (M, "r 0 0 3", "abc"),
            (M, "r 0 3 3", "3"),
            // Holes: the same answers on both doors.
            (M, "t 0 1000000", "0"),
            (L, "w 0 500000 x", "1"),
            (M, "P 0 0 4096", "0"),
            (L, "p 0 496000 8000", "0"),
            (M, "r 0 500000 1", "1"),
            (M, "o 1 @/file wt", "0"),
            (L, "z 0", "0"),
            (L, "o 1 @/file wt", "0"),
            (M, "w 0 0 again", "5"),
            (M, "y 0", "0"),
            (L, "r 1 0 9", "again"),
            (M, "p 0 0 2", "0"),
            (L, "r 0 2 9", "ain"),
            (M, "o 9 @/none r", "E2"),
            (M, "o 9 @/file cxw", "E17"),
        ],
    )
}

fn names(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (M, "d @/a", "0"),
            (L, "d @/a/b", "0"),
            (M, "s @/a/b", "40755 0"),
            (M, "D @/a/b", "0"),
            // A directory in which the other is goes on under another name.
            (L, "m @/a @/c", "0"),
            (M, "o 0 here wc", "0"),
            (L, "s @/c/b/here", "100644 0"),
            (M, "s @/a", "E2"),
            (M, "s @/c/b/here", "100644 0"),
            (L, "k @/c/b/here @/other", "0"),
            (M, "n 0", "2"),
            (M, "k @/other @/third", "0"),
            (L, "u @/other", "0"),
            (M, "n 0", "2"),
            (M, "s @/other", "E2"),
            (L, "Y third @/link", "0"),
            (M, "R @/link", "third"),
            (M, "w 0 0 text", "4"),
            (M, "o 1 @/link r", "0"),
            (M, "r 1 0 9", "text"),
            (M, "Y nowhere @/dangling", "0"),
            (L, "R @/dangling", "nowhere"),
            (M, "F @/pipe", "0"),
            (L, "s @/pipe", "10600 0"),
            (M, "o 2 @/one wc", "0"),
            (M, "w 2 0 1", "1"),
            (L, "o 2 @/two wc", "0"),
            (L, "w 2 0 22", "2"),
            (M, "X @/one @/two", "0"),
            (L, "s @/one", "100644 2"),
            (M, "s @/two", "100644 1"),
            // What the other has replaced is not the open file.
            (L, "m @/one @/two", "0"),
            (M, "r 2 0 9", "1"),
            (M, "n 2", "0"),
            (M, "o 3 @/two r", "0"),
            (M, "r 3 0 9", "22"),
            (M, "o 4 @/.cxlraid r", "E2"),
            (M, "m @/c @/c/b/c", "E22"),
        ],
    )
}

fn attributes(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (L, "o 0 @/file wc", "0"),
            (M, "b @/file 640", "0"),
            (L, "s @/file", "100640 0"),
            (L, "b @/file 4711", "0"),
            (M, "s @/file", "104711 0"),
            (M, "q @/file value", "0"),
            (L, "Q @/file", "value"),
            (L, "q @/file other", "0"),
            (M, "Q @/file", "other"),
            (M, "d @/directory", "0"),
            (L, "q @/directory kept", "0"),
            (M, "Q @/directory", "kept"),
            (M, "Q @/none", "E2"),
            (M, "o 1 @/file r", "0"),
            (M, "j 1 600", "0"),
            (L, "s @/file", "100600 0"),
        ],
    )
}

/// What somebody who may write a file and does not own it changes of it takes its set-ID bits away,
/// as on any file system; root's changes do not. And the process that serves the mount has not all
/// rights.
fn set_id(options: &Options, programs: &Programs) -> Result<(), String> {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    const CAP_SYS_MODULE: u64 = 1 << 16;
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount_with(&["--allow-other"])?;
    let threads = ground.status_of_serving("CapPrm")?;
    for thread in &threads {
        let has = u64::from_str_radix(thread, 16).map_err(|error| error.to_string())?;
        if threads.len() < 2 || has == 0 || has & (CAP_SYS_RESOURCE | CAP_SYS_MODULE) != 0 {
            return Err(format!("a thread of {} that serve the mount may do {has:x}", threads.len()));
        }
    }
    let (mut doors, mut user) = (Doors::open(&ground)?, ground.through_mount()?);
    for line in ["D @", "U 65534"] {
        user.ask(line).and_then(|answer| if answer == "0" { Ok(()) } else { Err(format!("{line}: {answer}")) })?;
    }
    doors.play(&[(L, "o 0 @/file wc", "0"), (L, "w 0 0 program", "7")])?;
    let setting = (L, "b @/file 6777", "0");
    let set = (M, "s @/file", "106777 7");
    // A write, truncations by name and by descriptor, space, an opening that truncates; each by the
    // other user.
    let changes = [
        (vec![("o 0 file w", "0"), ("w 0 0 program", "7")], "100777 7"),
        (vec![("e file 7", "0")], "100777 7"),
        (vec![("o 0 file w", "0"), ("t 0 7", "0")], "100777 7"),
        (vec![("o 0 file w", "0"), ("P 0 0 7", "0")], "100777 7"),
        (vec![("o 0 file wt", "0")], "100777 0"),
    ];
    for (change, left) in changes {
        doors.play(&[setting, set])?;
        for (line, expected) in change {
            let answer = user.ask(line)?;
            if answer != expected {
                return Err(format!("another user: '{line}' gave {answer}, not {expected}"));
            }
        }
        doors.play(&[(L, "s @/file", left)])?;
    }
    doors.play(&[
        (L, "w 0 0 program", "7"),
        setting,
        (M, "o 1 @/file w", "0"),
        (M, "w 1 0 program", "7"),
        (M, "t 1 7", "0"),
        set,
    ])?;
    // A change of owners takes them away whoever makes it, also one that changes nobody.
    doors.play(&[(M, "x @/file -1 -1", "0"), (L, "s @/file", "100777 7")])?;
    doors.play(&[setting, (M, "x @/file 0 1", "0"), (L, "s @/file", "100777 7")])?;
    // Who may write and not read may truncate, too.
    doors.play(&[(L, "b @/file 622", "0")])?;
    let answer = user.ask("e file 3")?;
    if answer != "0" {
        return Err(format!("a file that may only be written cannot be truncated: {answer}"));
    }
    doors.play(&[(L, "s @/file", "100622 3")])?;
    drop(user);
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

/// Who may read a directory may list it, also without the right to go through it, and nobody else.
fn listed(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount_with(&["--allow-other"])?;
    let (mut doors, mut user) = (Doors::open(&ground)?, ground.through_mount()?);
    doors.play(&[(L, "b @ 755", "0"), (L, "d @/shut", "0"), (L, "o 0 @/shut/inner wc", "0"), (L, "c 0", "0")])?;
    for line in ["D @", "U 65534"] {
        user.ask(line).and_then(|answer| if answer == "0" { Ok(()) } else { Err(format!("{line}: {answer}")) })?;
    }
    for (mode, listing, file) in
        [("755", "inner", "100644 0"), ("744", "inner", "E13"), ("711", "E13", "100644 0"), ("700", "E13", "E13")]
    {
        doors.play(&[(L, &format!("b @/shut {mode}"), "0")])?;
        for (line, expected) in [("i shut", listing), ("s shut/inner", file)] {
            let answer = user.ask(line)?;
            if answer != expected {
                return Err(format!("mode {mode}, another user: '{line}' gave {answer}, not {expected}"));
            }
        }
    }
    drop(user);
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

/// A file that has lost its name between its look-up and its opening is stale, and not absent: after
/// that answer the kernel looks the name up once more, by which programs find the file that has
/// replaced it. An O_PATH descriptor keeps what was looked up.
fn looked_up(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(&[
        (L, "o 0 @/file wc", "0"),
        (M, "o 1 @/file p", "0"),
        (M, "N 1", "0"),
        (L, "c 0", "0"),
        (L, "u @/file", "0"),
        (M, "N 1", "E116"),
        (L, "o 0 @/file wc", "0"),
        (M, "N 1", "E116"),
        (M, "o 2 @/file r", "0"),
    ])?;
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

fn locks(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let (mut doors, mut third) = (Doors::open(&ground)?, ground.through_mount()?);
    doors.play(&[
        (L, "o 0 @/file wc", "0"),
        (M, "o 0 @/file w", "0"),
        (L, "l 0 x 0 10", "0"),
        (M, "l 0 x 5 10", "E11"),
        (M, "l 0 s 9 1", "E11"),
        (M, "g 0", "1 0 10"),
        (M, "l 0 x 10 0", "0"),
        (L, "l 0 x 10 1", "E11"),
        (L, "g 0", "1 10 0"),
        // A process' own lock is changed, not in its way.
        (M, "l 0 s 12 5", "0"),
        (L, "l 0 s 12 5", "0"),
        (L, "l 0 u 0 0", "0"),
        (M, "l 0 x 0 0", "0"),
        (L, "l 0 s 3 1", "E11"),
        // To close any descriptor of the file gives a process' locks back.
        (M, "o 1 @/file r", "0"),
        (M, "c 1", "0"),
        (L, "l 0 x 0 0", "0"),
        (L, "l 0 u 0 0", "0"),
        // Locks by flock(2) are others.
        (L, "f 0 x", "0"),
        (M, "f 0 s", "E11"),
        (M, "l 0 x 0 0", "0"),
        (L, "f 0 s", "0"),
        (M, "f 0 s", "0"),
        (L, "f 0 x", "E11"),
        (L, "f 0 u", "0"),
        (M, "f 0 x", "0"),
        (L, "f 0 s", "E11"),
        (M, "f 0 u", "0"),
        (M, "l 0 u 0 0", "0"),
        // Locks of a description.
        (M, "O 0 x 100 10", "0"),
        (L, "O 0 s 105 1", "E11"),
        (L, "l 0 s 105 1", "E11"),
        (M, "l 0 x 105 1", "E11"),
        (M, "O 0 u 100 10", "0"),
        (L, "l 0 x 0 0", "0"),
    ])?;
    // Two waits, one of them of a process that is killed meanwhile, and the lock comes.
    if third.ask("o 0 @/file w")? != "0" {
        return Err("it cannot be opened".into());
    }
    third.tell("L 0 x 0 0")?;
    doors.mount.tell("L 0 x 0 0")?;
    thread::sleep(std::time::Duration::from_millis(50));
    drop(third);
    doors.play(&[(L, "l 0 u 0 0", "0")])?;
    if doors.mount.answer()? != "0" {
        return Err("a lock that is waited for does not come".into());
    }
    doors.play(&[(L, "l 0 x 0 0", "E11")])?;
    doors.library.tell("L 0 x 0 0")?;
    doors.play(&[(M, "l 0 u 0 0", "0")])?;
    if doors.library.answer()? != "0" {
        return Err("the library does not get what the mount gave back".into());
    }
    // A lock that is waited for is not lost because another thread closes a descriptor of the file.
    doors.play(&[(M, "o 2 @/file r", "0")])?;
    doors.mount.tell("W 0 2")?;
    thread::sleep(std::time::Duration::from_millis(200));
    doors.play(&[(L, "l 0 u 0 0", "0")])?;
    if doors.mount.answer()? != "0" {
        return Err("a lock that is waited for does not come".into());
    }
    doors.play(&[(L, "l 0 x 0 0", "E11"), (M, "l 0 u 0 0", "0")])?;
    // Who dies gives its locks back.
    doors.play(&[(L, "l 0 u 0 0", "0"), (M, "l 0 x 0 0", "0"), (M, "f 0 x", "0")])?;
    doors.mount = ground.through_mount()?;
    let library = &mut doors.library;
    wait(|| library.ask("l 0 x 0 0").is_ok_and(|answer| answer == "0"))?;
    wait(|| library.ask("f 0 x").is_ok_and(|answer| answer == "0"))?;
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

fn nameless(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (M, "o 0 @/file wc", "0"),
            (L, "o 0 @/file w", "0"),
            (M, "w 0 0 first", "5"),
            (L, "u @/file", "0"),
            (M, "n 0", "0"),
            (M, "r 0 0 9", "first"),
            (M, "w 0 5 second", "6"),
            (L, "r 0 0 20", "firstsecond"),
            (M, "j 0 600", "0"),
            (M, "t 0 2", "0"),
            (L, "z 0", "2"),
            (L, "o 1 @/file wcx", "0"),
            (M, "z 0", "2"),
            (M, "s @/file", "100644 0"),
            (M, "u @/file", "0"),
            (L, "w 1 0 alive", "5"),
            (L, "n 1", "0"),
            // A file that never had a name gets one.
            (M, "o 2 @ wu", "0"),
            (M, "w 2 0 unnamed", "7"),
            (M, "K 2 @/named", "0"),
            (L, "s @/named", "100644 7"),
        ],
    )
}

fn mappings(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (L, "o 0 @/file wc", "0"),
            (L, "w 0 0 abcdefgh", "8"),
            (L, "t 0 100000", "0"),
            (M, "o 0 @/file w", "0"),
            (M, "M 0 100000", "0"),
            (M, "V 0 0 8", "abcdefgh"),
            // What was stored is the array's when msync(2) returns, and what is written through the
            // mount the mapping shows at once.
            (M, "S 0 2 XY", "0"),
            (L, "r 0 0 8", "abXYefgh"),
            (M, "w 0 0 12", "2"),
            (M, "V 0 0 4", "12XY"),
            // A mapping that the other made, which it may only read, shows both.
            (L, "1 0 100000", "0"),
            (L, "V 0 0 8", "12XYefgh"),
            (M, "w 0 50000 through", "7"),
            (L, "V 0 50000 7", "through"),
            (L, "w 0 60000 stored", "6"),
            (M, "r 0 60000 6", "stored"),
            // What is mapped anew shows what the other has written.
            (L, "w 0 70000 later", "5"),
            (M, "o 1 @/file w", "0"),
            (M, "M 1 100000", "0"),
            (M, "V 1 70000 5", "later"),
        ],
    )
}

/// A directory that the other door has moved into another one is found at its new place, whatever
/// the kernel knows of the old one, also where the two have changed places in their order.
fn moved_away(options: &Options, programs: &Programs) -> Result<(), String> {
    on_both(
        options,
        programs,
        &[
            (L, "d @/from", "0"),
            (L, "d @/to", "0"),
            (L, "d @/from/moved", "0"),
            (L, "d @/from/moved/inner", "0"),
            (M, "s @/from/moved/inner", "40755 0"),
            (L, "m @/from/moved @/to/moved", "0"),
            (M, "m @/to/moved @/from/back", "0"),
            (L, "s @/from/back/inner", "40755 0"),
            (M, "D @/from/back", "0"),
            (M, "i @/from/back", "inner"),
            // A program works in it.
            (L, "m @/from/back @/to/again", "0"),
            (M, "m @/to/again @/from/third", "0"),
            (M, "o 0 inner/file wc", "0"),
            (L, "s @/from/third/inner/file", "100644 0"),
            // The directory that lay lowest is moved to the top, and those above it are moved below it.
            (L, "m @/from/third/inner @/top", "0"),
            (L, "m @/from @/top/from", "0"),
            (M, "s @/top/from/third", "40755 0"),
            (M, "m @/top/from/third @/top/third", "0"),
            (M, "s @/top/third", "40755 0"),
            (M, "X @/top/third @/top/from", "0"),
            (L, "d @/top/third/new", "0"),
            (M, "s @/top/third/new", "40755 0"),
            (M, "s @/top/from", "40755 0"),
        ],
    )
}

/// Eight processes append to one file, four on each door: no record is lost or torn, and each one's
/// are in order.
fn appends(options: &Options, programs: &Programs) -> Result<(), String> {
    const COUNT: usize = 300;
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut crowd = Vec::new();
    for _ in 0..4 {
        crowd.extend([ground.through_mount()?, ground.intercepted()?]);
    }
    crowd[0].ask("o 0 @/log wc")?;
    for (index, peer) in crowd.iter_mut().enumerate() {
        peer.tell(&format!("C @/log who{index} {COUNT}"))?;
    }
    for peer in &mut crowd {
        let answer = peer.answer()?;
        if answer != COUNT.to_string() {
            return Err(format!("appending gave {answer}"));
        }
    }
    let text = fs::read_to_string(ground.mounted().join("log")).map_err(|error| error.to_string())?;
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (who, number) = (words.next().unwrap_or_default(), words.next().and_then(|number| number.parse().ok()));
        let next = seen.entry(who).or_default();
        if number != Some(*next) || line.len() != 30 {
            return Err(format!("a record is not what was appended: {line:?}"));
        }
        *next += 1;
    }
    if seen.len() != crowd.len() || seen.values().any(|&count| count != COUNT) {
        return Err(format!("records are lost: {seen:?}"));
    }
    drop(crowd);
    ground.unmount()?;
    ground.conclude()
}

/// A database with a rollback journal that is used on both doors at once: its locks, and what it
/// finds in the file afterwards.
fn sqlite(options: &Options, programs: &Programs) -> Result<(), String> {
    const COUNT: usize = 40;
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    for mode in ["delete", "truncate", "persist"] {
        let (mounted, data) = (ground.mounted().join(mode), ground.data().join(mode));
        let create = format!("PRAGMA journal_mode={mode}; CREATE TABLE rows(who TEXT, number INTEGER);");
        succeed(Command::new("sqlite3").arg(&mounted).arg(create))?;
        // Each transaction adds two rows, or none.
        let rows = |who: &str| -> String {
            let transaction = |number| {
                format!(
                    "BEGIN IMMEDIATE; INSERT INTO rows VALUES('{who}', {number}); \
                     INSERT INTO rows VALUES('{who}', -{number}); COMMIT;\n"
                )
            };
            format!("PRAGMA journal_mode={mode};\n") + &(1..=COUNT).map(transaction).collect::<String>()
        };
        let words = ["-bail", "-cmd", ".timeout 60000"];
        thread::scope(|scope| {
            let through_mount = scope.spawn(|| succeed(Command::new("sqlite3").args(words).arg(&mounted).arg(rows("mount"))));
            let intercepted = ground.run(Command::new("sqlite3").args(words).arg(&data).arg(rows("library")));
            through_mount.join().unwrap_or_else(|_| Err("it has panicked".into())).and(intercepted)
        })
        .map_err(|why| format!("{mode}: {why}"))?;
        let look = "PRAGMA integrity_check; SELECT who, count(*), count(DISTINCT number), sum(number) FROM rows GROUP BY who;";
        let expected = format!("ok\nlibrary|{0}|{0}|0\nmount|{0}|{0}|0\n", 2 * COUNT);
        let found = Command::new("sqlite3").arg(&mounted).arg(look).output().map_err(|error| error.to_string())?;
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        let data = data.display().to_string();
        let again = ground.good(&["run", ground.name(), "--", "sqlite3", &data, look])?;
        if found != expected || again != expected {
            return Err(format!("{mode}: the mount shows {found:?}, the library {again:?}"));
        }
    }
    ground.unmount()?;
    ground.conclude()
}

/// The member that answers is lost while both doors are in use: what is open goes on, and so do
/// directories. What the other door renames while the lowest member is lost is still what it was to
/// the mount, and what takes its name is not.
fn renamed_in_a_loss(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(&[(M, "d @/here", "0"), (M, "o 0 @/log wc", "0"), (M, "w 0 0 old", "3"), (M, "s @/here", "40755 0")])?;
    fs::rename(ground.path("m0"), ground.path("away")).map_err(|error| error.to_string())?;
    doors.play(&[
        (L, "m @/log @/log.1", "0"),
        (L, "m @/here @/there", "0"),
        (L, "o 0 @/log wc", "0"),
        (M, "j 0 600", "0"),
        (L, "s @/log.1", "100600 3"),
        (L, "s @/log", "100644 0"),
        (M, "s @/there", "40755 0"),
        (M, "s @/here", "E2"),
        (M, "r 0 0 9", "old"),
        (M, "o 1 @/log w", "0"),
        (M, "w 1 0 new", "3"),
        (L, "r 0 0 9", "new"),
    ])?;
    drop(doors);
    ground.unmount()?;
    // Nothing of a member that is away can be compared.
    wait(|| ground.good(&["stop", ground.name()]).is_ok())
}

fn loss(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(&[
        (M, "d @/here", "0"),
        (M, "D @/here", "0"),
        (M, "o 0 file wc", "0"),
        (L, "o 0 @/here/file w", "0"),
        (M, "w 0 0 before", "6"),
        (M, "l 0 x 0 10", "0"),
    ])?;
    // It makes no call between the loss and the end.
    let mut idle = ground.intercepted()?;
    let mut hold = |line: &str| if idle.ask(line)? == "0" { Ok(()) } else { Err(format!("'{line}' failed")) };
    hold("o 0 @/here/second wc")?;
    hold("l 0 x 0 50")?;
    fs::rename(ground.path("m0"), ground.path("away")).map_err(|error| error.to_string())?;
    doors.play(&[
        (M, "r 0 0 9", "before"),
        (L, "w 0 6 after", "5"),
        (M, "r 0 0 20", "beforeafter"),
        (M, "w 0 8000 far", "3"),
        (L, "r 0 8000 9", "far"),
        (M, "o 1 other wc", "0"),
        (L, "s @/here/other", "100644 0"),
        (L, "m @/here @/there", "0"),
        (M, "o 2 @/there/file r", "0"),
        (M, "r 2 0 20", "beforeafter"),
        // A lock from before excludes who comes after.
        (L, "o 1 @/there/file w", "0"),
        (L, "l 1 x 0 5", "E11"),
        (M, "l 0 u 0 10", "0"),
        (L, "l 1 x 0 5", "0"),
        (M, "l 0 s 0 1", "E11"),
        // What it is told of such a lock is what it would get.
        (M, "o 3 @/there/second w", "0"),
        (M, "g 3", "1 0 50"),
        (M, "l 3 x 0 10", "E11"),
        (M, "l 3 x 50 10", "0"),
    ])?;
    hold("l 0 u 0 0")?;
    doors.play(&[(M, "g 3", "2 0 0"), (M, "l 3 x 0 10", "0")])?;
    drop((doors, idle));
    ground.unmount()?;
    // Nothing of a member that is away can be compared.
    wait(|| ground.good(&["stop", ground.name()]).is_ok())
}

/// The process that serves the mount is killed: the library's programs go on, and the array can be
/// mounted again.
fn killed(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "1", 2)?;
    ground.mount()?;
    let mut doors = Doors::open(&ground)?;
    doors.play(&[(M, "o 0 @/file wc", "0"), (M, "w 0 0 acknowledged", "12"), (M, "l 0 x 0 0", "0"), (L, "o 0 @/file w", "0")])?;
    ground.kill()?;
    doors.play(&[
        (L, "r 0 0 20", "acknowledged"),
        (L, "w 0 12 more", "4"),
        (L, "l 0 x 0 0", "0"),
        (M, "r 0 0 20", "E107"),
        (M, "s @/file", "E107"),
    ])?;
    ground.mount()?;
    doors.mount = ground.through_mount()?;
    doors.play(&[(M, "o 0 @/file w", "0"), (M, "r 0 0 20", "acknowledgedmore"), (M, "l 0 x 0 0", "E11")])?;
    drop(doors);
    ground.unmount()?;
    ground.conclude()
}

/// The process that serves a mount ends in order when a signal asks it, and says so. What a program
/// has stored through a mapping by then, which it keeps, is not lost.
fn service(options: &Options, programs: &Programs) -> Result<(), String> {
    let mut ground = Ground::new(options, programs, "1", 2)?;
    ground.mount()?;
    let mut inside = ground.through_mount()?;
    if inside.ask("o 0 @/file wc")? != "0" || inside.ask("w 0 0 kept")? != "4" {
        return Err("it cannot be written".into());
    }
    if inside.ask("M 0 4096")? != "0" || inside.ask("8 0 1 EPT")? != "0" {
        return Err("it cannot be mapped".into());
    }
    ground.terminate()?;
    drop(inside);
    if fs::read_dir(ground.mounted()).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err("it is still mounted".into());
    }
    ground.mount()?;
    let mut library = ground.intercepted()?;
    if library.ask("o 0 @/file r")? != "0" || library.ask("r 0 0 9")? != "kEPT" {
        return Err("what was written or stored is lost".into());
    }
    drop(library);
    ground.unmount()?;
    ground.conclude()
}

/// As mount(8) mounts it for a line of /etc/fstab.
fn fstab(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "5", 3)?;
    let mounted = ground.mounted().display().to_string();
    let mut library = ground.intercepted()?;
    library.ask("o 0 @/file wc")?;
    library.ask("w 0 0 text")?;
    for (words, status, why) in [
        (vec![ground.name()], 1, "an array and a directory"),
        (vec![ground.name(), &mounted, "-o", "acl"], 1, "unknown"),
        (vec!["none", &mounted], 32, "no array has this name"),
    ] {
        let output = ground.helper(&words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() != Some(status) || said.lines().count() != 1 || !said.contains(why) {
            return Err(format!("{words:?}: {}, said {said:?}", output.status));
        }
    }
    let output = ground.helper(&[ground.name(), &mounted, "-n", "-o", "ro,allow_other,nofail,_netdev,noexec,nodev,nosuid"])?;
    if !output.status.success() || !output.stdout.is_empty() || !output.stderr.is_empty() {
        return Err(format!("it is not mounted: {output:?}"));
    }
    let list = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
    let line = list.lines().find(|line| line.split(' ').nth(1) == Some(&mounted)).unwrap_or_default();
    if !line.contains(" fuse.cxlraid ro,nosuid,nodev,noexec,") || !line.contains("allow_other") {
        return Err(format!("it is mounted as {line:?}"));
    }
    let status = ground.good(&["status", ground.name(), "--json"])?;
    if !status.contains(&format!("\"mounts\": [\n        \"{mounted}\"\n      ]")) {
        return Err(format!("its JSON does not say that it is mounted: {status}"));
    }
    let mut doors = Doors { mount: ground.through_mount()?, library };
    doors.play(&[(M, "o 0 @/file w", "E30"), (M, "o 0 @/file r", "0"), (M, "r 0 0 9", "text"), (M, "d @/new", "E30")])?;
    drop(doors);
    succeed(Command::new("umount").arg(&mounted))?;
    wait(|| ground.good(&["stop", ground.name()]).is_ok())?;
    ground.conclude()
}

/// What cannot be mounted, or unmounted, is said in one line, and nothing is left of it.
fn refusals(options: &Options, programs: &Programs) -> Result<(), String> {
    let ground = Ground::new(options, programs, "1", 2)?;
    let at = |name: &str| ground.path(name).display().to_string();
    ground.refused(&["mount", ground.name(), &at("")], "lies below it")?;
    ground.refused(&["mount", ground.name(), &at("m1/data")], "no such directory")?;
    ground.refused(&["mount", ground.name(), &at("m1")], "would be hidden")?;
    ground.refused(&["mount", ground.name(), &at("none")], "no such directory")?;
    ground.refused(&["mount", ground.name(), &at("busy")], "not empty")?;
    ground.refused(&["mount", ground.name(), "/dev/null"], "not a directory")?;
    ground.refused(&["mount", ground.name()], "no such directory")?;
    ground.refused(&["mount", "none"], "no array has this name")?;
    ground.refused(&["unmount", ground.name()], "no array that is mounted")?;
    ground.refused(&["unmount", &at("mounted")], "no array is mounted")?;
    let mounted = at("mounted");
    let said = ground.good(&["mount", ground.name(), &mounted])?;
    if said != format!("{}: mounted at {mounted}\n", ground.name()) {
        return Err(format!("it said {said:?}"));
    }
    ground.refused(&["mount", ground.name(), &mounted], "mounted there already")?;
    if !ground.good(&["status", ground.name()])?.contains(&format!("mounted: {mounted}")) {
        return Err("status does not say that it is mounted".into());
    }
    let mut inside = ground.through_mount()?;
    inside.ask("D @")?;
    ground.refused(&["unmount", &mounted], "in use")?;
    drop(inside);
    // When it is unmounted, its process has ended.
    ground.good(&["unmount", &mounted])?;
    ground.good(&["stop", ground.name()])?;
    ground.conclude()
}
