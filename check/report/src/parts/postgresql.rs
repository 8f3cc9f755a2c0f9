//! PostgreSQL under pgbench: small transactions, each of which waits for its log.

use super::configurations::{Configuration, PROGRAMS, Places};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::ground::{Ground, Place, Server, succeeded};
use crate::plan::{Extent, Plan};
use crate::record::Sample;
use std::thread;
use std::time::Duration;

const FIGURE: &str = "postgresql";

/// A load of pgbench(1).
struct Workload {
    name: &'static str,
    clients: usize,
    /// True for `--select-only`.
    only_reads: bool,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "TPC-B-like, 1 client", clients: 1, only_reads: false },
    Workload { name: "TPC-B-like, 4 clients", clients: 4, only_reads: false },
    Workload { name: "reads, 4 clients", clients: 4, only_reads: true },
];

/// Everything as it comes, but that nothing waits for a checkpoint of another round, and that all
/// servers fit into the machine's memory at the same time.
const SETTINGS: [&str; 7] = [
    "listen_addresses=",
    "huge_pages=off",
    "shared_buffers=64MB",
    "max_connections=20",
    "max_wal_size=256MB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
];

/// The figure of PostgreSQL.
pub(crate) struct PostgreSql;

/// pgbench's scale: 100,000 accounts each, about 16 MB.
const fn scale(plan: &Plan) -> u64 {
    match plan.extent {
        Extent::Quick => 1,
        Extent::Usual => 5,
        Extent::Full => 10,
    }
}

/// A server on a place, with pgbench's tables.
struct Cluster<'a> {
    ground: &'a Ground,
    place: &'a Place,
    directory: String,
    socket: String,
    server: Server<'a>,
}

impl<'a> Cluster<'a> {
    fn start(ground: &'a Ground, place: &'a Place, plan: &Plan) -> Result<Self, String> {
        let directory = place.directory.join("cluster").display().to_string();
        let socket = ground.beside(place).display().to_string();
        let words = ["-U", "postgres", "--auth=trust", "--no-locale", "-E", "UTF8", "--data-checksums", "-D", &directory];
        succeeded("initdb", &ground.program("initdb", place)?.args(words).output())?;
        let sockets = format!("unix_socket_directories={socket}");
        let settings = SETTINGS.into_iter().chain([sockets.as_str()]).flat_map(|setting| ["-c", setting]);
        let server = ground.server("postgres", ["-D", &directory].into_iter().chain(settings), place)?;
        let cluster = Self { ground, place, directory, socket, server };
        let mut tries = 300;
        while !ground.client("pg_isready")?.args(["-q", "-h", &cluster.socket]).output().succeeded() {
            tries -= 1;
            if tries == 0 {
                return Err("postgres does not answer".to_owned());
            }
            thread::sleep(Duration::from_millis(50));
        }
        cluster.pgbench(&["-q".to_owned(), "-i".to_owned(), "-s".to_owned(), scale(plan).to_string()])?;
        Ok(cluster)
    }

    /// Runs pgbench, which sees no array. Returns what it printed.
    fn pgbench(&self, arguments: &[String]) -> Result<String, String> {
        let run = self.ground.client("pgbench")?.args(["-h", &self.socket, "-U", "postgres"]).args(arguments);
        succeeded("pgbench", &run.arg("postgres").output()).map(str::to_owned)
    }

    /// Returns the transactions each second.
    fn run(&self, workload: &Workload, plan: &Plan) -> Result<f64, String> {
        let mut arguments = vec!["-n".to_owned(), format!("--client={}", workload.clients)];
        if workload.only_reads {
            arguments.push("--select-only".to_owned());
        }
        arguments.push(match plan.extent {
            Extent::Quick => "--transactions=20".to_owned(),
            Extent::Usual => "--time=3".to_owned(),
            Extent::Full => "--time=20".to_owned(),
        });
        let text = self.pgbench(&arguments)?;
        rate(&text).ok_or_else(|| "pgbench: no figure in what it printed".to_owned())
    }

    fn end(self) -> Result<(), String> {
        let words = ["stop", "-s", "-m", "fast", "-D", &self.directory];
        succeeded("pg_ctl", &self.ground.program("pg_ctl", self.place)?.args(words).output())?;
        self.server.wait()
    }
}

/// The figure in a line such as `tps = 1234.5 (without initial connection time)`.
fn rate(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

impl Part for PostgreSql {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure {
            id: FIGURE.to_owned(),
            title: "PostgreSQL, transactions each second".to_owned(),
            kind: Kind::Groups,
            unit: Unit::Operations,
            better: Better::Higher,
            x: "workload",
            baseline: "posix",
            measured: "pgbench beside PostgreSQL with checksums, fsync and synchronous_commit on, and 64 MB of shared buffers. \
                Servers of all configurations run at once, and are asked by turns."
                .to_owned(),
            seed: String::new(),
            differs: "The seeds measured other databases; BDIO's OLTP figures (twice MySQL on buffered ext4) stood on a memory \
                of its own. On tmpfs, and on arrays of it, fsync costs the kernel nothing; clients share this machine's \
                processors with the servers."
                .to_owned(),
            goals: Vec::new(),
        }]
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        // A new cluster, the tables, the log.
        let log_bytes = if plan.is_quick() { 48 << 20 } else { 256 << 20 };
        let plan = Plan { file_bytes: (64 << 20) + scale(plan) * (20 << 20) + log_bytes, ..*plan };
        PROGRAMS.iter().map(|one| one.takes_bytes(&plan)).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = match plan.extent {
            Extent::Quick => 15.0,
            Extent::Usual => 200.0,
            Extent::Full => 2000.0,
        };
        vec![Group { name: "pgbench".to_owned(), seconds }]
    }

    fn measure(&self, ground: &Ground, plan: &Plan, _: usize) -> Result<Vec<Sample>, String> {
        for program in ["postgres", "pgbench"] {
            if let Some(absent) = Places::without(program, FIGURE, &PROGRAMS) {
                return Ok(absent);
            }
        }
        let mut places = Places::make_empty(ground, &PROGRAMS)?;
        // PostgreSQL refuses to be root.
        places.found.iter_mut().try_for_each(|(_, place)| ground.give(place))?;
        let clusters: Vec<Vec<Cluster<'_>>> = by_turns(&Plan { rounds: 1, ..*plan }, places.found.len(), |index| {
            Cluster::start(ground, &places.found[index].1, plan)
        })?;
        let clusters: Vec<Cluster<'_>> = clusters.into_iter().flatten().collect();
        let mut samples = places.left_out(FIGURE);
        for workload in &WORKLOADS {
            let found = by_turns(plan, clusters.len(), |index| clusters[index].run(workload, plan))?;
            let name = |(one, _): &(Configuration, Place)| one.name;
            samples.extend(places.found.iter().map(name).zip(found).map(|(name, rounds)| {
                let sample = Sample::new(FIGURE, name, workload.name, rounds);
                sample.with("scale", scale(plan).to_string()).with("settings", SETTINGS.join(" "))
            }));
        }
        clusters.into_iter().try_for_each(Cluster::end)?;
        places.discard(ground)?;
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_says_is_read() {
        assert_eq!(rate("latency average = 1 ms\ntps = 1234.5 (without initial connection time)\n"), Some(1234.5));
        assert_eq!(rate("tps: none"), None);
    }
}
