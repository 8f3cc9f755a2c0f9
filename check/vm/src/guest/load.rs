//! Work that does not end: SQLite, PostgreSQL and fio write to one array until the power is cut.
//!
//! Each client makes change n, waits until its program says it is committed, tells the host, and
//! goes on with n + 1. So after a cut exactly the changes 1 to n, or 1 to n + 1, must be there,
//! where n is the last the host was told.

use super::{Port, devices, fio, members::Members, programs::Program};
use crate::{
    Outcome, about,
    array::{Array, FileSystem, PREFIX},
    job::Job,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

pub(super) const DATABASE: &str = "/data/rows.db";
pub(super) const CLUSTER: &str = "/data/cluster";
const SOCKET: &str = super::programs::HOME;

/// Small caches and logs: pages are evicted, checkpoints come and log files are renamed all the
/// time. What makes commits durable is as it comes (fsync, synchronous_commit and full_page_writes
/// are on).
const SETTINGS: &str = "-c listen_addresses= -c shared_buffers=2MB -c max_connections=8 -c max_wal_size=2MB -c min_wal_size=2MB \
    -c checkpoint_timeout=30s -c jit=off -c log_min_messages=warning -c max_worker_processes=0 \
    -c max_parallel_workers=0 -c autovacuum=off";

/// Starts the server and waits until it answers.
pub(super) fn start_postgresql(members: &Members) -> Outcome<std::process::Child> {
    let words = format!("-D {CLUSTER} {SETTINGS} -c unix_socket_directories={SOCKET}");
    let mut server = Program::inside("postgres", members).words(&words).start()?;
    let begun = Instant::now();
    loop {
        if query("SELECT 1").is_ok() {
            return Ok(server);
        }
        let ended = server.try_wait().map_err(about("postgres"))?;
        if ended.is_some() || begun.elapsed() > Duration::from_secs(600) {
            let log = fs::read_to_string("/run/postgres.log").unwrap_or_default();
            return Err(format!("PostgreSQL does not come up ({ended:?})\n{log}"));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// A client's answer.
pub(super) fn query(sql: &str) -> Outcome<String> {
    Ok(psql().arg("-c").arg(sql).text()?.trim_end().to_owned())
}

/// A client of the server; it does not see the array.
fn psql() -> Program {
    Program::of_user("psql").words(&format!("-h {SOCKET} -U postgres -d postgres -X -q -A -t -v ON_ERROR_STOP=1"))
}

/// What else asks the server.
pub(super) fn client(name: &str) -> Program {
    Program::of_user(name).words(&format!("-h {SOCKET} -U postgres -d postgres"))
}

pub(super) fn run(job: &Job, log: &Port) -> Outcome {
    let array = Array::told(job)?;
    let members = Members::format(array, &devices::make_namespaces(array.shape.member_count)?)?;
    Program::inside("cp", &members).words(&format!("-r /stage/cluster {PREFIX}")).done()?;
    Program::inside("chmod", &members).words(&format!("700 {CLUSTER}")).done()?;
    let table = "CREATE TABLE rows (n INTEGER PRIMARY KEY, text TEXT); CREATE INDEX texts ON rows (text);";
    Program::inside("sqlite3", &members).arg(DATABASE).arg(table).done()?;
    fio::pass(&members, 0)?;
    log.line("the array is filled")?;
    let _server = start_postgresql(&members)?;
    query("CREATE TABLE rows (n bigint PRIMARY KEY, text text); CREATE INDEX texts ON rows (text)")?;
    log.line("PostgreSQL is up")?;
    let told = Port::open("acknowledged")?;
    thread::scope(|scope| {
        let clients =
            [scope.spawn(|| sqlite(&members, &told)), scope.spawn(|| postgresql(&told)), scope.spawn(|| passes(&members, &told))];
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| "a client panicked".to_owned())?)
    })
}

fn sqlite(members: &Members, told: &Port) -> Outcome {
    let mut session = Program::inside("sqlite3", members).words("-batch -bail").arg(DATABASE).session()?;
    // A log beside the database, whose index is mapped by all that use it, or a rollback journal.
    let mode = if members.array.system == FileSystem::Xfs { "wal" } else { "delete" };
    session.expect(&format!("PRAGMA journal_mode = {mode};"), mode)?;
    session.expect("PRAGMA wal_autocheckpoint = 20;", "20")?;
    session.say("PRAGMA synchronous = FULL; PRAGMA cache_size = 10;")?;
    for n in 1_u64.. {
        let insert = format!("BEGIN; INSERT INTO rows VALUES ({n}, '{n} ' || hex(zeroblob(300))); COMMIT; SELECT {n};");
        session.expect(&insert, &n.to_string())?;
        told.line(&format!("sqlite {n}"))?;
    }
    Ok(())
}

fn postgresql(told: &Port) -> Outcome {
    let mut session = psql().session()?;
    for n in 1_u64.. {
        let insert = format!("INSERT INTO rows VALUES ({n}, repeat(md5('{n}'), 12)); SELECT {n};");
        session.expect(&insert, &n.to_string())?;
        told.line(&format!("postgresql {n}"))?;
    }
    Ok(())
}

fn passes(members: &Members, told: &Port) -> Outcome {
    for number in 1.. {
        fio::pass(members, number)?;
        told.line(&format!("fio {number}"))?;
    }
    Ok(())
}
