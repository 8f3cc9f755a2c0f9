//! The table of cases, and what each of them is given.

mod compiler;
mod files;
mod git;
mod linkers;
mod lmdb;
mod maildir;
mod mariadb;
mod packs;
mod postgresql;
mod python;
mod redis;
mod rocksdb;
mod sqlite;

use crate::{Outcome, array::Array, process::Process};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Programs, and the Debian packages that have them.
    pub(crate) needs: &'static [(&'static str, &'static str)],
    /// Whether programs run as an ordinary user when we are root.
    pub(crate) unprivileged: bool,
    /// The state in which the array of a quick run begins, `healthy` or `missing` (a member); None:
    /// both, one after the other.
    pub(crate) quick: Option<&'static str>,
    /// Runs the case, and returns what it did, in a few words.
    pub(crate) run: fn(&Scene<'_>) -> Outcome<String>,
}

/// What a case is given.
pub(crate) struct Scene<'a> {
    pub(crate) array: &'a Array<'a>,
    /// How often servers are killed.
    pub(crate) rounds: usize,
    /// Whether the case is to take little data.
    pub(crate) quick: bool,
}

impl Scene<'_> {
    /// Returns the first value in a quick run, else the second.
    pub(crate) fn sized<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    /// How long round `number` loads a server before it is killed. Eleven lengths take turns, so
    /// that kills meet different moments of the server's work.
    pub(crate) fn load_time(&self, number: usize) -> Duration {
        Duration::from_millis(self.sized(400, 1500) + 137 * (number as u64 % 11))
    }
}

/// Waits until a server is ready, which is when `probe` succeeds. It is an error if the server ends,
/// or is not ready after a minute.
fn await_ready(server: &mut Process<'_>, mut probe: impl FnMut() -> bool) -> Outcome {
    let begun = Instant::now();
    while !probe() {
        if server.has_ended() {
            return Err(format!("the server ended while it started\n{}", server.tail()));
        }
        if begun.elapsed() > Duration::from_secs(60) {
            return Err(format!("the server is not ready after 60 s\n{}", server.tail()));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Text of `length` bytes, in lines.
    fn text(&mut self, length: usize) -> String {
        let mut text = String::with_capacity(length + 20);
        while text.len() < length {
            text.push_str(&format!("{:x}{}", self.next(), if self.below(4) == 0 { '\n' } else { ' ' }));
        }
        text.truncate(length);
        text
    }
}

const GIT: (&str, &str) = ("git", "git");
const PYTHON: (&str, &str) = ("python3", "python3");

/// All cases, the long ones first.
pub(crate) const CASES: [Case; 17] = [
    Case {
        name: "postgresql",
        needs: &[("postgres", "postgresql-15"), ("pgbench", "postgresql-15"), ("psql", "postgresql-client-15")],
        unprivileged: true,
        quick: None,
        run: postgresql::run,
    },
    Case {
        name: "mariadb",
        needs: &[("mariadbd", "mariadb-server"), ("mariadb", "mariadb-client"), ("mariadb-slap", "mariadb-client")],
        unprivileged: true,
        quick: Some("healthy"),
        run: mariadb::run,
    },
    Case { name: "sqlite-journal", needs: &[("sqlite3", "sqlite3")], unprivileged: true, quick: None, run: sqlite::journal },
    Case { name: "sqlite-wal", needs: &[("sqlite3", "sqlite3")], unprivileged: false, quick: Some("healthy"), run: sqlite::wal },
    Case {
        name: "sqlite-mapped",
        needs: &[("sqlite3", "sqlite3")],
        unprivileged: true,
        quick: Some("missing"),
        run: sqlite::mapped,
    },
    Case { name: "lmdb", needs: &[(lmdb::PYTHON, "python3-lmdb")], unprivileged: true, quick: Some("healthy"), run: lmdb::run },
    Case {
        name: "redis",
        needs: &[("redis-server", "redis-server"), ("redis-check-aof", "redis-tools"), ("redis-cli", "redis-tools")],
        unprivileged: true,
        quick: None,
        run: redis::run,
    },
    Case {
        name: "rocksdb",
        needs: &[("ldb", "rocksdb-tools"), ("db_bench", "rocksdb-tools"), ("sst_dump", "rocksdb-tools"), PYTHON],
        unprivileged: false,
        quick: Some("missing"),
        run: rocksdb::run,
    },
    Case {
        name: "compiler",
        needs: &[("gcc", "build-essential"), ("make", "build-essential"), ("ar", "binutils")],
        unprivileged: true,
        quick: Some("missing"),
        run: compiler::run,
    },
    Case {
        name: "linkers",
        needs: &[("gcc", "build-essential"), ("ld.gold", "binutils"), ("ld.lld", "lld"), ("mold", "mold"), ("strace", "strace")],
        unprivileged: true,
        quick: Some("healthy"),
        run: linkers::run,
    },
    Case { name: "packs", needs: &[GIT], unprivileged: true, quick: Some("healthy"), run: packs::run },
    Case { name: "git", needs: &[GIT], unprivileged: true, quick: Some("healthy"), run: git::run },
    Case {
        name: "rsync",
        needs: &[("rsync", "rsync"), ("find", "findutils")],
        unprivileged: false,
        quick: Some("healthy"),
        run: files::rsync,
    },
    Case {
        name: "tar",
        needs: &[("tar", "tar"), ("gzip", "gzip")],
        unprivileged: false,
        quick: Some("missing"),
        run: files::tar,
    },
    Case { name: "find", needs: &[("find", "findutils")], unprivileged: false, quick: Some("healthy"), run: files::find },
    Case { name: "python-venv", needs: &[PYTHON], unprivileged: true, quick: Some("missing"), run: python::run },
    Case { name: "maildir", needs: &[PYTHON], unprivileged: true, quick: None, run: maildir::run },
];
