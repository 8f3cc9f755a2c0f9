//! What a tree holds, one line per name: run by the user with the library it shows the array, by
//! root without it a member.
//!
//! As a command of this program, so that hundreds of files cost one process, and a sum that an
//! emulated processor computes fast.

use crate::{Outcome, about};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::ExitCode,
};

/// The first argument of `cxlraid-vm digest contents|names DIRECTORY`.
pub(crate) const COMMAND: &str = "digest";

/// Prints the lines of a tree.
pub(crate) fn command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(what), Some(directory)) = (arguments.next(), arguments.next()) else { return ExitCode::from(2) };
    match lines(Path::new(&directory), what == "contents") {
        Ok(lines) => {
            println!("{}", lines.join("\n"));
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Type, mode, owner and name of everything below `root`, sorted; also sizes and sums of files, if
/// wanted.
pub(crate) fn lines(root: &Path, contents: bool) -> Outcome<Vec<String>> {
    let mut lines = Vec::new();
    walk(root, root, contents, &mut lines)?;
    lines.sort();
    Ok(lines)
}

fn walk(root: &Path, directory: &Path, contents: bool, lines: &mut Vec<String>) -> Outcome {
    for entry in fs::read_dir(directory).map_err(about(directory.display()))? {
        let path = entry.map_err(about(directory.display()))?.path();
        let metadata = fs::symlink_metadata(&path).map_err(about(path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let mut line = format!("{name} {:o} {}:{}", metadata.mode(), metadata.uid(), metadata.gid());
        if metadata.is_symlink() {
            line += &format!(" -> {}", fs::read_link(&path).map_err(about(path.display()))?.display());
        } else if metadata.is_file() && contents {
            let (bytes, sum) = sum(&path)?;
            line += &format!(" {bytes} bytes, sum {sum:016x}");
        } else if metadata.is_file() {
            line += &format!(" inode {}", inode(&path)?);
        }
        lines.push(line);
        if metadata.is_dir() {
            walk(root, &path, contents, lines)?;
        }
    }
    Ok(())
}

/// A member's file names its inode in user.cxlraid (docs/format/attribute.md).
fn inode(path: &Path) -> Outcome<String> {
    let mut value = [0; 64];
    let bytes = rustix::fs::lgetxattr(path, c"user.cxlraid", &mut value[..]).map_err(about(path.display()))?;
    Ok(value[..bytes].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Length and sum. The length is asked of the open file: a journal may hold a write that opening it
/// makes good.
fn sum(path: &Path) -> Outcome<(u64, u64)> {
    let mut file = File::open(path).map_err(about(path.display()))?;
    let length = file.metadata().map_err(about(path.display()))?.len();
    let mut buffer = vec![0; 64 << 10];
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    loop {
        let bytes = file.read(&mut buffer).map_err(about(path.display()))?;
        if bytes == 0 {
            return Ok((length, sum));
        }
        // Short reads would cut words elsewhere; files end once.
        for word in buffer[..bytes].chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            sum = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_name_counts() {
        let root = std::env::temp_dir().join(format!("cxlraid-vm-digest-{}", std::process::id()));
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/b"), vec![7; 70_001]).unwrap();
        let before = lines(&root, true).unwrap();
        assert_eq!(before.len(), 2);
        let mut bytes = vec![7; 70_001];
        bytes[70_000] = 8;
        fs::write(root.join("a/b"), bytes).unwrap();
        assert_ne!(lines(&root, true).unwrap(), before);
        fs::remove_dir_all(&root).unwrap();
    }
}
