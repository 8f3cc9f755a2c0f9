//! Looks at an array from outside: redundancy, members' trees, contents; with a member missing too.
//!
//! Runs in a process of its own, without interception, on the crates the library is made of. The
//! array is what the usual variables say.

use crate::expected::{self, File};
use file::FileRef;
use layout::Level;
use stage::scrub::{View, WHOLE_BYTES_MAX};
use std::fs;
use std::path::PathBuf;

/// What is to be looked at.
#[derive(Default)]
pub(crate) struct Wish {
    /// Contents that files must have.
    pub(crate) expected: Option<PathBuf>,
    /// Where contents are written, for checks that follow.
    pub(crate) save: Option<PathBuf>,
    /// Processes are at work: only redundancy holds still.
    pub(crate) live: bool,
}

/// Returns what is wrong.
pub(crate) fn check(wish: &Wish) -> Result<Vec<String>, String> {
    let checker = Checker { view: View::attach()? };
    let mut wrong = Vec::new();
    let paths = checker.view.paths(&mut wrong, wish.live)?;
    for path in &paths {
        checker.view.redundancy(path, &mut wrong)?;
    }
    if !wish.live {
        checker.contents(wish, &paths, &mut wrong)?;
    }
    Ok(wrong)
}

struct Checker {
    view: View,
}

impl Checker {
    fn contents(&self, wish: &Wish, paths: &[PathBuf], wrong: &mut Vec<String>) -> Result<(), String> {
        if let Some(expected) = &wish.expected {
            let expected = expected::load(expected).map_err(|error| format!("{}: {error}", expected.display()))?;
            for file in &expected {
                self.compare(file, wrong)?;
            }
            if expected.len() != paths.len() {
                wrong.push(format!("{} files, not {}", paths.len(), expected.len()));
            }
        }
        if let Some(save) = &wish.save {
            let read = |path: &PathBuf| {
                let file = self.view.open(path)?;
                let size = file.size();
                let whole = vec![(0, read(&file, 0, size as usize)?)];
                Ok(File { path: path.clone(), size, extents: whole })
            };
            let files = paths.iter().map(read).collect::<Result<Vec<_>, String>>()?;
            expected::save(save, &files).map_err(|error| format!("{}: {error}", save.display()))?;
        }
        Ok(())
    }

    fn compare(&self, expected: &File, wrong: &mut Vec<String>) -> Result<(), String> {
        let file = self.view.open(&expected.path)?;
        let name = expected.path.display();
        if file.size() != expected.size {
            wrong.push(format!("{name}: size {}, not {}", file.size(), expected.size));
            return Ok(());
        }
        for (offset, bytes) in &expected.extents {
            let got = read(&file, *offset, bytes.len())?;
            if got != *bytes {
                wrong.push(format!("{name} from {offset} on: {}", expected::difference(bytes, &got)));
            }
        }
        if file.geometry().level() == Level::Raid1 && expected.size <= WHOLE_BYTES_MAX {
            self.compare_plain(expected, wrong);
        }
        Ok(())
    }

    /// A mirror is a plain file.
    fn compare_plain(&self, expected: &File, wrong: &mut Vec<String>) {
        for (slot, root) in self.view.roots() {
            let path = root.join(expected.path.strip_prefix("/").unwrap_or(&expected.path));
            let plain = fs::read(&path).unwrap_or_default();
            if plain.len() as u64 != expected.size {
                wrong.push(format!("{} on member {slot}: {} bytes, not {}", path.display(), plain.len(), expected.size));
                continue;
            }
            for (offset, bytes) in &expected.extents {
                if plain[*offset as usize..][..bytes.len()] != **bytes {
                    wrong.push(format!("{} on member {slot} differs from {offset} on", path.display()));
                }
            }
        }
    }
}

fn read(file: &FileRef, offset: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let mut buffer = vec![0; bytes];
    // SAFETY: the buffer is ours.
    let count = unsafe { file.read_at(offset, buffer.as_mut_ptr(), bytes) }.map_err(|error| format!("read: {error:?}"))?;
    if count == bytes { Ok(buffer) } else { Err(format!("{count} bytes read, not {bytes}")) }
}
