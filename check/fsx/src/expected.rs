//! The expected contents of files. The worker that knows them saves them in a file, and the checks
//! that run later load them.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The expected contents of one file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    /// The ranges whose contents are known, each with its offset and bytes. The rest is zeros or
    /// not known.
    pub(crate) extents: Vec<(u64, Vec<u8>)>,
}

pub(crate) fn save(path: &Path, files: &[File]) -> io::Result<()> {
    let mut out = Vec::new();
    put(&mut out, files.len() as u64);
    for file in files {
        put_bytes(&mut out, file.path.as_os_str().as_bytes());
        put(&mut out, file.size);
        put(&mut out, file.extents.len() as u64);
        for (offset, bytes) in &file.extents {
            put(&mut out, *offset);
            put_bytes(&mut out, bytes);
        }
    }
    std::fs::File::create(path)?.write_all(&out)
}

pub(crate) fn load(path: &Path) -> io::Result<Vec<File>> {
    let mut source = io::BufReader::new(std::fs::File::open(path)?);
    let count = take(&mut source)?;
    (0..count)
        .map(|_| {
            let path = PathBuf::from(OsStr::from_bytes(&take_bytes(&mut source)?));
            let size = take(&mut source)?;
            let extents = (0..take(&mut source)?).map(|_| Ok((take(&mut source)?, take_bytes(&mut source)?)));
            Ok(File { path, size, extents: extents.collect::<io::Result<_>>()? })
        })
        .collect()
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn take(source: &mut impl Read) -> io::Result<u64> {
    let mut number = [0; 8];
    source.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

fn take_bytes(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; take(source)? as usize];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Says in one line where two byte strings differ, and what both hold at the first difference.
pub(crate) fn difference(expected: &[u8], got: &[u8]) -> String {
    if expected.len() != got.len() {
        return format!("{} bytes, not {}", got.len(), expected.len());
    }
    let differs = |at: &usize| expected[*at] != got[*at];
    let (Some(first), Some(last)) = ((0..got.len()).find(differs), (0..got.len()).rfind(differs)) else {
        return "no difference".to_owned();
    };
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[first..bytes.len().min(first + 16)]);
    let count = (first..=last).filter(differs).count();
    format!("{count} bytes differ from byte {first} to {last}: {}, not {}", show(got), show(expected))
}
