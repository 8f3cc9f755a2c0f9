//! A load on redis that is modelled on YCSB's core workloads A to F and its redis binding. It is not
//! YCSB: keys are drawn, and records are stored, as there (a hash of ten fields of 100 bytes, and a
//! sorted set of all keys), but the client is this one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// YCSB's constant: how much more popular keys are asked for than others.
const ZIPF: f64 = 0.99;
const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;
/// The longest scan.
const SCAN_MAX: usize = 100;
const INDEX: &str = "_indices";

/// A core workload: parts in a hundred of its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Its letter and its operations, as the report shows them.
    pub(crate) name: &'static str,
    read: usize,
    update: usize,
    insert: usize,
    scan: usize,
    /// True if the newest records are read most.
    latest: bool,
    // The rest is read, changed and written back.
}

/// The workloads, in YCSB's order but for E, which comes last there, too: it inserts.
pub(crate) const WORKLOADS: [Workload; 6] = [
    Workload { name: "A: 50 % read, 50 % update", read: 50, update: 50, insert: 0, scan: 0, latest: false },
    Workload { name: "B: 95 % read, 5 % update", read: 95, update: 5, insert: 0, scan: 0, latest: false },
    Workload { name: "C: read only", read: 100, update: 0, insert: 0, scan: 0, latest: false },
    Workload { name: "D: 95 % read latest, 5 % insert", read: 95, update: 0, insert: 5, scan: 0, latest: true },
    Workload { name: "E: 95 % scan, 5 % insert", read: 0, update: 0, insert: 5, scan: 95, latest: false },
    Workload { name: "F: 50 % read, 50 % read-modify-write", read: 50, update: 0, insert: 0, scan: 0, latest: false },
];

/// Numbers that look drawn and are the same in each run (xorshift64*).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, count: usize) -> usize {
        (self.part() * count as f64) as usize
    }
}

/// Ranks after Zipf's law (Gray et al., "Quickly generating billion-record synthetic databases").
struct Zipf {
    count: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: usize) -> Self {
        let zeta = |count: usize| (1..=count).map(|rank| (rank as f64).powf(-ZIPF)).sum::<f64>();
        let all = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZIPF)) / (1.0 - zeta(2) / all);
        Self { count: count as f64, zeta: all, eta }
    }

    /// A rank from 0 on; 0 is the most popular.
    fn rank(&self, draw: &mut Draw) -> usize {
        let part = draw.part();
        let scaled = part * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(ZIPF) {
            return 1;
        }
        let rank = self.count * (self.eta * part - self.eta + 1.0).powf(1.0 / (1.0 - ZIPF));
        (rank as usize).min(self.count as usize - 1)
    }
}

/// A connection to redis.
pub(crate) struct Client(BufReader<UnixStream>);

type Result<T> = std::result::Result<T, String>;

impl Client {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        UnixStream::connect(socket).map(|stream| Self(BufReader::new(stream))).map_err(|error| format!("redis: {error}"))
    }

    /// Sends a command and reads its whole reply. Returns what the reply is worth: the words of a list,
    /// or one word.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend(*word);
            bytes.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).map_err(|error| format!("redis: {error}"))?;
        let mut values = Vec::new();
        let mut due = 1;
        while due > 0 {
            due -= 1;
            let mut line = String::new();
            if self.0.read_line(&mut line).map_err(|error| format!("redis: {error}"))? == 0 {
                return Err("redis: it has closed the connection".to_owned());
            }
            let (kind, rest) = line.trim_end().split_at_checked(1).ok_or("redis: an empty reply")?;
            let count = || rest.parse::<i64>().map_err(|_| format!("redis: {line:?}"));
            match kind {
                "-" => return Err(format!("redis: {rest}")),
                "*" => due += usize::try_from(count()?).unwrap_or(0),
                "$" => {
                    let Ok(bytes) = usize::try_from(count()?) else { continue };
                    let mut value = vec![0; bytes + 2];
                    self.0.read_exact(&mut value).map_err(|error| format!("redis: {error}"))?;
                    value.truncate(bytes);
                    values.push(value);
                }
                _ => values.push(rest.as_bytes().to_vec()),
            }
        }
        Ok(values)
    }

    /// Ends the server.
    pub(crate) fn shut_down(&mut self) {
        // The server ends instead of answering.
        let _ = self.ask(&[b"SHUTDOWN", b"NOSAVE"]);
    }

    fn insert(&mut self, number: usize, draw: &mut Draw) -> Result<()> {
        let key = key(number);
        let (fields, value) = (fields(), value(draw));
        let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
        for field in &fields {
            words.extend([field.as_bytes(), &value]);
        }
        self.ask(&words)?;
        let score = hashed(number).to_string();
        self.ask(&[b"ZADD", INDEX.as_bytes(), score.as_bytes(), key.as_bytes()]).map(|_| ())
    }

    fn read(&mut self, number: usize) -> Result<()> {
        let found = self.ask(&[b"HGETALL", key(number).as_bytes()])?;
        if found.len() == FIELDS * 2 { Ok(()) } else { Err(format!("redis: {} has {} words", key(number), found.len())) }
    }

    fn update(&mut self, number: usize, draw: &mut Draw) -> Result<()> {
        let field = &fields()[draw.below(FIELDS)];
        self.ask(&[b"HSET", key(number).as_bytes(), field.as_bytes(), &value(draw)]).map(|_| ())
    }

    fn scan(&mut self, number: usize, count: usize) -> Result<()> {
        let (from, count) = (hashed(number).to_string(), count.to_string());
        let words: [&[u8]; 7] = [b"ZRANGEBYSCORE", INDEX.as_bytes(), from.as_bytes(), b"+inf", b"LIMIT", b"0", count.as_bytes()];
        for key in self.ask(&words)? {
            self.ask(&[b"HGETALL", &key])?;
        }
        Ok(())
    }
}

/// A number that says nothing of the order of insertion (FNV-1a), short enough for a score.
fn hashed(number: usize) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    number.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, hash) >> 12
}

fn key(number: usize) -> String {
    format!("user{}", hashed(number))
}

fn fields() -> [String; FIELDS] {
    std::array::from_fn(|index| format!("field{index}"))
}

fn value(draw: &mut Draw) -> Vec<u8> {
    (0..FIELD_BYTES).map(|_| b' ' + (draw.next() >> 58) as u8).collect()
}

/// Fills an empty server with records.
pub(crate) fn load(socket: &Path, records: usize) -> Result<()> {
    let (mut client, mut draw) = (Client::connect(socket)?, Draw(0x9e37_79b9_7f4a_7c15));
    (0..records).try_for_each(|number| client.insert(number, &mut draw))
}

/// Runs so many operations of a workload by so many threads. `records` is how many records there are,
/// and grows by what is inserted. Returns operations each second.
pub(crate) fn run(socket: &Path, workload: &Workload, threads: usize, operations: usize, records: &AtomicUsize) -> Result<f64> {
    let zipf = Zipf::new(records.load(Ordering::Relaxed).max(2));
    let work = |thread: usize, client: &mut Client| -> Result<()> {
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(thread as u64 + 1) | 1);
        for _ in 0..operations / threads {
            let rank = zipf.rank(&mut draw);
            // Newest first, or spread over all keys.
            let count = zipf.count as usize;
            let number = if workload.latest { count - 1 - rank } else { hashed(rank) as usize % count };
            let kind = draw.below(100);
            if kind < workload.read {
                client.read(number)?;
            } else if kind < workload.read + workload.update {
                client.update(number, &mut draw)?;
            } else if kind < workload.read + workload.update + workload.insert {
                client.insert(records.fetch_add(1, Ordering::Relaxed), &mut draw)?;
            } else if workload.scan > 0 {
                client.scan(number, draw.below(SCAN_MAX) + 1)?;
            } else {
                client.read(number)?;
                client.update(number, &mut draw)?;
            }
        }
        Ok(())
    };
    let mut clients = (0..threads).map(|_| Client::connect(socket)).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> =
            clients.iter_mut().enumerate().map(|(thread, client)| scope.spawn(move || work(thread, client))).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
    })?;
    Ok((operations / threads * threads) as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_ranks_are_drawn_most() {
        let (zipf, mut draw) = (Zipf::new(1000), Draw(1));
        let mut counts = vec![0; 1000];
        (0..100_000).for_each(|_| counts[zipf.rank(&mut draw)] += 1);
        // The first rank has 1 / zeta of all draws: 13 %.
        assert!((12_000..14_500).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[1] && counts[1] > counts[10] && counts[10] > counts[900], "{counts:?}");
    }

    #[test]
    fn workloads_are_whole() {
        for workload in WORKLOADS {
            assert!(workload.read + workload.update + workload.insert + workload.scan <= 100, "{workload:?}");
        }
        assert_eq!(value(&mut Draw(7)).len(), FIELD_BYTES);
        assert!(value(&mut Draw(7)).is_ascii());
    }
}
