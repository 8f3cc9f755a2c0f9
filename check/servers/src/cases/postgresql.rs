//! PostgreSQL 15: initdb with checksums, pgbench, clients whose commits are counted, kill -9 of all
//! its processes, recovery, amcheck, and dumps that must be the same before and after. Parallel
//! queries go on all the time: what their processes share are files of the array that they map.

use super::{Scene, await_ready};
use crate::{Outcome, array::Array, audit, ledger::Ledger, process::Process, session::Session, tree};
use rustix::process::Signal;
use std::{collections::BTreeSet, fs};

const CLIENTS: usize = 4;

/// Small caches and logs, so that pages are evicted and checkpoints, log files and their renames
/// happen all the time. fsync is on.
const SETTINGS: &str = "-c huge_pages=off -c dynamic_shared_memory_type=mmap -c fsync=on -c synchronous_commit=on -c listen_addresses= -c shared_buffers=8MB -c max_connections=30 \
    -c max_wal_size=24MB -c min_wal_size=8MB -c checkpoint_timeout=30s -c autovacuum_naptime=2s -c work_mem=256kB \
    -c maintenance_work_mem=2MB -c log_min_messages=warning";

const TABLES: &str = "
    CREATE TABLE changes (client int, n bigint, text text, PRIMARY KEY (client, n));
    CREATE INDEX changes_text ON changes (text);
    CREATE TABLE counters (client int PRIMARY KEY, last bigint);
    INSERT INTO counters SELECT c, 0 FROM generate_series(0, 3) c;";

const FOUND: &str = "SELECT c.client, count(n), coalesce(max(n), 0), last FROM counters c LEFT JOIN changes USING (client) \
    GROUP BY c.client, last ORDER BY 1";
/// Counts the rows whose text is not what the client wrote.
const WRONG: &str = "SELECT count(*) FROM changes WHERE text <> repeat(md5(client || ' ' || n), 12)";
/// Each transaction of pgbench adds the same amount to an account, a teller, a branch and the
/// history (pgbench(1), "TPC-B (sort of)").
const BALANCES: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers) \
    AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches) \
    AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";

/// A hash join that several processes make with one hash table. On some rows a process sleeps, so
/// others take rows over, and the join lasts long enough for its processes to be looked at.
const JOIN: &str = "SELECT count(*), sum(length(a.filler) + b.aid % 7) FROM pgbench_accounts a JOIN pgbench_accounts b USING (aid) \
    WHERE aid % 20000 <> 0 OR pg_sleep(0.1) IS NOT NULL";
const PARALLEL: &str = "SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; \
    SET min_parallel_table_scan_size = 0; SET enable_mergejoin = off; SET enable_nestloop = off;";
const ALONE: &str = "SET max_parallel_workers_per_gather = 0;";

/// A cluster on an array; clients see the host only.
struct Cluster<'a> {
    array: &'a Array<'a>,
    directory: String,
    socket: String,
}

impl<'a> Cluster<'a> {
    fn init(array: &'a Array<'a>) -> Outcome<Self> {
        let directory = array.data.join("cluster").display().to_string();
        let socket = array.work.display().to_string();
        let words = "-U postgres --auth=trust --no-locale -E UTF8 --data-checksums --wal-segsize=4 -D";
        array.inside("initdb").words(words).arg(&directory).done()?;
        Ok(Self { array, directory, socket })
    }

    fn start(&self) -> Outcome<Process<'a>> {
        let run = self.array.inside("postgres").args(["-D", &self.directory]).words(SETTINGS);
        let mut server = run.arg("-c").arg(format!("unix_socket_directories={}", self.socket)).start()?;
        await_ready(&mut server, || self.array.outside("pg_isready").args(["-q", "-h", &self.socket]).done().is_ok())?;
        Ok(server)
    }

    fn client(&self, program: &str) -> crate::process::Run<'a> {
        self.array.outside(program).args(["-h", &self.socket, "-U", "postgres"])
    }

    fn psql(&self) -> crate::process::Run<'a> {
        self.client("psql").words("-X -q -A -t -v ON_ERROR_STOP=1 -d postgres")
    }

    fn query(&self, sql: &str) -> Outcome<String> {
        self.psql().args(["-c", sql]).text()
    }

    /// Has one process make the join, then several, and compares the results. Of the several at
    /// least one must be seen to have two segments of shared memory mapped that are files of the
    /// array: that of the query, and that of the hash table.
    fn join(&self, server: &Process<'_>) -> Outcome {
        let expected = self.query(&format!("{ALONE} {JOIN}"))?;
        let mut seen = 0;
        for _ in 0..5 {
            let mut query =
                self.psql().args(["-c", &format!("{PARALLEL} {JOIN}"), "-o"]).arg(self.array.work.join("joined")).start()?;
            while !query.has_ended() {
                seen = seen.max(self.most_segments(server.pid()));
            }
            query.ended()?;
            let found = fs::read_to_string(self.array.work.join("joined")).map_err(|error| error.to_string())?;
            audit::same("a join by several processes", &expected, &found)?;
            if seen >= 2 {
                return Ok(());
            }
        }
        Err(format!("processes of a parallel query have {seen} segments of the array mapped, not 2"))
    }

    /// Looks at the processes of parallel queries, and returns how many segments the one has mapped
    /// that has most.
    fn most_segments(&self, server: i32) -> usize {
        let is_worker =
            |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"postgres: parallel worker");
        let segments = |pid: i32| {
            let shared = |path: &String| path.contains("/pg_dynshmem/") || path.contains("-map-");
            self.array.mapped_by(pid).into_iter().filter(shared).map(|path| named(&path)).collect::<BTreeSet<_>>().len()
        };
        tree::members(server).into_iter().filter(is_worker).map(segments).max().unwrap_or(0)
    }

    fn dump(&self) -> Outcome<String> {
        self.client("pg_dump").words("--restrict-key=servers -d postgres").text()
    }

    /// Stops the server by SIGINT, which asks for a fast shutdown with a checkpoint.
    fn stop(mut server: Process<'_>) -> Outcome {
        server.stop(Signal::INT)
    }

    /// Checks what clients count, what pgbench promises, and what amcheck says of every table and
    /// index.
    fn check(&self, ledger: &mut Ledger) -> Outcome {
        ledger.check_lines(&self.query(FOUND)?)?;
        audit::same("rows with another text", "0\n", &self.query(WRONG)?)?;
        audit::same("pgbench's balances agree", "t\n", &self.query(BALANCES)?)?;
        self.client("pg_amcheck").words("--all --install-missing --heapallindexed --rootdescend -j 1").done()
    }
}

/// Returns the last component of a path, which is the same on all members.
fn named(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

fn change(session: &mut Session<'_>, client: usize, n: u64) -> Outcome {
    let text = format!("repeat(md5({client} || ' ' || {n}), 12)");
    session.expect(
        &format!(
            "BEGIN; INSERT INTO changes VALUES ({client}, {n}, {text}); \
             UPDATE counters SET last = {n} WHERE client = {client}; COMMIT; SELECT {n};"
        ),
        &n.to_string(),
    )
}

/// Runs pgbench, joins and counted clients at the same time until all processes of the server are
/// killed. Returns how many these were.
fn round(
    cluster: &Cluster<'_>,
    scene: &Scene<'_>,
    number: usize,
    ledger: &mut Ledger,
    server: &mut Process<'_>,
) -> Outcome<usize> {
    let mut load = cluster.client("pgbench").words("-n -c 4 -j 1 -T 600 postgres").start()?;
    let mut joins = cluster.psql().input(format!("{PARALLEL} {}", format!("{JOIN};").repeat(1000))).start()?;
    let mut killed = 0;
    let kill = || {
        if load.has_ended() {
            return Err(format!("pgbench ended before the kill\n{}", load.tail()));
        }
        if joins.has_ended() {
            return Err(format!("the joins ended before the kill\n{}", joins.tail()));
        }
        killed = server.kill()?;
        if killed < 5 { Err(format!("{killed} processes were killed, a server has more\n{}", server.tail())) } else { Ok(()) }
    };
    ledger.load(scene.load_time(number), |_| cluster.psql().session(), change, kill)?;
    load.kill()?;
    joins.kill()?;
    Ok(killed)
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let cluster = Cluster::init(scene.array)?;
    let mut server = cluster.start()?;
    cluster.query(TABLES)?;
    cluster.client("pgbench").words("-i -q --foreign-keys -s").arg(scene.sized("1", "4")).arg("postgres").done()?;
    let bench = cluster.client("pgbench").words("-c 4 -j 2 -t").arg(scene.sized("50", "500")).arg("postgres").text()?;
    if !bench.contains("number of failed transactions: 0 ") {
        return Err(format!("pgbench: {bench}"));
    }
    cluster.join(&server)?;
    let mut ledger = Ledger::new(CLIENTS);
    let mut processes = 0;
    for number in 0..scene.rounds {
        processes += round(&cluster, scene, number, &mut ledger, &mut server)?;
        if number + 1 == scene.rounds {
            // The audit sees what a killed server leaves, before the server recovers.
            audit::audit(scene.array).map_err(|message| format!("after the last kill: {message}"))?;
        }
        server = cluster.start()?;
        cluster.check(&mut ledger).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    let before = cluster.dump()?;
    Cluster::stop(server)?;
    scene.array.inside("pg_checksums").args(["--check", "-D", &cluster.directory]).done()?;
    lose_one(scene)?;
    let server = cluster.start()?;
    audit::same("dumps before and after a stop", &before, &cluster.dump()?)?;
    cluster.check(&mut ledger)?;
    cluster.join(&server)?;
    Cluster::stop(server)?;
    Ok(format!(
        "{} kills of {processes} processes, {} commits found, dump of {} KiB",
        scene.rounds,
        ledger.total(),
        before.len() >> 10
    ))
}

/// Takes the last member that is there away, if the level bears one more loss. No program may run
/// on the array.
pub(super) fn lose_one(scene: &Scene<'_>) -> Outcome {
    match scene.array.present()[..] {
        [.., last] if scene.array.spare_failures() > 0 => scene.array.lose(last),
        _ => Ok(()),
    }
}
