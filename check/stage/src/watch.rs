//! Programs whose system calls are under watch: `CXLRAID_DEBUG_SUD` and what its log says (front/preload/src/sud/log.rs).

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The variable that puts a program's calls under watch.
pub const VARIABLE: &str = "CXLRAID_DEBUG_SUD";
/// Lines of a complaint.
const SHOWN_COUNT: usize = 12;

/// A log that programs of any user append to.
pub struct Watch {
    path: PathBuf,
}

impl Watch {
    /// An empty log at `path`.
    pub fn new(path: PathBuf) -> Result<Self, String> {
        let named = |error| format!("{}: {error}", path.display());
        fs::write(&path, "").map_err(named)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(named)?;
        Ok(Self { path })
    }

    /// The value of [`VARIABLE`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was seen since the last time, in a few words: an error if a call on the array was missed, or if nothing was
    /// under watch.
    pub fn take(&self) -> Result<String, String> {
        let text = fs::read(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))?;
        fs::write(&self.path, "").map_err(|error| format!("{}: {error}", self.path.display()))?;
        judge(&String::from_utf8_lossy(&text))
    }
}

fn judge(log: &str) -> Result<String, String> {
    let starting = |word: &'static str| log.lines().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '));
    let armed = starting("armed").count();
    let missed = counted(starting("missed"));
    if !missed.is_empty() {
        return Err(format!("calls on the array from instructions that were not patched:\n{missed}"));
    }
    if armed == 0 {
        return Err("no program's calls were under watch".to_owned());
    }
    let others = counted(starting("other").map(|line| line.split(' ').nth(1).unwrap_or(line)));
    let others = if others.is_empty() { String::new() } else { format!("; not on the array, from\n{others}") };
    Ok(format!("{armed} programs under watch{others}"))
}

/// Different lines and how often each came.
fn counted<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    lines.for_each(|line| *counts.entry(line).or_default() += 1);
    let mut shown: Vec<String> = counts.iter().take(SHOWN_COUNT).map(|(line, count)| format!("{count} times {line}")).collect();
    if counts.len() > SHOWN_COUNT {
        shown.push(format!("and {} others", counts.len() - SHOWN_COUNT));
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_call_on_the_array_is_an_error_and_so_is_no_watch() {
        let fine = "armed 1 /bin/sh\narmed 2 /bin/cat\nother openat /lib/x.so+0x10\nother read /lib/x.so+0x10\n";
        assert_eq!(judge(fine).unwrap(), "2 programs under watch; not on the array, from\n2 times /lib/x.so+0x10");
        let wrong = judge(&format!("{fine}missed openat /lib/x.so+0x10 /data/f\n")).unwrap_err();
        assert!(wrong.ends_with("1 times openat /lib/x.so+0x10 /data/f"), "{wrong}");
        assert!(judge("").unwrap_err().contains("no program"));
    }
}
