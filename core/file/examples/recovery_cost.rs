//! What the first process after a crash does before it serves the first call, for a table of a
//! million files. `cargo run --release -p cxlraid-file --example recovery_cost [FILES]`

use array::{Array, Config};
use cxlraid_file::Files;
use layout::Level;
use std::time::Instant;
use units::ChunkBytes;

const MEMBER_COUNT: usize = 3;
const FILE_COUNT: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file_count = std::env::args().nth(1).map_or(Ok(FILE_COUNT), |text| text.parse())?;
    persist::fault::install_handlers().map_err(|error| error.to_string())?;
    let directory = tempfile::Builder::new().prefix("cxlraid-recovery-").tempdir_in("/dev/shm")?;
    let mut mounts = Vec::new();
    for slot in 0..MEMBER_COUNT {
        let path = directory.path().join(format!("m{slot}"));
        std::fs::create_dir(&path)?;
        mounts.push(path.into_os_string().into_encoded_bytes());
    }
    let config = Config::new(Level::Raid5, ChunkBytes::new(65536), &mounts, &[b"/data".to_vec()], String::new())?;
    let attach = || Files::new(Array::attach(&config).expect("an array")).expect("its tables");
    let files = attach();
    for _ in 0..file_count {
        files.create_inode(b"/data/file").map_err(|error| format!("{error:?}"))?;
    }
    let segment = array::runtime::segment_path(files.array().uuid());
    let mut files = files;
    for _ in 0..3 {
        std::fs::remove_file(&segment)?;
        files.array().abandon();
        let start = Instant::now();
        files = attach();
        let attached = start.elapsed();
        files.free_orphans().map_err(|error| format!("{error:?}"))?;
        println!("{file_count} files: attached after {attached:?}, orphans looked for after {:?}", start.elapsed());
    }
    std::fs::remove_file(&segment)?;
    Ok(())
}
