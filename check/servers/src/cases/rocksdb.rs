//! RocksDB: a small program that puts with sync for several clients, killed in the middle; Debian's db_bench with compactions, killed too; then
//! ldb and sst_dump verify what is left.

use super::{Scene, postgresql::lose_one};
use crate::{
    Outcome, audit,
    ledger::{Found, Ledger},
    process::Run,
};
use std::{sync::Mutex, thread::sleep, time::Duration};

const CLIENTS: usize = 3;

/// One process for all clients; see its first lines.
const WRITER: &str = include_str!("rocksdb.py");

/// Puts key by key. A client is nothing but a number: the process serves all of them.
fn load(scene: &Scene<'_>, number: usize, ledger: &mut Ledger, writer: Run<'_>) -> Outcome {
    let session = writer.session()?;
    let pid = session.pid();
    let session = Mutex::new(session);
    let change = |(): &mut (), client: usize, n: u64| {
        let mut session = session.lock().map_err(|_| "poisoned".to_owned())?;
        session.expect(&format!("{client} {n}"), &format!("{client} {n}"))
    };
    ledger.load(scene.load_time(number), |_| Ok(()), change, || crate::tree::kill(pid).map(drop))
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let (script, database) = (array.work.join("rocksdb.py"), array.data.join("puts"));
    std::fs::write(&script, WRITER).map_err(|error| error.to_string())?;
    let mut ledger = Ledger::new(CLIENTS);
    let rounds = scene.rounds * 2;
    for number in 0..rounds {
        // Every second time files are read and written through mappings.
        let mode = ["mmap", "plain"][number % 2];
        load(scene, number, &mut ledger, array.inside("python3").arg(&script).arg(&database).arg(mode))?;
        if number + 1 == rounds {
            audit::audit(array).map_err(|message| format!("after the last kill: {message}"))?;
        }
        let dump = array.inside("ldb").arg(format!("--db={}", database.display())).arg("scan").text()?;
        ledger.check(&found(&dump, CLIENTS)?).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    bench(scene)?;
    lose_one(scene)?;
    for name in ["puts", "bench"] {
        verify(scene, name)?;
    }
    Ok(format!("{} kills, {} synced puts found", rounds + scene.rounds, ledger.total()))
}

/// Keys are `client/n`, values `client n` many times.
pub(super) fn found(scan: &str, clients: usize) -> Outcome<Vec<Found>> {
    let mut found = vec![Found::default(); clients];
    for line in scan.lines() {
        let parsed = line.split_once(" : ").and_then(|(key, value)| {
            let (client, n) = key.split_once('/')?;
            let is_right = value == format!("{client} {};", n.trim_start_matches('0')).repeat(20);
            Some((client.parse::<usize>().ok()?, n.parse::<u64>().ok()?, is_right))
        });
        let Some((client, n, true)) = parsed else { return Err(format!("found: {line}")) };
        let one = found.get_mut(client).ok_or_else(|| format!("found: {line}"))?;
        *one = Found { count: one.count + 1, last: one.last.max(n), counter: one.last.max(n) };
    }
    Ok(found)
}

/// Small buffers: flushes and compactions all the time.
fn bench(scene: &Scene<'_>) -> Outcome {
    let words = "--write_buffer_size=262144 --target_file_size_base=262144 --max_bytes_for_level_base=1048576 --value_size=200 \
        --compression_type=none --threads=2 --seed=7";
    let run = |benchmarks: &str, existing: bool, count: u64| {
        let run = scene.array.inside("db_bench").words(words).arg(format!("--benchmarks={benchmarks}"));
        let run = run.arg(format!("--db={}", scene.array.data.join("bench").display())).arg(format!("--num={count}"));
        if existing { run.arg("--use_existing_db=1") } else { run }
    };
    let count = scene.sized(5_000, 50_000);
    run("fillrandom,overwrite,readrandom,compact,readseq,verifychecksum", false, count).done()?;
    for number in 0..scene.rounds {
        let mut load = run("overwrite", true, 1_000_000_000).words("--mmap_read=1 --mmap_write=1").start()?;
        sleep(scene.load_time(number).min(Duration::from_secs(2)));
        if load.kill()? == 0 {
            return Err(format!("db_bench ended by itself\n{}", load.tail()));
        }
        drop(load);
        run("readrandom,verifychecksum", true, count).words("--mmap_read=1").done()?;
    }
    Ok(())
}

fn verify(scene: &Scene<'_>, name: &str) -> Outcome {
    let directory = scene.array.data.join(name);
    let checked = scene.array.inside("ldb").arg(format!("--db={}", directory.display())).arg("checkconsistency").text()?;
    audit::same("ldb checkconsistency", "OK\n", &checked)?;
    let verified =
        scene.array.inside("sst_dump").arg(format!("--file={}", directory.display())).arg("--command=verify").text()?;
    if verified.contains("corrupt") || !verified.contains("is ok") {
        return Err(format!("sst_dump: {}", crate::process::last_lines(&verified)));
    }
    Ok(())
}
