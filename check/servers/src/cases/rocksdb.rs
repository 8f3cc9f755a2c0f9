//! Tests RocksDB. A small program puts keys with sync for several clients and is killed, again and
//! again; every acknowledged put must then be there. Debian's db_bench runs with many compactions
//! and is killed too. Then the array loses a member, every acknowledged put must still be there,
//! and ldb and sst_dump verify both databases.

use super::{Scene, postgresql::lose_one};
use crate::{
    Outcome, audit,
    ledger::{Found, Ledger},
    process::Run,
};
use std::{sync::Mutex, thread::sleep, time::Duration};

const CLIENTS: usize = 3;

/// The writer. It reads `client n` line by line, puts the key with sync, and then prints the same
/// line.
const WRITER: &str = include_str!("rocksdb.py");

/// Lets the clients put keys through one writer for the load time of round `number`, then kills the
/// writer. A client is only a number in the keys. The clients take turns: the session has one
/// request at a time.
fn load(scene: &Scene<'_>, number: usize, ledger: &mut Ledger, writer: Run<'_>) -> Outcome {
    let session = writer.session()?;
    let pid = session.pid();
    let session = Mutex::new(session);
    let change = |(): &mut (), client: usize, n: u64| {
        let mut session = session.lock().map_err(|_| "poisoned".to_owned())?;
        let (request, answer) = (format!("{client} {n}"), format!("{client} {n}"));
        session.expect(&request, &answer)
    };
    let connect = |_| Ok(());
    let kill = || crate::tree::kill(pid).map(drop);
    ledger.load(scene.load_time(number), connect, change, kill)
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let (script, database) = (array.work.join("rocksdb.py"), array.data.join("puts"));
    std::fs::write(&script, WRITER).map_err(|error| error.to_string())?;
    let mut ledger = Ledger::new(CLIENTS);
    let modes = ["mmap", "plain"];
    let rounds = scene.rounds * modes.len();
    let check = |ledger: &mut Ledger| {
        let dump = array.inside("ldb").arg(format!("--db={}", database.display())).arg("scan").text()?;
        ledger.check(&found(&dump, CLIENTS)?)
    };
    for number in 0..rounds {
        // "mmap": RocksDB reads and writes its files through mappings. "plain": with read and
        // write.
        let mode = modes[number % modes.len()];
        load(scene, number, &mut ledger, array.inside("python3").arg(&script).arg(&database).arg(mode))?;
        // Before the scan, which opens the database and so makes it whole.
        if number + modes.len() >= rounds {
            audit::audit(array).map_err(|message| format!("after the writer's last kill in mode {mode}: {message}"))?;
        }
        check(&mut ledger).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    bench(scene)?;
    audit::audit(array).map_err(|message| format!("after db_bench: {message}"))?;
    lose_one(scene)?;
    check(&mut ledger).map_err(|message| format!("after the loss of a member: {message}"))?;
    for name in ["puts", "bench"] {
        verify(scene, name)?;
    }
    Ok(format!("{} kills, {} synced puts found", rounds + scene.rounds, ledger.total()))
}

/// Counts each client's keys in the output of `ldb scan`. A line is `client/n : value`, n with
/// leading zeros; the value is `client n;` 20 times, n without them.
///
/// # Errors
/// Any other line.
pub(super) fn found(scan: &str, clients: usize) -> Outcome<Vec<Found>> {
    let mut found = vec![Found::default(); clients];
    for line in scan.lines() {
        let parsed = line.split_once(" : ").and_then(|(key, value)| {
            let (client, n) = key.split_once('/')?;
            let is_right = value == format!("{client} {};", n.trim_start_matches('0')).repeat(20);
            Some((client.parse::<usize>().ok()?, n.parse::<u64>().ok()?, is_right))
        });
        let Some((client, n, true)) = parsed else { return Err(format!("not a line that the writer has put: {line}")) };
        let one = found.get_mut(client).ok_or_else(|| format!("a client that there is not: {line}"))?;
        // RocksDB has no counter of its own: the last number stands for it.
        *one = Found { count: one.count + 1, last: one.last.max(n), counter: one.last.max(n) };
    }
    Ok(found)
}

/// Fills a database with db_bench, then in each round overwrites it, kills db_bench, and reads the
/// database with checksums. Buffers are small, so that RocksDB flushes and compacts all the time.
fn bench(scene: &Scene<'_>) -> Outcome {
    /// db_bench does not come to its end.
    const ENDLESS: u64 = 1_000_000_000;
    let options = "--write_buffer_size=262144 --target_file_size_base=262144 --max_bytes_for_level_base=1048576 --value_size=200 \
        --compression_type=none --threads=2 --seed=7";
    let run = |benchmarks: &str, existing: bool, count: u64| {
        let run = scene.array.inside("db_bench").words(options).arg(format!("--benchmarks={benchmarks}"));
        let run = run.arg(format!("--db={}", scene.array.data.join("bench").display())).arg(format!("--num={count}"));
        if existing { run.arg("--use_existing_db=1") } else { run }
    };
    let count = scene.sized(5_000, 50_000);
    run("fillrandom,overwrite,readrandom,compact,readseq,verifychecksum", false, count).done()?;
    for number in 0..scene.rounds {
        let mut load = run("overwrite", true, ENDLESS).words("--mmap_read=1 --mmap_write=1").start()?;
        sleep(scene.load_time(number).min(Duration::from_secs(2)));
        // The number of processes that were killed.
        if load.kill()? == 0 {
            return Err(format!("db_bench ended by itself\n{}", load.tail()));
        }
        drop(load);
        run("readrandom,verifychecksum", true, count).words("--mmap_read=1").done()?;
    }
    Ok(())
}

/// Verifies a database: ldb finds it consistent, and sst_dump finds every table in it right.
fn verify(scene: &Scene<'_>, name: &str) -> Outcome {
    let directory = scene.array.data.join(name);
    let checked = scene.array.inside("ldb").arg(format!("--db={}", directory.display())).arg("checkconsistency").text()?;
    audit::same("ldb checkconsistency", "OK\n", &checked)?;
    // Whoever opens the database to write removes what a writer that was killed had not finished: a
    // table that no part of the database names.
    scene.array.inside("ldb").arg(format!("--db={}", directory.display())).args(["put", "verified", "once"]).done()?;
    let verified =
        scene.array.inside("sst_dump").arg(format!("--file={}", directory.display())).arg("--command=verify").text()?;
    // One "Process FILE" for each table, and one "The file is ok" for each that is right.
    let count = |words: &str| verified.lines().filter(|line| line.contains(words)).count();
    if verified.contains("corrupt") || count("is ok") == 0 || count("is ok") != count("Process ") {
        let of_table = |table: &&str| table.starts_with("/") && !table.contains("is ok");
        let wrong: Vec<&str> = verified.split("Process ").filter(of_table).collect();
        return Err(format!(
            "sst_dump: {} tables are right, and of these it does not say so:\n{}",
            count("is ok"),
            wrong.join("\n")
        ));
    }
    Ok(())
}
