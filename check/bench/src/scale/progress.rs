//! A line on standard error for each point: what is being measured, and how long the rest takes.

use std::time::Instant;

/// How far a run is.
pub(crate) struct Progress {
    begun: Instant,
    /// What all points were thought to take, and those that are done; seconds.
    all: f64,
    done: f64,
}

impl Progress {
    pub(crate) fn new(all: f64) -> Self {
        Self { begun: Instant::now(), all, done: 0.0 }
    }

    /// Says what begins.
    pub(crate) fn tell(&self, what: &str) {
        let elapsed = self.begun.elapsed().as_secs_f64();
        eprintln!("[{}, about {} left] {what}", time(elapsed), time(self.left(elapsed)));
    }

    /// A point is done that was thought to take so long.
    pub(crate) fn done(&mut self, seconds: f64) {
        self.done += seconds;
    }

    pub(crate) fn end(&self) {
        eprintln!("[{}] done", time(self.begun.elapsed().as_secs_f64()));
    }

    /// The seconds that are left, if the rest differs from what was thought as what is done did.
    fn left(&self, elapsed: f64) -> f64 {
        let slower = if self.done > 0.0 { elapsed / self.done } else { 1.0 };
        (self.all - self.done).max(0.0) * slower
    }
}

fn time(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    if seconds < 60 { format!("{seconds} s") } else { format!("{}:{:02} min", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_as_slow_as_what_is_done() {
        let mut progress = Progress::new(10.0);
        assert_eq!(progress.left(3.0), 10.0);
        progress.done(4.0);
        assert_eq!(progress.left(8.0), 12.0);
        assert_eq!((time(59.4), time(61.0)), ("59 s".to_owned(), "1:01 min".to_owned()));
    }
}
