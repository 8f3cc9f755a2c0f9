//! Reads the log that the library writes if `CXLRAID_DEBUG_SUD` names a file
//! (front/preload/src/sud/log.rs). In a program with that variable the kernel's Syscall User
//! Dispatch catches every system call that comes from an instruction which was not patched, and the
//! library appends a line for it. Such a program is *under watch* here.
//!
//! A line of the log is one of:
//! - `armed PID PROGRAM`: a program came under watch;
//! - `missed CALL PLACE SUBJECT`: a call on the array came from an instruction that was not
//!   patched;
//! - `other CALL PLACE`: such a call on something else.
//!
//! PLACE is the file of the instruction and the offset in it, SUBJECT a path or a descriptor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// The variable that puts a program under watch.
pub const VARIABLE: &str = "CXLRAID_DEBUG_SUD";
/// The most different lines that [`counted`] shows.
const SHOWN_COUNT: usize = 12;

/// A log to which programs of any user append.
pub struct Watch {
    path: PathBuf,
    /// How many bytes of the log have been taken.
    taken: AtomicUsize,
}

impl Watch {
    /// An empty log at `path`.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        let named = |error| format!("{}: {error}", path.display());
        fs::write(&path, "").map_err(named)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(named)?;
        Ok(Self { path, taken: AtomicUsize::new(0) })
    }

    /// The path of the log. Whoever starts a program sets [`VARIABLE`] to it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Summarises the lines that programs have written since the log was made or last taken. A line
    /// that is being written is left for the next time.
    ///
    /// # Errors
    /// A program made a call on the array from an instruction that was not patched; no program was
    /// under watch; the log cannot be read.
    pub fn take(&self) -> Result<String, String> {
        let text = fs::read(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))?;
        let new = text.get(self.taken.load(Ordering::Relaxed)..).unwrap_or_default();
        let lines = new.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        self.taken.fetch_add(lines, Ordering::Relaxed);
        judge(&String::from_utf8_lossy(&new[..lines]))
    }
}

fn judge(log: &str) -> Result<String, String> {
    let starting = |word: &'static str| log.lines().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '));
    let missed = counted(starting("missed"));
    if !missed.is_empty() {
        return Err(format!("calls on the array from instructions that were not patched:\n{missed}"));
    }
    // A program that is executed anew or forked has its line each time.
    let armed: BTreeSet<&str> = starting("armed").collect();
    if armed.is_empty() {
        return Err("no program was under watch".to_owned());
    }
    // Only the place counts, whatever call was made there.
    let others = counted(starting("other").map(|line| line.split(' ').nth(1).unwrap_or(line)));
    let others = match others.as_str() {
        "" => String::new(),
        others => format!("; calls on other files, from instructions that were not patched:\n{others}"),
    };
    Ok(format!("{} programs under watch{others}", armed.len()))
}

/// Lists each different line with its count: the first [`SHOWN_COUNT`] in alphabetical order, then
/// the number of those left out.
fn counted<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    lines.for_each(|line| *counts.entry(line).or_default() += 1);
    let mut shown: Vec<String> = counts.iter().take(SHOWN_COUNT).map(|(line, count)| format!("{count} × {line}")).collect();
    if counts.len() > SHOWN_COUNT {
        shown.push(format!("and {} others", counts.len() - SHOWN_COUNT));
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_call_is_an_error_and_so_is_a_log_without_watched_programs() {
        let fine =
            "armed 1 /bin/sh\narmed 2 /bin/cat\narmed 2 /bin/cat\nother openat /lib/x.so+0x10\nother read /lib/x.so+0x10\n";
        let said = "2 programs under watch; calls on other files, from instructions that were not patched:\n2 × /lib/x.so+0x10";
        assert_eq!(judge(fine).unwrap(), said);
        let wrong = judge(&format!("{fine}missed openat /lib/x.so+0x10 /data/f\n")).unwrap_err();
        assert!(wrong.ends_with("1 × openat /lib/x.so+0x10 /data/f"), "{wrong}");
        assert!(judge("").unwrap_err().contains("no program"));
    }

    #[test]
    fn no_line_is_lost_between_two_takes() {
        let path = std::env::temp_dir().join(format!("cxlraid-stage-watch-{}", std::process::id()));
        let watch = Watch::new(path.clone()).unwrap();
        let append = |text: &str| {
            let log = fs::OpenOptions::new().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut &log, text.as_bytes()).unwrap();
        };
        append("armed 1 /bin/sh\narmed 2 /b");
        assert_eq!(watch.take().unwrap(), "1 programs under watch");
        append("in/cat\nmissed openat /lib/x.so+0x10 /data/f\n");
        assert!(watch.take().unwrap_err().contains("/data/f"));
        assert!(watch.take().is_err());
        fs::remove_file(&path).unwrap();
    }
}
