//! What clients sent and what was acknowledged to them, kept outside the array.
//!
//! Client `c` makes changes 1, 2, 3 … one after the other, each in a transaction. When the server
//! is killed, change n has been acknowledged and n + 1 perhaps sent. Afterwards exactly the changes
//! 1 to n, or 1 to n + 1, must be there; nothing acknowledged may be lost.

use crate::Outcome;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Changes that each client makes at least before the kill.
const CHANGES_MIN: u64 = 5;
/// How long it may take to make them.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one client found in the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// How many changes.
    pub(crate) count: u64,
    /// The highest of them.
    pub(crate) last: u64,
    /// What the client's counter says, which the same transactions change.
    pub(crate) counter: u64,
}

/// Acknowledged changes by client.
pub(crate) struct Ledger {
    acknowledged: Vec<u64>,
}

impl Ledger {
    pub(crate) fn new(clients: usize) -> Self {
        Self { acknowledged: vec![0; clients] }
    }

    pub(crate) fn clients(&self) -> usize {
        self.acknowledged.len()
    }

    /// All that was acknowledged so far.
    pub(crate) fn total(&self) -> u64 {
        self.acknowledged.iter().sum()
    }

    /// Clients connect and change until `kill` has killed the server, after `time` or when each has
    /// made some changes, whichever is later.
    pub(crate) fn load<C>(
        &mut self,
        time: Duration,
        connect: impl Fn(usize) -> Outcome<C> + Sync,
        change: impl Fn(&mut C, usize, u64) -> Outcome + Sync,
        kill: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let (killing, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let progress: Vec<AtomicU64> = self.acknowledged.iter().map(|&count| AtomicU64::new(count)).collect();
        let client = |number: usize| {
            let mut connection = connect(number)?;
            while !done.load(Ordering::Relaxed) {
                let n = progress[number].load(Ordering::Relaxed) + 1;
                match change(&mut connection, number, n) {
                    Ok(()) => progress[number].store(n, Ordering::Relaxed),
                    Err(_) if killing.load(Ordering::SeqCst) => return Ok(()),
                    Err(message) => return Err(format!("client {number}, change {n}: {message}")),
                }
            }
            Ok(())
        };
        let result = thread::scope(|scope| {
            let threads: Vec<_> = (0..progress.len())
                .map(|number| {
                    let client = &client;
                    scope.spawn(move || client(number))
                })
                .collect();
            let begun = Instant::now();
            let moved = |number: usize| progress[number].load(Ordering::Relaxed) >= self.acknowledged[number] + CHANGES_MIN;
            while begun.elapsed() < time || !(0..progress.len()).all(moved) && begun.elapsed() < PATIENCE {
                if threads.iter().any(thread::ScopedJoinHandle::is_finished) {
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
            let slow = (0..progress.len()).find(|&number| !moved(number));
            killing.store(true, Ordering::SeqCst);
            let killed = kill();
            done.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| "a client panicked".to_owned())??;
            }
            killed?;
            match slow {
                Some(number) => Err(format!("client {number}: fewer than {CHANGES_MIN} changes in {} s", PATIENCE.as_secs())),
                None => Ok(()),
            }
        });
        self.acknowledged = progress.into_iter().map(AtomicU64::into_inner).collect();
        result
    }

    /// Compares with what is there, by client; what was sent and not acknowledged counts from now
    /// on if it is there.
    pub(crate) fn check(&mut self, found: &[Found]) -> Outcome {
        if found.len() != self.acknowledged.len() {
            return Err(format!("changes of {} clients, must be of {}", found.len(), self.acknowledged.len()));
        }
        for (client, (acknowledged, found)) in self.acknowledged.iter_mut().zip(found).enumerate() {
            let whole = found.count == found.last && found.counter == found.last;
            if !whole || !(*acknowledged..=*acknowledged + 1).contains(&found.last) {
                return Err(format!("client {client}: {acknowledged} changes were acknowledged, there are {found:?}"));
            }
            *acknowledged = found.last;
        }
        Ok(())
    }

    /// Lines `client count last counter`, separated by `|` or a tab, as database clients print
    /// them.
    pub(crate) fn check_lines(&mut self, lines: &str) -> Outcome {
        let mut found = vec![Found::default(); self.clients()];
        for line in lines.lines() {
            let fields: Vec<u64> = line.split(['|', '\t']).filter_map(|field| field.trim().parse().ok()).collect();
            let &[client, count, last, counter] = &fields[..] else { return Err(format!("not understood: {line}")) };
            let place = usize::try_from(client).ok().and_then(|client| found.get_mut(client));
            *place.ok_or_else(|| format!("no such client: {line}"))? = Found { count, last, counter };
        }
        self.check(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let stored = Mutex::new([0_u64; 2]);
        let down = AtomicBool::new(false);
        let mut ledger = Ledger::new(2);
        let change = |_: &mut (), client: usize, n: u64| {
            thread::sleep(Duration::from_micros(50));
            if down.load(Ordering::SeqCst) {
                return Err("down".to_owned());
            }
            stored.lock().unwrap()[client] = n;
            Ok(())
        };
        let kill = || {
            down.store(true, Ordering::SeqCst);
            Ok(())
        };
        ledger.load(Duration::from_millis(5), |_| Ok(()), change, kill).unwrap();
        assert!(ledger.total() >= 2 * CHANGES_MIN);
        let found = stored.into_inner().unwrap().map(|last| Found { count: last, last, counter: last });
        ledger.check(&found).unwrap();
        let mut lost = found;
        lost[1] = Found { count: 1, last: 1, counter: 1 };
        assert!(ledger.check(&lost).unwrap_err().starts_with("client 1: "));
        lost[1] = Found { count: found[1].count - 1, ..found[1] };
        assert!(ledger.check(&lost).is_err());
        let line = |client: usize| format!("{client}|{0}|{0}|{0}\n", found[client].last);
        ledger.check_lines(&(line(1) + &line(0))).unwrap();
        assert!(ledger.check_lines(&line(0)).is_err());
    }

    #[test]
    fn a_client_that_fails_before_the_kill_is_a_failure() {
        let mut ledger = Ledger::new(1);
        let result = ledger.load(Duration::from_secs(9), |_| Ok(()), |&mut (), _, _| Err("broken".to_owned()), || Ok(()));
        assert_eq!(result.unwrap_err(), "client 0, change 1: broken");
    }
}
