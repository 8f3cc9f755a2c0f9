//! LMDB: a process for each client puts with sync into one database, in every second round through
//! the mapping itself; all are killed in the middle. What was acknowledged is there, and the tree
//! is whole.

use super::{Scene, postgresql::lose_one, rocksdb::found};
use crate::{Outcome, audit, ledger::Ledger};
use std::sync::Mutex;

const CLIENTS: usize = 3;
/// With the module (python3-lmdb).
pub(super) const PYTHON: &str = "/usr/bin/python3";
const WRITER: &str = include_str!("lmdb.py");

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let (script, database) = (array.work.join("lmdb.py"), array.data.join("puts.mdb"));
    std::fs::write(&script, WRITER).map_err(|error| error.to_string())?;
    let python = |mode: &str| array.inside(PYTHON).arg(&script).arg(&database).arg(mode);
    let mut ledger = Ledger::new(CLIENTS);
    let rounds = scene.rounds * 2;
    for number in 0..rounds {
        let mode = if number % 2 == 0 { "map" } else { "pwrite" };
        let killers = Mutex::new(Vec::new());
        let connect = |_| {
            let session = python(mode).session()?;
            killers.lock().map_err(|_| "poisoned".to_owned())?.push(session.pid());
            Ok(session)
        };
        let change = |session: &mut crate::session::Session<'_>, client: usize, n: u64| {
            session.expect(&format!("{client} {n}"), &format!("{client} {n}"))
        };
        let kill = || {
            let pids = killers.lock().map_err(|_| "poisoned".to_owned())?;
            pids.iter().try_for_each(|&pid| crate::tree::kill(pid).map(drop))
        };
        ledger.load(scene.load_time(number) / 2, connect, change, kill)?;
        ledger
            .check(&found(&python("dump").text()?, CLIENTS)?)
            .map_err(|message| format!("after kill {}: {message}", number + 1))?;
        audit::audit(array).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    let before = python("dump").text()?;
    lose_one(scene)?;
    audit::same("without a member", &before, &python("dump").text()?)?;
    Ok(format!("{rounds} kills of {CLIENTS} processes, {} synced puts found", ledger.total()))
}
