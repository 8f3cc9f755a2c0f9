//! The terminal while `top` draws on it: another page of it, without a cursor, and keys that come one
//! by one and are not echoed. It is as before when the command ends, also by an error.

use std::{
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use sys::rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::read,
    termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// From the upper left corner on.
const HOME: &str = "\x1b[H";
/// What is right of the cursor, and what is below it, becomes blank.
const CLEAR_RIGHT: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// How often it is looked whether a signal has come.
const STEP: Duration = Duration::from_millis(100);

pub(super) struct Screen {
    before: Termios,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // Who is stopped leaves the terminal as it is then.
        modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        let screen = Self { before };
        print(ENTER)?;
        Ok(screen)
    }

    /// Draws a text, as much of it as there is room for.
    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        // A terminal that does not know its size says 0.
        let size = tcgetwinsize(io::stdout()).map_or((0, 0), |size| (size.ws_row, size.ws_col));
        let known = |number: u16, default: usize| if number == 0 { default } else { number.into() };
        print(&page(text, known(size.0, 24), known(size.1, 80)))
    }

    /// Waits so long. True if the user or a signal asks to end.
    pub(super) fn wait(&mut self, is_ended: &AtomicBool, period: Duration) -> bool {
        let until = Instant::now() + period;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if is_ended.load(Ordering::Relaxed) || left.is_zero() {
                return is_ended.load(Ordering::Relaxed);
            }
            let step = left.min(STEP);
            let step = Timespec { tv_sec: 0, tv_nsec: step.as_nanos() as i64 };
            let input = io::stdin();
            let mut asked = [PollFd::new(&input, PollFlags::IN)];
            let is_there = poll(&mut asked, Some(&step)).is_ok_and(|count| count > 0);
            if is_there {
                let mut keys = [0; 16];
                // Nothing to be read means that the terminal is gone.
                match read(&input, &mut keys) {
                    Ok(count) if count > 0 && !keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => {}
                    _ => return true,
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = print(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// The codes that draw a text on a screen of so many rows and columns.
fn page(text: &str, rows: usize, columns: usize) -> String {
    let lines = text.lines().map(|line| line.chars().take(columns).collect::<String>() + CLEAR_RIGHT);
    let lines: Vec<String> = lines.take(rows).collect();
    format!("{HOME}{}{CLEAR_BELOW}", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_room_on_its_screen() {
        assert_eq!(page("abc\nd\ne\n", 2, 2), "\x1b[Hab\x1b[K\r\nd\x1b[K\x1b[J");
        assert_eq!(page("", 2, 2), "\x1b[H\x1b[J");
    }
}
