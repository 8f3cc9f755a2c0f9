//! Shared writable mappings: only one door has some of a file, and the one that comes second hears
//! of it. Nothing that was stored or committed is lost.

use crate::{
    Options,
    ground::{Ground, wait},
    peer::Programs,
    scenes::{
        Door::{L, M},
        Doors,
    },
};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

/// What mmap(2) answers where a file has no such mappings, and mprotect(2).
const REFUSED: &str = "E19";
const NO_RIGHT: &str = "E13";
/// What open(2) answers through the mount.
const BUSY: &str = "E16";

/// Both orders, on a small file (which has a shared copy under the library), on a large one, and on a
/// level without redundancy.
pub(crate) fn in_turn(options: &Options, programs: &Programs) -> Result<(), String> {
    for (level, member_count, bytes) in [("5", 3, 100_000), ("5", 3, 3_000_000), ("0", 2, 100_000)] {
        let mut ground = Ground::new(options, programs, level, member_count)?;
        ground.mount()?;
        both_orders(&mut ground, bytes).map_err(|why| format!("RAID {level}, {bytes} bytes: {why}"))?;
        ground.unmount()?;
        ground.conclude()?;
    }
    Ok(())
}

fn both_orders(ground: &mut Ground<'_>, bytes: u64) -> Result<(), String> {
    let line = |what: &str| format!("{what} {bytes}");
    let (shared, to_read, private, unmap) = (line("M 0"), line("1 0"), line("2 0"), line("3 0"));
    let mut doors = Doors::open(ground)?;
    doors.play(&[
        // The library comes first.
        (L, "o 0 @/file wc", "0"),
        (L, &line("t 0"), "0"),
        (L, &shared, "0"),
        (M, "o 0 @/file w", BUSY),
        (M, "o 0 @/file wt", BUSY),
        (L, "z 0", &bytes.to_string()),
        (L, "S 0 50000 stored", "0"),
        // One that only reads has mappings, and private ones.
        (M, "o 1 @/file r", "0"),
        (M, &line("1 1"), "0"),
        (M, "V 1 50000 6", "stored"),
        (M, &line("3 1"), "0"),
        (M, &line("2 1"), "0"),
        (M, "V 1 50000 6", "stored"),
        (M, &line("3 1"), "0"),
        (M, "c 1", "0"),
        // The library's program forks, and only its child has the mapping.
        (L, "6 1", "0"),
        (L, &unmap, "0"),
        (M, "o 0 @/file w", BUSY),
        (L, "7 1", "0"),
    ])?;
    // A mapping may end a moment after munmap(2), or the death of its process.
    let opens = |doors: &mut Doors| wait(|| doors.play(&[(M, "o 0 @/file w", "0")]).is_ok());
    opens(&mut doors)?;
    doors.play(&[
        // The mount comes first.
        (M, &shared, "0"),
        (M, "S 0 60000 mounted", "0"),
        (L, &shared, REFUSED),
        (L, "r 0 60000 7", "mounted"),
        (L, &private, "0"),
        (L, "V 0 60000 7", "mounted"),
        (L, &unmap, "0"),
        (L, &to_read, "0"),
        (L, "V 0 60000 7", "mounted"),
        (L, &line("4 0"), NO_RIGHT),
        (L, "V 0 60000 7", "mounted"),
        (M, "S 0 70000 again", "0"),
        (L, "r 0 70000 5", "again"),
        // The mapping is the last that holds the file open.
        (M, "c 0", "0"),
        (L, &line("4 0"), NO_RIGHT),
        (M, &unmap, "0"),
    ])?;
    // The kernel tells of the last close a moment after it.
    wait(|| doors.play(&[(L, &line("4 0"), "0")]).is_ok())?;
    doors.play(&[(L, "S 0 80000 mine", "0"), (L, &unmap, "0")])?;
    opens(&mut doors)?;
    doors.play(&[
        // Open at both before either maps it; and the mount's program ends without a word.
        (L, &shared, REFUSED),
        (M, &shared, "0"),
        (M, "V 0 80000 4", "mine"),
        (M, "S 0 80010 last", "0"),
    ])?;
    doors.mount = ground.through_mount()?;
    doors.play(&[(L, &shared, "0"), (L, "V 0 80010 4", "last"), (L, "S 0 80020 next", "0")])?;
    // So does the library's.
    doors.library = ground.intercepted()?;
    opens(&mut doors)?;
    doors.play(&[(M, &shared, "0"), (M, "V 0 80020 4", "next")])?;
    // And the process that serves the mount.
    doors.play(&[(L, "o 0 @/file w", "0"), (L, &shared, REFUSED)])?;
    ground.kill()?;
    doors.play(&[(L, &shared, "0"), (L, "V 0 80020 4", "next"), (L, &unmap, "0")])?;
    drop(doors);
    ground.mount()
}

/// SQLite in WAL mode keeps its index in a mapping. While one door has the database open, the other
/// is told that it cannot; what either was told to be committed is there.
pub(crate) fn wal(options: &Options, programs: &Programs) -> Result<(), String> {
    const COUNT: usize = 40;
    let mut ground = Ground::new(options, programs, "5", 3)?;
    ground.mount()?;
    let (mounted, data) = (ground.mounted().join("base"), ground.data().join("base"));
    let mut maker = Shell::start(&mut ground.running("sh"), &data)?;
    let made = maker.ask("PRAGMA journal_mode=wal; CREATE TABLE rows(who TEXT, number INTEGER);")?;
    let mut committed = [("library", 0), ("mount", 0)];
    let mut is_refused = [false; 2];
    // One has the database open while the other tries, and the other way round.
    let commit = |shell: &mut Shell, who: &str, number: usize| -> Result<bool, String> {
        Ok(shell.ask(&format!("INSERT INTO rows VALUES('{who}', {number});"))?.is_empty())
    };
    if made != ["wal"] {
        return Err(format!("the database was made with {made:?}"));
    }
    let mut first = maker;
    for turn in [0, 1] {
        let mut second = if turn == 0 {
            Shell::start(&mut Command::new("sh"), &mounted)?
        } else {
            first = Shell::start(&mut Command::new("sh"), &mounted)?;
            if !commit(&mut first, "mount", 1000)? {
                return Err("the mount cannot be first".into());
            }
            committed[1].1 += 1;
            Shell::start(&mut ground.running("sh"), &data)?
        };
        for number in 0..COUNT {
            committed[turn].1 += usize::from(commit(&mut first, committed[turn].0, number)?);
            if commit(&mut second, committed[1 - turn].0, number)? {
                committed[1 - turn].1 += 1;
            } else {
                is_refused[turn] = true;
            }
        }
        drop(second);
        first.end()?;
        first = Shell::start(&mut ground.running("sh"), &data)?;
    }
    drop(first);
    if is_refused != [true; 2] || committed[0].1 < COUNT || committed[1].1 < COUNT {
        return Err(format!("who came second was refused: {is_refused:?}; committed: {committed:?}"));
    }
    all_there(&ground, &mounted, &data, committed)?;
    // Both at once, as fast as they can: each is told for each row whether it is there.
    thread::scope(|scope| {
        let crowd = |who: &'static str, is_mount: bool| {
            let (ground, path) = (&ground, if is_mount { &mounted } else { &data });
            scope.spawn(move || -> Result<usize, String> {
                let mut count = 0;
                for number in 0..COUNT {
                    let mut command = if is_mount { Command::new("sh") } else { ground.running("sh") };
                    let mut shell = Shell::start(&mut command, path)?;
                    count += usize::from(commit(&mut shell, who, 2000 + number)?);
                }
                Ok(count)
            })
        };
        let both = [crowd("library", false), crowd("mount", true)];
        for (index, worker) in both.into_iter().enumerate() {
            committed[index].1 += worker.join().unwrap_or_else(|_| Err("it has panicked".into()))?;
        }
        Ok::<(), String>(())
    })?;
    all_there(&ground, &mounted, &data, committed)?;
    ground.unmount()?;
    ground.conclude()
}

/// Each door shows what was committed, and no more.
fn all_there(ground: &Ground<'_>, mounted: &Path, data: &Path, committed: [(&str, usize); 2]) -> Result<(), String> {
    const LOOK: &str = "PRAGMA integrity_check; SELECT who, count(*) FROM rows GROUP BY who;";
    let mut expected = vec!["ok".to_owned()];
    expected.extend(committed.iter().filter(|(_, count)| *count > 0).map(|(who, count)| format!("{who}|{count}")));
    for (command, path) in [(&mut Command::new("sh"), mounted), (&mut ground.running("sh"), data)] {
        let mut shell = Shell::start(command, path)?;
        let found = shell.ask(LOOK)?;
        shell.end()?;
        if found != expected {
            return Err(format!("{}: {found:?}, and {expected:?} was committed", path.display()));
        }
    }
    Ok(())
}

/// A sqlite3 that is told line by line.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(command: &mut Command, base: &Path) -> Result<Self, String> {
        // What it says of errors comes between its answers.
        command.args(["-c", "exec sqlite3 -batch -cmd '.timeout 5000' \"$0\" 2>&1"]).arg(base);
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("sqlite3: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Has sqlite3 execute statements, and returns the lines that it prints.
    fn ask(&mut self, statements: &str) -> Result<Vec<String>, String> {
        let input = self.input.as_mut().ok_or("it has ended")?;
        writeln!(input, "{statements}\nSELECT 'said';").map_err(|error| error.to_string())?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).map_err(|error| error.to_string())?;
            match line.trim_end() {
                "said" => return Ok(lines),
                "" => return Err(format!("sqlite3 has ended at {statements}, after {lines:?}")),
                text => lines.push(text.to_owned()),
            }
        }
    }

    /// Ends it, which closes the database.
    fn end(&mut self) -> Result<(), String> {
        drop(self.input.take());
        self.child.wait().map(|_| ()).map_err(|error| error.to_string())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
