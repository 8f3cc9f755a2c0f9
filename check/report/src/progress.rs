//! How far a run is: a bar with the time that is left, on a terminal; lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

/// The progress of a run.
pub(crate) struct Progress {
    /// None where there is no terminal.
    bar: Option<ProgressBar>,
    all: f64,
    done: f64,
}

/// Steps of the bar in a second that a group is thought to take.
const STEPS: f64 = 10.0;

impl Progress {
    /// A run that is thought to take so many seconds.
    pub(crate) fn new(seconds: f64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new((seconds * STEPS) as u64);
            let style = ProgressStyle::with_template("{elapsed} [{bar:30}] {percent}%, about {eta} left: {msg}");
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(std::time::Duration::from_secs(1));
            bar
        });
        Self { bar, all: seconds, done: 0.0 }
    }

    /// Says what begins.
    pub(crate) fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("[about {:.0} s left] {what}", (self.all - self.done).max(0.0)),
        }
    }

    /// A group is done that was thought to take so long.
    pub(crate) fn done(&mut self, seconds: f64) {
        self.done += seconds;
        if let Some(bar) = &self.bar {
            bar.set_position((self.done * STEPS) as u64);
        }
    }

    /// Says something that stays.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
