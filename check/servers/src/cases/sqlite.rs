//! SQLite: several processes on one database with a rollback journal; one process with a
//! write-ahead log in exclusive mode (its shared index is then in memory); several with a
//! write-ahead log, whose index they have mapped, and the database mapped as well. All are killed
//! in the middle; what was committed is there, and integrity_check finds nothing.

use super::Scene;
use crate::{Outcome, audit, ledger::Ledger, session::Session};
use std::sync::Mutex;

const TABLES: &str = "
    CREATE TABLE changes (client INTEGER, n INTEGER, text TEXT, PRIMARY KEY (client, n)) WITHOUT ROWID;
    CREATE INDEX changes_text ON changes (text);
    CREATE TABLE counters (client INTEGER PRIMARY KEY, last INTEGER);";

const FOUND: &str = "SELECT c.client, count(n), coalesce(max(n), 0), last FROM counters c LEFT JOIN changes USING (client) \
    GROUP BY c.client ORDER BY 1;";
const WRONG: &str = "SELECT count(*) FROM changes WHERE text <> client || ' ' || n || hex(zeroblob(300));";

/// How a connection is opened.
struct Mode {
    /// Its pragmas, by round.
    pragmas: fn(usize) -> String,
    clients: usize,
    /// Set once, when the database is made.
    page_size: u32,
}

fn change(session: &mut Session<'_>, client: usize, n: u64) -> Outcome {
    session.expect(
        &format!(
            "BEGIN IMMEDIATE; INSERT INTO changes VALUES ({client}, {n}, '{client} {n}' || hex(zeroblob(300))); \
             UPDATE counters SET last = {n} WHERE client = {client}; COMMIT; SELECT {n};"
        ),
        &n.to_string(),
    )
}

fn run(scene: &Scene<'_>, mode: &Mode) -> Outcome<String> {
    let array = scene.array;
    let file = array.data.join("rows.db");
    let sqlite = || array.inside("sqlite3").args(["-batch", "-bail"]).arg(&file);
    let query = |round: usize, sql: &str| sqlite().input(format!("{}{sql}\n", (mode.pragmas)(round))).text();
    let counters: String = (0..mode.clients).map(|client| format!("INSERT INTO counters VALUES ({client}, 0);")).collect();
    query(0, &format!("PRAGMA page_size = {};{TABLES}{counters}", mode.page_size))?;
    let mut ledger = Ledger::new(mode.clients);
    // More rounds than for servers: they cost little.
    let rounds = scene.rounds * 3;
    for number in 0..rounds {
        let killers = Mutex::new(Vec::new());
        let connect = |_| {
            let mut session = sqlite().session()?;
            session.say(&(mode.pragmas)(number))?;
            killers.lock().map_err(|_| "poisoned".to_owned())?.push(session.pid());
            Ok(session)
        };
        let kill = || {
            let pids = killers.lock().map_err(|_| "poisoned".to_owned())?;
            pids.iter().try_for_each(|&pid| crate::tree::kill(pid).map(drop))
        };
        ledger.load(scene.load_time(number) / 2, connect, change, kill)?;
        if number + 1 == rounds {
            audit::audit(array).map_err(|message| format!("after the last kill: {message}"))?;
        }
        let check = || {
            ledger.check_lines(&query(number, FOUND)?)?;
            audit::same("integrity_check and wrong rows", "ok\n0\n", &query(number, &format!("PRAGMA integrity_check; {WRONG}"))?)
        };
        let mut check = check;
        check().map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    vacuum(&query, rounds)?;
    Ok(format!("{rounds} kills of {} processes, {} commits found", mode.clients, ledger.total()))
}

/// The whole database is written anew, by another path, and again in place.
fn vacuum(query: &dyn Fn(usize, &str) -> Outcome<String>, round: usize) -> Outcome {
    let before = query(round, "SELECT * FROM changes ORDER BY 1, 2;")?;
    let after = query(round, "DELETE FROM changes WHERE n % 2; VACUUM; PRAGMA integrity_check;")?;
    audit::same("integrity_check after VACUUM", "ok\n", &after)?;
    let expected: String = before.split_inclusive('\n').filter(|line| !is_odd(line)).collect();
    audit::same("rows after VACUUM", &expected, &query(round, "SELECT * FROM changes ORDER BY 1, 2;")?)
}

fn is_odd(row: &str) -> bool {
    row.split('|').nth(1).and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n % 2 == 1)
}

/// Four processes; the journal is deleted, truncated or kept in turn.
pub(super) fn journal(scene: &Scene<'_>) -> Outcome<String> {
    let pragmas = |round: usize| {
        let mode = ["delete", "truncate", "persist"][round % 3];
        // Answers of pragmas are not wanted where answers are counted.
        format!(
            ".timeout 60000\n.output /dev/null\nPRAGMA journal_mode = {mode}; PRAGMA synchronous = FULL; PRAGMA cache_size = 10;\n.output\n"
        )
    };
    run(scene, &Mode { pragmas, clients: 4, page_size: 4096 })
}

/// One process; the log is short, so that it is copied into the database often.
pub(super) fn wal(scene: &Scene<'_>) -> Outcome<String> {
    let pragmas = |_| {
        ".output /dev/null\nPRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         PRAGMA wal_autocheckpoint = 20; PRAGMA cache_size = 10;\n.output\n"
            .to_owned()
    };
    run(scene, &Mode { pragmas, clients: 1, page_size: 1024 })
}

/// Four processes with one log: its index is a mapping that all store to, and the database is read
/// by mapping it.
pub(super) fn mapped(scene: &Scene<'_>) -> Outcome<String> {
    let pragmas = |_| {
        ".timeout 60000\n.output /dev/null\nPRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA mmap_size = 100000000; \
         PRAGMA wal_autocheckpoint = 20; PRAGMA cache_size = 10;\n.output\n"
            .to_owned()
    };
    run(scene, &Mode { pragmas, clients: 4, page_size: 4096 })
}
