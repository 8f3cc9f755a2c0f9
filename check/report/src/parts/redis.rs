//! The thesis' figure 9: a key-value store that syncs its log at each write.

use super::configurations::{Configuration, EXT4, MAPPING, POSIX, Places, RAID1, RAID5, RAID5_JOURNAL};
use super::{Group, Part, by_turns};
use crate::figure::{Better, Figure, Kind, Unit};
use crate::ground::{Ground, Place, Server};
use crate::plan::{Extent, Plan};
use crate::record::Sample;
use crate::ycsb::{self, Client, WORKLOADS};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

const CONFIGURATIONS: [Configuration; 6] = [POSIX, MAPPING, RAID1, RAID5, RAID5_JOURNAL, EXT4];
const THREADS: [usize; 2] = [1, 8];

/// The figure 9.
pub(crate) struct Redis;

fn id(threads: usize) -> String {
    format!("f9-{threads}")
}

/// A server on a place, filled.
struct Filled<'a> {
    socket: PathBuf,
    records: AtomicUsize,
    server: Server<'a>,
}

impl<'a> Filled<'a> {
    fn start(ground: &'a Ground, place: &Place, plan: &Plan) -> Result<Self, String> {
        let socket = ground.socket();
        let (directory, at) = (place.directory.display().to_string(), socket.display().to_string());
        let arguments = ["--port", "0", "--unixsocket", &at, "--dir", &directory, "--appendonly", "yes"];
        // The log is not written anew in the middle of a round.
        let log = ["--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"];
        let arguments = arguments.into_iter().chain(log);
        let server = ground.server("redis-server", arguments, place)?;
        let mut tries = 200;
        while let Err(why) = Client::connect(&socket).and_then(|mut client| client.ask(&[b"PING"])) {
            tries -= 1;
            if tries == 0 {
                return Err(format!("redis-server does not answer: {why}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        ycsb::load(&socket, plan.records)?;
        Ok(Self { socket, records: AtomicUsize::new(plan.records), server })
    }

    fn end(self) -> Result<(), String> {
        Client::connect(&self.socket)?.shut_down();
        self.server.wait()
    }
}

impl Part for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn title(&self) -> &'static str {
        "The thesis' figure 9: redis under a load like YCSB's"
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |threads: usize| Figure {
            id: id(threads),
            title: format!("F9: redis, operations each second, {threads} {}", if threads == 1 { "client" } else { "clients" }),
            kind: Kind::Groups,
            unit: Unit::Operations,
            better: Better::Higher,
            x: "workload",
            baseline: "posix",
            measured:
                "redis with an append-only file and `appendfsync always`, asked over a Unix socket. The load is modelled on \
                YCSB's core workloads A to F (records of ten fields of 100 bytes, keys by Zipf's law) and made by this program: \
                it is not YCSB itself. Servers of all configurations run at once, and are asked by turns."
                    .to_owned(),
            seed: "Valkey was fastest on posix, most clearly with many writes: each append remapped the file.".to_owned(),
            differs:
                "The thesis ran Valkey and YCSB on 36 processors; here server and clients share this machine's. On tmpfs fsync \
                costs the kernel nothing, on ext4 over a loop device it writes a journal. Appends do not remap here."
                    .to_owned(),
            goals: Vec::new(),
        };
        THREADS.into_iter().map(figure).collect()
    }

    fn needs_bytes(&self, plan: &Plan) -> u64 {
        // The log of a record, and of an operation in the mean; each server's memory holds the records.
        let log = (plan.records * 1500 + plan.operations * plan.rounds * WORKLOADS.len() * 150) as u64;
        let plan = Plan { file_bytes: log, ..*plan };
        CONFIGURATIONS.iter().map(|one| one.takes_bytes(&plan) + log).sum()
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let seconds = match plan.extent {
            Extent::Quick => 6.0,
            Extent::Usual => 150.0,
            Extent::Full => 1500.0,
        };
        THREADS.into_iter().map(|threads| Group { name: format!("clients-{threads}"), seconds }).collect()
    }

    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String> {
        let threads = THREADS[group];
        let figure = id(threads);
        if let Some(absent) = Places::without("redis-server", &figure, &CONFIGURATIONS) {
            return Ok(absent);
        }
        let places = Places::make_empty(ground, &CONFIGURATIONS)?;
        let start = |(_, place): &(Configuration, Place)| Filled::start(ground, place, plan);
        let servers = places.found.iter().map(start).collect::<Result<Vec<_>, String>>()?;
        let mut samples = places.left_out(&figure);
        for workload in &WORKLOADS {
            let found = by_turns(plan, servers.len(), |index| {
                let filled = &servers[index];
                ycsb::run(&filled.socket, workload, threads, plan.operations, &filled.records)
            })?;
            let measured = places.found.iter().zip(found).map(|((one, _), rounds)| {
                let sample = Sample::new(&figure, one.name, workload.name, rounds);
                sample.with("clients", threads.to_string()).with("records", plan.records.to_string())
            });
            samples.extend(measured);
        }
        servers.into_iter().try_for_each(Filled::end)?;
        places.discard(ground)?;
        Ok(samples)
    }
}
