//! After a power cut: the array is assembled, programs recover, and what was acknowledged must be
//! there.

use super::{Port, audit, fio, load, members::Members, programs::Program};
use crate::{
    Outcome, about,
    array::{Array, PREFIX},
    job::Job,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{process::Child, time::Instant};

pub(super) fn run(job: &Job, log: &Port) -> Outcome {
    let array = Array::told(job)?;
    let members = Members::mount(array, job.get("lost")?)?;
    if !members.absent().is_empty() {
        log.line(&format!("= lost in the cut: {:?}", members.absent()))?;
    }
    let begun = Instant::now();
    let mut failures = Vec::new();
    let mut check = |name: &str, result: Outcome<String>| {
        let text = match result {
            Ok(text) => format!("= {name}: {text} ({:.1} s)", begun.elapsed().as_secs_f64()),
            Err(message) => {
                failures.push(format!("{name}: {message}"));
                format!("FAILED {name}: {message}")
            }
        };
        log.line(&text)
    };
    check("assembly", assemble(&members))?;
    check("fio", job.get("fio").and_then(|told| check_fio(&members, told)))?;
    check("SQLite", job.get("sqlite").and_then(|told| check_sqlite(&members, told)))?;
    check("PostgreSQL", job.get("postgresql").and_then(|told| check_postgresql(&members, told)))?;
    check("members", audit::audit(&members, audit::Sets::Covering))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// The first program that sees the array makes it fit again.
fn assemble(members: &Members) -> Outcome<String> {
    let begun = Instant::now();
    let names = Program::inside("ls", members).arg(PREFIX).text()?;
    let names: Vec<&str> = names.split_whitespace().collect();
    if ["cluster", "fio", "rows.db"].iter().all(|name| names.contains(name)) {
        Ok(format!("{} ms", begun.elapsed().as_millis()))
    } else {
        Err(format!("{PREFIX} holds {names:?}"))
    }
}

/// Exactly the changes that were acknowledged, and at most one more.
fn count(told: u64, found: &str) -> Outcome<String> {
    let numbers: Vec<u64> = found.trim().split('|').filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [count, last] if count == last && (told..=told + 1).contains(&last) => Ok(format!("{count} rows")),
        _ => Err(format!("{told} rows were acknowledged; count and last are {found:?}")),
    }
}

fn check_sqlite(members: &Members, told: u64) -> Outcome<String> {
    let ask = |sql: &str| Program::inside("sqlite3", members).arg(load::DATABASE).arg(sql).text();
    let verdict = ask("PRAGMA integrity_check;")?;
    if verdict != "ok\n" {
        return Err(format!("integrity_check: {verdict}"));
    }
    let rows = count(told, &ask("SELECT count(*), coalesce(max(n), 0) FROM rows;")?)?;
    match ask("SELECT count(*) FROM rows WHERE text <> n || ' ' || hex(zeroblob(300));")?.trim() {
        "0" => Ok(rows),
        wrong => Err(format!("{wrong} rows have another text")),
    }
}

fn check_postgresql(members: &Members, told: u64) -> Outcome<String> {
    let begun = Instant::now();
    let server = load::start_postgresql(members)?;
    let up = begun.elapsed().as_secs_f64();
    let rows = count(told, &load::query("SELECT count(*), coalesce(max(n), 0) FROM rows")?)?;
    let wrong = load::query("SELECT count(*) FROM rows WHERE text <> repeat(md5(n::text), 12)")?;
    if wrong != "0" {
        return Err(format!("{wrong} rows have another text"));
    }
    load::client("pg_amcheck").words("--install-missing --heapallindexed -j 1").done()?;
    stop(server)?;
    Ok(format!("{rows}, up after {up:.1} s"))
}

/// A fast shutdown, with a checkpoint.
fn stop(mut server: Child) -> Outcome {
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).ok_or("PostgreSQL has no process number")?;
    kill_process(pid, Signal::INT).map_err(about("stopping PostgreSQL"))?;
    let status = server.wait().map_err(about("postgres"))?;
    if status.success() { Ok(()) } else { Err(format!("PostgreSQL stopped with {status}")) }
}

fn check_fio(members: &Members, told: u64) -> Outcome<String> {
    let (torn, low, high) = fio::verify(members)?;
    let passes = format!("blocks of passes {low} to {high}, {torn} torn");
    let allowed = told..=told + 1;
    if allowed.contains(&low) && allowed.contains(&high) && torn <= fio::torn_max(members, told + 1) {
        Ok(passes)
    } else {
        Err(format!("pass {told} was acknowledged; {passes}"))
    }
}
