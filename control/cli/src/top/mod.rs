//! `cxlraid top`: what programs and mounts do on an array, as it happens, from the counters in its
//! runtime segment. Nothing is attached or changed.

mod figures;
mod screen;

use crate::{
    args::Top,
    commands::called,
    events,
    failure::{Exit, Failure},
    inspect,
    spec::Source,
    view::ArrayView,
};
use array::runtime::{counters, segment_paths};
use figures::Figures;
use format::Uuid;
use screen::Screen;
use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

/// How soon a screen that is new shows its first figures.
const FIRST: Duration = Duration::from_millis(250);

/// The counters at one moment.
pub(crate) struct Moment {
    time: Instant,
    /// The processor's clock then.
    ticks: u64,
    counted: counters::AllCounted,
}

impl Moment {
    /// Looks at the counters of an array. Where no program has used it since the machine started or
    /// the array was stopped, nothing was counted.
    fn now(uuid: Uuid, thing: &str) -> Result<Self, Failure> {
        let found = counters::counted(uuid);
        if found.is_none() && segment_paths(uuid).iter().any(|path| Path::new(path).exists()) {
            let what = "its runtime segment may not be read by this user, or is another version's";
            return Err(Failure::new(
                thing,
                what,
                "run as the user who owns the array, with the command that its programs run by",
            ));
        }
        Ok(Self { time: Instant::now(), ticks: persist::timestamp(), counted: found.unwrap_or_default() })
    }
}

/// What `top` needs to know again and again.
struct Watched<'a> {
    source: &'a Source,
    thing: &'a str,
    uuid: Uuid,
}

impl Watched<'_> {
    fn now(&self) -> Result<Moment, Failure> {
        Moment::now(self.uuid, self.thing)
    }

    /// What was done between two moments, the second of which is now.
    fn figures(&self, earlier: &Moment, later: &Moment) -> Result<Figures, Failure> {
        let view: ArrayView = inspect::view(self.source)?;
        Ok(Figures::new(self.thing, &view, earlier, later))
    }
}

/// Shows the figures until it is asked to end, or once.
pub(crate) fn top(source: &Source, arguments: &Top) -> Result<Exit, Failure> {
    let thing = called(source);
    let uuid = inspect::newest(source, thing)?.array_uuid;
    let watched = Watched { source, thing, uuid };
    let period = Duration::from_secs_f64(arguments.interval);
    let is_ended = crate::scrub::ending("top")?;
    let is_screen = !arguments.once && !arguments.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    let mut earlier = watched.now()?;
    if is_screen {
        let mut screen = Screen::begin().map_err(|error| Failure::new("terminal", error, "--once prints one table"))?;
        let mut wait = FIRST.min(period);
        while !screen.wait(&is_ended, wait) {
            let later = watched.now()?;
            screen.show(&watched.figures(&earlier, &later)?.table()).map_err(no_output)?;
            (earlier, wait) = (later, period);
        }
        return Ok(Exit::Fine);
    }
    let mut is_first = true;
    while !events::wait(&is_ended, period) {
        let later = watched.now()?;
        let figures = watched.figures(&earlier, &later)?;
        let text = match (arguments.json, arguments.once) {
            (true, true) => figures.json(true) + "\n",
            // One document a line, for who reads on.
            (true, false) => figures.json(false) + "\n",
            (false, _) => (if is_first { "" } else { "\n" }).to_owned() + &figures.table(),
        };
        let mut output = io::stdout();
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            Ok(()) if arguments.once => break,
            Ok(()) => {}
            // Whoever closed the pipe has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(no_output(error)),
        }
        (earlier, is_first) = (later, false);
    }
    Ok(Exit::Fine)
}

fn no_output(error: io::Error) -> Failure {
    Failure::new("standard output", error, "")
}
