//! MariaDB 10.11: InnoDB with a binary log, clients whose commits are counted, mariadb-slap, kill
//! -9, recovery, CHECK TABLE, and dumps that must be the same before and after. InnoDB takes the
//! members' tmpfs for persistent memory and stores to its log by a mapping alone; that it does is
//! looked at.

use super::{Scene, await_ready, postgresql::lose_one};
use crate::{
    Outcome,
    array::Array,
    audit,
    ledger::Ledger,
    process::{Process, Run},
    session::Session,
};
use rustix::process::Signal;

const CLIENTS: usize = 4;

/// Small buffers and logs, every commit on media, temporary files on the array.
const SETTINGS: &str = "--skip-networking --innodb-buffer-pool-size=8M --innodb-log-file-size=8M \
    --innodb-flush-log-at-trx-commit=1 --sync-binlog=1 --log-bin=binlog --max-binlog-size=262144 --server-id=1 --max-connections=40 \
    --character-set-server=utf8mb4";

const TABLES: &str = "
    CREATE DATABASE servers; USE servers;
    CREATE TABLE changes (client INT, n BIGINT, text VARCHAR(400), PRIMARY KEY (client, n), KEY (text)) ENGINE=InnoDB;
    CREATE TABLE counters (client INT PRIMARY KEY, last BIGINT) ENGINE=InnoDB;
    INSERT INTO counters VALUES (0, 0), (1, 0), (2, 0), (3, 0);
    CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE=InnoDB;
    INSERT INTO accounts SELECT seq, 1000 FROM seq_1_to_500;
    CREATE TABLE old (n INT PRIMARY KEY, text VARCHAR(100)) ENGINE=Aria TRANSACTIONAL=1;
    INSERT INTO old SELECT seq, MD5(seq) FROM seq_1_to_1000;";

const FOUND: &str = "SELECT c.client, COUNT(n), COALESCE(MAX(n), 0), last FROM counters c LEFT JOIN changes USING (client) \
    GROUP BY c.client, last ORDER BY 1";
/// Rows with another text than was written; what the accounts hold together, which no transfer
/// changes.
const WRONG: &str = "SELECT COUNT(*) FROM changes WHERE text <> REPEAT(MD5(CONCAT(client, ' ', n)), 12); \
    SELECT SUM(balance) FROM accounts";

/// A server on an array; clients see the host only.
struct Server<'a> {
    array: &'a Array<'a>,
    directory: String,
    socket: String,
}

impl<'a> Server<'a> {
    fn install(array: &'a Array<'a>) -> Outcome<Self> {
        let directory = array.data.join("mysql").display().to_string();
        let socket = array.work.join("mariadb.sock").display().to_string();
        let install =
            array.inside("mariadb-install-db").words("--no-defaults --auth-root-authentication-method=normal --skip-test-db");
        let temporary = array.data.join("tmp").display().to_string();
        array.inside("mkdir").arg(&temporary).done()?;
        // The installer writes its server's messages to standard output.
        install.arg(format!("--datadir={directory}")).arg(format!("--tmpdir={temporary}")).done()?;
        Ok(Self { array, directory, socket })
    }

    fn start(&self) -> Outcome<Process<'a>> {
        let run = self.array.inside("mariadbd").arg("--no-defaults").words(SETTINGS);
        let run =
            if self.array.ground.user.is_none() && rustix::process::geteuid().is_root() { run.arg("--user=root") } else { run };
        let mut server = run
            .arg(format!("--datadir={}", self.directory))
            .arg(format!("--tmpdir={}", self.array.data.join("tmp").display()))
            .arg(format!("--socket={}", self.socket))
            .arg(format!("--pid-file={}", self.array.work.join("mariadb.pid").display()))
            .start()?;
        await_ready(&mut server, || self.client("mariadb-admin").words("--silent ping").done().is_ok())?;
        Ok(server)
    }

    /// The log is mapped: the array's, or its shared copy. InnoDB does not map it on a mount.
    fn check_log(&self, server: &Process<'_>) -> Outcome {
        if self.array.is_mounted() {
            return Ok(());
        }
        let mapped = self.array.mapped_by(server.pid());
        if mapped.iter().any(|path| path.ends_with("/ib_logfile0") || path.contains("-map-")) {
            Ok(())
        } else {
            Err(format!("InnoDB has not mapped its log, only {mapped:?}"))
        }
    }

    fn client(&self, program: &str) -> Run<'a> {
        self.array.outside(program).args(["--no-defaults", "-u", "root", "-S", &self.socket])
    }

    fn mariadb(&self) -> Run<'a> {
        self.client("mariadb").words("--batch --skip-column-names --unbuffered --skip-reconnect")
    }

    fn query(&self, sql: &str) -> Outcome<String> {
        self.mariadb().args(["-e", sql, "servers"]).text()
    }

    fn slap(&self, queries: &str) -> Outcome<Run<'a>> {
        let words = "--concurrency=4 --iterations=1 --auto-generate-sql --auto-generate-sql-load-type=mixed --engine=innodb \
            --auto-generate-sql-add-autoincrement --commit=5 --number-char-cols=4 --number-int-cols=3 --create-schema=slap --no-drop";
        // What an earlier one, ended with the server, left behind.
        self.query("DROP DATABASE IF EXISTS slap")?;
        Ok(self.client("mariadb-slap").words(words).arg(format!("--number-of-queries={queries}")))
    }

    fn dump(&self) -> Outcome<String> {
        self.client("mariadb-dump").words("--skip-dump-date --order-by-primary --skip-comments --databases servers").text()
    }

    /// SIGTERM: a clean shutdown.
    fn stop(mut server: Process<'_>) -> Outcome {
        server.stop(Signal::TERM)
    }

    /// What clients count, what transfers keep, and what CHECK TABLE says of every table.
    fn check(&self, ledger: &mut Ledger) -> Outcome {
        ledger.check_lines(&self.query(FOUND)?)?;
        audit::same("wrong rows and the sum of balances", "0\n500000\n", &self.query(WRONG)?)?;
        let checked = self.client("mariadb-check").words("--check --extended --all-databases").text()?;
        let bad: Vec<&str> = checked.lines().filter(|line| !line.trim_end().ends_with("OK")).collect();
        if bad.is_empty() && checked.contains("servers.changes") {
            Ok(())
        } else {
            Err(format!("CHECK TABLE: {}", bad.join("\n")))
        }
    }
}

fn change(session: &mut Session<'_>, client: usize, n: u64) -> Outcome {
    let (from, to) = (n * 7 % 500 + 1, (n * 31 + client as u64) % 500 + 1);
    // Lower ids first: transfers that wait for each other in a circle would be refused.
    let (first, second, amount) = if from < to { (from, to, 1) } else { (to, from, -1) };
    session.expect(
        &format!(
            "START TRANSACTION; INSERT INTO changes VALUES ({client}, {n}, REPEAT(MD5('{client} {n}'), 12)); \
             UPDATE counters SET last = {n} WHERE client = {client}; \
             UPDATE accounts SET balance = balance - {amount} WHERE id = {first}; \
             UPDATE accounts SET balance = balance + {amount} WHERE id = {second}; COMMIT; SELECT {n};"
        ),
        &n.to_string(),
    )
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let database = Server::install(scene.array)?;
    let mut server = database.start()?;
    database.check_log(&server)?;
    database.mariadb().input(TABLES).done()?;
    database.slap(scene.sized("100", "1000"))?.done()?;
    let mut ledger = Ledger::new(CLIENTS);
    for number in 0..scene.rounds {
        let mut load = database.slap("10000000")?.start()?;
        let kill = || {
            if load.has_ended() {
                return Err(format!("mariadb-slap ended before the kill\n{}", load.tail()));
            }
            if server.kill()? == 0 { Err(format!("the server ended by itself\n{}", server.tail())) } else { Ok(()) }
        };
        ledger.load(scene.load_time(number), |_| database.mariadb().arg("servers").session(), change, kill)?;
        load.kill()?;
        if number + 1 == scene.rounds {
            audit::audit(scene.array).map_err(|message| format!("after the last kill: {message}"))?;
        }
        server = database.start()?;
        database.check_log(&server)?;
        database.check(&mut ledger).map_err(|message| format!("after kill {}: {message}", number + 1))?;
    }
    let before = database.dump()?;
    Server::stop(server)?;
    let spaces = format!("{}/servers/changes.ibd", database.directory);
    scene.array.inside("innochecksum").arg(&spaces).done()?;
    lose_one(scene)?;
    let server = database.start()?;
    audit::same("dumps before and after a stop", &before, &database.dump()?)?;
    database.check(&mut ledger)?;
    Server::stop(server)?;
    Ok(format!("{} kills, {} commits found, dump of {} KiB", scene.rounds, ledger.total(), before.len() >> 10))
}
