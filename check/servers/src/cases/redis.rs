//! redis: several clients with `appendfsync always` while the log is rewritten again and again,
//! kill -9, and every acknowledged key is there; then a snapshot (RDB) that must hold the same.

use super::{Scene, await_ready};
use crate::{
    Outcome,
    array::Array,
    audit,
    ledger::{Found, Ledger},
    process::Process,
};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

const CLIENTS: usize = 4;

/// A connection that speaks the protocol itself (redis.io, "Redis serialization protocol
/// specification", version 2).
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(socket: &PathBuf) -> Outcome<Self> {
        let stream = UnixStream::connect(socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(|error| error.to_string())?;
        Ok(Self(BufReader::new(stream)))
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// One reply; the parts of an array are joined by blanks.
    fn reply(&mut self) -> Outcome<String> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(line.len().min(1));
        let count: i64 = rest.parse().unwrap_or(0);
        match kind {
            "+" | ":" => Ok(rest.to_owned()),
            "$" if count < 0 => Ok("(nil)".to_owned()),
            "$" => {
                let mut bytes = vec![0; usize::try_from(count).unwrap_or(0) + 2];
                std::io::Read::read_exact(&mut self.0, &mut bytes).map_err(|error| error.to_string())?;
                Ok(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
            }
            "*" => (0..count).map(|_| self.reply()).collect::<Outcome<Vec<_>>>().map(|parts| parts.join(" ")),
            _ => Err(format!("redis: {line}")),
        }
    }

    /// Commands separated by newlines; the reply to the last.
    fn ask(&mut self, commands: &str) -> Outcome<String> {
        let text: String = commands.lines().map(|line| format!("{line}\r\n")).collect();
        self.0.get_mut().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        let replies: Vec<String> = commands.lines().map(|_| self.reply()).collect::<Outcome<_>>()?;
        Ok(replies.into_iter().next_back().unwrap_or_default())
    }
}

fn value(client: usize, n: u64) -> String {
    format!("value-{client}-{n}-{}", "x".repeat(usize::try_from(n * 7 % 300).unwrap_or(0)))
}

/// A key, an entry of a list and a counter change together or not at all.
fn change(connection: &mut Connection, client: usize, n: u64) -> Outcome {
    let value = value(client, n);
    let reply =
        connection.ask(&format!("MULTI\nSET key:{client}:{n} {value}\nRPUSH list:{client} {n}\nSET last:{client} {n}\nEXEC"))?;
    if reply == format!("OK {n} OK") { Ok(()) } else { Err(format!("EXEC answers {reply:?}")) }
}

struct Server<'a> {
    array: &'a Array<'a>,
    socket: PathBuf,
}

impl<'a> Server<'a> {
    fn start(&self, append: bool) -> Outcome<Process<'a>> {
        let words = "--port 0 --appendfsync always --no-appendfsync-on-rewrite no --daemonize no --enable-debug-command local \
            --auto-aof-rewrite-percentage 0 --aof-timestamp-enabled yes --save";
        let run = self.array.inside("redis-server").words(words).arg("");
        let run = run.arg("--dir").arg(&self.array.data).arg("--unixsocket").arg(&self.socket);
        let mut server = run.args(["--appendonly", if append { "yes" } else { "no" }]).start()?;
        let ready = || Connection::open(&self.socket).and_then(|mut connection| connection.ask("PING")) == Ok("PONG".to_owned());
        await_ready(&mut server, ready)?;
        Ok(server)
    }

    fn ask(&self, command: &str) -> Outcome<String> {
        Connection::open(&self.socket)?.ask(command)
    }

    /// Waits until no child writes. An error if the last one failed.
    fn await_rewrite(&self) -> Outcome {
        let begun = Instant::now();
        loop {
            let info = self.ask("INFO persistence")?;
            let says = |line: &str| info.lines().any(|found| found.trim_end() == line);
            if says("aof_rewrite_in_progress:0") && says("aof_rewrite_scheduled:0") && says("rdb_bgsave_in_progress:0") {
                let fine =
                    says("aof_last_bgrewrite_status:ok") && says("aof_last_write_status:ok") && says("rdb_last_bgsave_status:ok");
                return if fine { Ok(()) } else { Err(format!("redis could not write\n{info}")) };
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("a rewrite of the log does not end\n{info}"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A snapshot that a killed server has finished is whole.
    fn check_snapshot(&self) -> Outcome {
        let snapshot = self.array.data.join("dump.rdb");
        let there = self.array.inside("bash").args(["-c", "[[ ! -e $0 ]] || echo there"]).arg(&snapshot).text()?;
        if there.is_empty() { Ok(()) } else { self.array.inside("redis-check-rdb").arg(&snapshot).done() }
    }

    /// Every key of every client, with its value.
    fn check(&self, ledger: &mut Ledger) -> Outcome {
        let mut connection = Connection::open(&self.socket)?;
        let mut found = Vec::new();
        let number = |text: String| text.parse::<u64>().unwrap_or(0);
        for client in 0..ledger.clients() {
            let last = number(connection.ask(&format!("GET last:{client}"))?);
            let count = number(connection.ask(&format!("LLEN list:{client}"))?);
            for n in 1..=last {
                let stored = connection.ask(&format!("GET key:{client}:{n}"))?;
                if stored != value(client, n) {
                    return Err(format!("key:{client}:{n} holds {stored:?}"));
                }
            }
            let beyond = u64::from(connection.ask(&format!("EXISTS key:{client}:{}", last + 1))? == "1");
            found.push(Found { count, last, counter: last + beyond });
        }
        ledger.check(&found)
    }
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let database = Server { array: scene.array, socket: scene.array.work.join("redis.sock") };
    let mut server = database.start(true)?;
    let mut ledger = Ledger::new(CLIENTS);
    let rewrites = AtomicUsize::new(0);
    for number in 0..scene.rounds {
        one_round(&database, scene, number, &mut ledger, &mut server, &rewrites)?;
        database.check_snapshot().map_err(|message| format!("after kill {}: {message}", number + 1))?;
        server = database.start(true)?;
        database.check(&mut ledger).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    database.ask("BGREWRITEAOF")?;
    database.await_rewrite()?;
    let digest = database.ask("DEBUG DIGEST")?;
    database.ask("SAVE")?;
    database.ask("BGSAVE")?;
    database.await_rewrite()?;
    // It closes the connection instead of answering.
    let _ = database.ask("SHUTDOWN NOSAVE");
    server.ended()?;
    scene.array.inside("redis-check-aof").arg(scene.array.data.join("appendonlydir/appendonly.aof.manifest")).done()?;
    scene.array.inside("redis-check-rdb").arg(scene.array.data.join("dump.rdb")).done()?;
    super::postgresql::lose_one(scene)?;
    for append in [false, true] {
        server = database.start(append)?;
        audit::same(if append { "keys of the log" } else { "keys of the snapshot" }, &digest, &database.ask("DEBUG DIGEST")?)?;
        let _ = database.ask("SHUTDOWN NOSAVE");
        server.ended()?;
    }
    Ok(format!(
        "{} kills, {} transactions found, {} rewrites of the log and snapshots under load",
        scene.rounds,
        ledger.total(),
        rewrites.into_inner()
    ))
}

/// Clients write, and the log is rewritten or a snapshot taken all the time, until the server and a
/// child that may be rewriting are killed.
fn one_round(
    database: &Server<'_>,
    scene: &Scene<'_>,
    number: usize,
    ledger: &mut Ledger,
    server: &mut Process<'_>,
    rewrites: &AtomicUsize,
) -> Outcome {
    let over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let rewriter = scope.spawn(|| {
            for command in ["BGREWRITEAOF", "BGSAVE"].into_iter().cycle() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let done = database.ask(command).and_then(|_| database.await_rewrite());
                match done {
                    Ok(()) => rewrites.fetch_add(1, Ordering::Relaxed),
                    Err(_) if over.load(Ordering::SeqCst) => break,
                    Err(message) => return Err(message),
                };
            }
            Ok(())
        });
        let kill = || {
            over.store(true, Ordering::SeqCst);
            if server.kill()? == 0 { Err(format!("the server ended by itself\n{}", server.tail())) } else { Ok(()) }
        };
        let loaded = ledger.load(scene.load_time(number), |_| Connection::open(&database.socket), change, kill);
        over.store(true, Ordering::SeqCst);
        let rewritten = rewriter.join().map_err(|_| "the rewriter panicked".to_owned())?;
        loaded.and(rewritten)
    });
    result?;
    if number + 1 == scene.rounds {
        audit::audit(scene.array).map_err(|message| format!("after the last kill: {message}"))?;
    }
    Ok(())
}
