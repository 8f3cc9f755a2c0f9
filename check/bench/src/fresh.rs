//! Programs that make new bytes, small files and much of both: tar, git, rm, sqlite3, dd, redis,
//! make, postmark. Each runs on arrays of several levels, in an ordinary directory of the same
//! tmpfs and on ext4, by turns.
//!
//! A piece of work is three scripts for sh(1), in which `$D` is the directory that is measured,
//! `$S` one that lies beside it and never on an array, and `$N` how much is to be done. Only the
//! second script is timed. The third fails if what the second has left is wrong.

use crate::library::Library;
use crate::members::{Ext4, Scratch};
use crate::plan::{ArrayPlace, Plan};
use crate::report::{Check, Row};
use crate::rounds::Times;
use crate::strace::system_calls;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The level whose rows have goals.
const GOAL_LEVEL: &str = "5";
/// Levels, and how many members each has.
const LEVELS: [(&str, usize); 3] = [("5", 3), ("1", 2), ("6", 4)];

/// A piece of work.
struct Work {
    name: &'static str,
    /// The program that it is about.
    program: &'static str,
    /// What [`Plan::fresh_count`] is divided by for `$N`.
    divisor: usize,
    prepare: &'static str,
    run: &'static str,
    verify: &'static str,
    /// The time that the work may take at level 5, in times of that in an ordinary directory of
    /// tmpfs. None if there is no goal.
    goal: Option<f64>,
    /// True if the system calls of the work are counted, for each of `$N` things.
    counts_calls: bool,
}

const fn work(name: &'static str, program: &'static str, divisor: usize, scripts: [&'static str; 3], goal: Option<f64>) -> Work {
    let [prepare, run, verify] = scripts;
    Work { name, program, divisor, prepare, run, verify, goal, counts_calls: false }
}

/// A database that `prepare` makes gets the rows of [`SOURCES`], each in a transaction of its own.
const fn commits(name: &'static str, prepare: &'static str, goal: f64) -> Work {
    let verify = r#"test "$(sqlite3 "$D/db" 'select count(*) from t; pragma integrity_check')" = "$(grep -c insert "$S/sql")
ok""#;
    work(name, "sqlite3", 1, [prepare, r#"sqlite3 "$D/db" < "$S/sql""#, verify], Some(goal))
}

/// Makes once what works take: trees of files to be packed (small ones of up to 8 KiB, and large
/// ones of 144 KiB), a C project, and commits of one row each.
const SOURCES: &str = r#"
mkdir -p "$S/small" "$S/large" "$S/build" && cd "$S" || exit
head -c 8192 /dev/urandom > block && head -c 147456 /dev/urandom > large-block || exit
i=0; while [ $i -lt $N ]; do
    d=small/$((i % 61)); [ -d $d ] || mkdir $d
    head -c $((i * 7919 % 8192)) block > $d/$i; i=$((i + 1))
done
i=0; while [ $i -lt $((N / 4 + 1)) ]; do cp large-block large/$i; i=$((i + 1)); done
i=0; objects=; while [ $i -lt $((N / 120 + 2)) ]; do
    { echo '#include <stdio.h>'; echo "int part$i(int x) { return putchar(x) + $i; }"; } > build/part$i.c
    objects="$objects part$i.o"; i=$((i + 1))
done
echo "int main(void) { return 0; }" > build/main.c
echo "all: main.o$objects
	cc -o all main.o$objects" > build/Makefile
{ echo 'pragma synchronous=full;'
  i=0; while [ $i -lt $N ]; do echo "insert into t values($i, 'some text of a row');"; i=$((i + 1)); done; } > sql
tar cf small.tar -C small . && tar cf large.tar -C large . && tar cf build.tar -C build .
"#;

const WORKS: &[Work] = &[
    Work {
        counts_calls: true,
        ..work(
            "tar x, small files",
            "tar",
            1,
            [r#"mkdir "$D/t""#, r#"tar xf "$S/small.tar" -C "$D/t""#, r#"diff -r "$S/small" "$D/t""#],
            Some(4.0),
        )
    },
    work(
        "tar x, 144 KiB files",
        "tar",
        4,
        [r#"mkdir "$D/t""#, r#"tar xf "$S/large.tar" -C "$D/t""#, r#"diff -r "$S/large" "$D/t""#],
        Some(2.0),
    ),
    work(
        "git init, add",
        "git",
        1,
        [
            r#"mkdir "$D/t" && tar xf "$S/small.tar" -C "$D/t""#,
            r#"cd "$D/t" && git init -q . && git add ."#,
            r#"cd "$D/t" && git fsck --strict && test -z "$(git status --porcelain | grep -v '^A ')""#,
        ],
        Some(1.6),
    ),
    work(
        "rm -r, small files",
        "rm",
        1,
        [r#"mkdir "$D/t" && tar xf "$S/small.tar" -C "$D/t""#, r#"rm -r "$D/t""#, r#"test ! -e "$D/t""#],
        Some(2.5),
    ),
    commits(
        "sqlite3, rollback journal, a row a commit",
        r#"sqlite3 "$D/db" 'pragma journal_mode=delete; create table t(a, b)' > /dev/null"#,
        1.0 / 0.6,
    ),
    commits(
        "sqlite3, WAL, a row a commit",
        r#"sqlite3 "$D/db" 'pragma journal_mode=wal; create table t(a, b)' > /dev/null"#,
        1.0,
    ),
    work(
        "dd, a new file, 4 KiB writes",
        "dd",
        19,
        [
            "",
            r#"dd if=/dev/zero of="$D/f" bs=4k count=$((N * 256 + 1)) status=none"#,
            r#"test $(wc -c < "$D/f") = $((N * 1048576 + 4096))"#,
        ],
        Some(1.0 / 0.6),
    ),
    work(
        "dd, a new file, 1 MiB writes",
        "dd",
        19,
        [
            "",
            r#"dd if=/dev/zero of="$D/f" bs=1M count=$((N + 1)) status=none"#,
            r#"test $(wc -c < "$D/f") = $((N * 1048576 + 1048576))"#,
        ],
        Some(1.0 / 0.6),
    ),
    work(
        "dd, one pass over an old file, 4 KiB writes",
        "dd",
        19,
        [
            r#"dd if=/dev/zero of="$D/f" bs=1M count=$((N + 1)) status=none"#,
            r#"dd if="$S/small.tar" of="$D/f" bs=4k count=$((N * 256)) conv=notrunc status=none iflag=fullblock"#,
            r#"test $(wc -c < "$D/f") = $((N * 1048576 + 1048576)) && head -c 4096 "$S/small.tar" | cmp -n 4096 - "$D/f""#,
        ],
        Some(1.0 / 0.7),
    ),
    work(
        "redis, each write to a file, SET of 1,000 bytes",
        "redis-server",
        1,
        [
            r#"cd "$D" && redis-server --port 0 --unixsocket "$S/redis" --appendonly yes --appendfsync always --save '' --dir "$D" --daemonize yes --logfile "$S/redis.log" > /dev/null && for i in $(seq 100); do redis-cli -s "$S/redis" ping 2> /dev/null | grep -q PONG && exit 0; sleep 0.05; done; exit 1"#,
            r#"redis-benchmark -s "$S/redis" -c 50 -d 1000 -n $((N * 2)) -r 1000 -t set -q > /dev/null"#,
            r#"test "$(redis-cli -s "$S/redis" dbsize)" -gt 0; ok=$?; redis-cli -s "$S/redis" shutdown nosave; while [ -e "$S/redis" ]; do sleep 0.02; done; exit $ok"#,
        ],
        Some(1.0 / 0.95),
    ),
    work(
        "make -j2 of a small C project",
        "make",
        120,
        [r#"mkdir "$D/t" && tar xf "$S/build.tar" -C "$D/t""#, r#"make -s -j2 -C "$D/t""#, r#""$D/t/all""#],
        None,
    ),
    work(
        "postmark, 512 bytes to 10 KB",
        "postmark",
        2,
        [
            "",
            r#"printf '%s\n' "set location $D" "set number $N" "set transactions $N" 'set size 512 10240' run quit | postmark > "$S/postmark.txt""#,
            r#"grep -q 'created' "$S/postmark.txt""#,
        ],
        None,
    ),
];

/// A place that is measured: its directory, and the array that it lies on, if it does.
struct Place {
    directory: PathBuf,
    array: Option<ArrayPlace>,
}

/// Holds what all works are given.
struct Ground<'a> {
    plan: &'a Plan,
    library: &'a Library,
    scratch: &'a Scratch,
    source: PathBuf,
}

/// Returns the rows of all works.
pub(crate) fn rows(plan: &Plan, library: &Library) -> Result<Vec<Row>, String> {
    let said = crate::library::said;
    let scratch = Scratch::new("fresh").map_err(said)?;
    let source = scratch.path().join("source");
    let ground = Ground { plan, library, scratch: &scratch, source };
    std::fs::create_dir(&ground.source).map_err(said)?;
    let mut places = Vec::new();
    for (level, count) in LEVELS {
        let array = scratch.array(level, count).map_err(said)?;
        places.push(Place { directory: array.prefix.clone(), array: Some(array) });
    }
    let plain = scratch.path().join("plain");
    std::fs::create_dir(&plain).map_err(said)?;
    places.push(Place { directory: plain, array: None });
    // It is unmounted before `scratch` removes the directory that it lies in.
    let ext4 = Ext4::new(scratch.path(), plan.fresh_count as u64 * (512 << 10) + (256 << 20));
    let without = ext4.as_ref().err().map(|error| format!("no ext4 beside: {error}"));
    if let Ok(ext4) = &ext4 {
        places.push(Place { directory: ext4.path().to_owned(), array: None });
    }
    ground.script(&places[LEVELS.len()], SOURCES, plan.fresh_count).map_err(|error| format!("files to be packed: {error}"))?;
    let mut rows = Vec::new();
    for work in WORKS {
        if stage::process::find_program(work.program).is_none() {
            let why = format!("{} is not installed", work.program);
            rows.push(Row::not_measured(work.name, &why));
            continue;
        }
        let mut measured = ground.measure(work, &places).map_err(|error| format!("{}: {error}", work.name))?;
        if let (Some(first), Some(without)) = (measured.first_mut(), &without) {
            first.note = [first.note.as_str(), without].join(" ").trim().to_owned();
        }
        rows.extend(measured);
    }
    Ok(rows)
}

impl Ground<'_> {
    /// Returns one row for each level: the work on that array, beside the ordinary directory.
    fn measure(&self, work: &Work, places: &[Place]) -> io::Result<Vec<Row>> {
        let count = self.plan.fresh_count / work.divisor + 1;
        let mut times = vec![Vec::new(); places.len()];
        for round in 0..self.plan.fresh_rounds {
            for turn in 0..places.len() {
                let index = (turn + round) % places.len();
                times[index].push(self.round(work, &places[index], count)?);
            }
        }
        let calls = if work.counts_calls { self.calls(work, places, count) } else { String::new() };
        let times = Times::new(times);
        let plain = LEVELS.len();
        let ext4 = (places.len() > plain + 1).then(|| format!("ext4 {:.2} s", times.nanoseconds(plain + 1) / 1e9));
        let row = |(index, (level, members)): (usize, &(&str, usize))| {
            let ratio = times.ratio(index, plain);
            let goal = work.goal.filter(|_| *level == GOAL_LEVEL);
            let mut named = vec![("array", index), ("plain tmpfs", plain)];
            named.extend(ext4.is_some().then_some(("ext4 on loop", plain + 1)));
            let notes = if *level == GOAL_LEVEL { [ext4.clone().unwrap_or_default(), calls.clone()] } else { Default::default() };
            Row {
                ours_ns: Some(times.nanoseconds(index)),
                kernel_ns: Some(times.nanoseconds(plain)),
                kernel_ratio: Some(times.ratio(plain, index)),
                rounds: times.named(&named),
                checks: goal.map(|goal| Check::at_most("x the kernel's time", ratio, goal)).into_iter().collect(),
                note: notes.into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join(", "),
                ..Row::new(format!("{}, RAID {level} x {members}", work.name))
            }
        };
        Ok(LEVELS.iter().enumerate().map(row).collect())
    }

    /// Does the work once in an empty directory. Returns how long its second script took, in
    /// nanoseconds.
    fn round(&self, work: &Work, place: &Place, count: usize) -> io::Result<f64> {
        self.script(place, r#"mkdir -p "$D" && rm -rf "$D"/* "$D"/.[!.]*"#, count)?;
        self.script(place, work.prepare, count)?;
        let begun = Instant::now();
        let run = self.script(place, work.run, count);
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        // The third script runs after a failure too: it ends what the first has started.
        let verified = self.script(place, work.verify, count);
        run.and(verified)?;
        Ok(nanoseconds)
    }

    /// Says how many system calls the work makes on the first array and in the ordinary directory,
    /// for each thing that is made.
    fn calls(&self, work: &Work, places: &[Place], count: usize) -> String {
        let of = |place: &Place| -> Result<f64, String> {
            let said = crate::library::said;
            self.script(place, r#"rm -rf "$D"/*"#, count).map_err(said)?;
            self.script(place, work.prepare, count).map_err(said)?;
            Ok(system_calls(&self.command(place, work.run, count))? as f64 / count as f64)
        };
        match (of(&places[0]), of(&places[LEVELS.len()])) {
            (Ok(ours), Ok(kernel)) => format!("system calls each: {ours:.1}, the kernel alone {kernel:.1}"),
            (Err(why), _) | (_, Err(why)) => format!("system calls not counted: {why}"),
        }
    }

    fn command(&self, place: &Place, script: &str, count: usize) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        if let Some(array) = &place.array {
            shell = self.library.preloaded(shell, array, self.scratch.path());
        }
        shell.env("D", &place.directory).env("S", &self.source).env("N", count.to_string());
        // git asks who commits, and where its settings are.
        shell.env("HOME", &self.source).env("GIT_CONFIG_NOSYSTEM", "1");
        shell
    }

    fn script(&self, place: &Place, script: &str, count: usize) -> io::Result<()> {
        if script.is_empty() {
            return Ok(());
        }
        let output = self.command(place, script, count).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        Err(io::Error::other(format!("in {}: {script}: {}\n{printed}{said}", place.directory.display(), output.status)))
    }
}
