//! The attacker makes the name of the array's segment before anybody uses the array, and holds what
//! can be held of it.

use crate::{
    kernel::{self, HERE},
    places::ATTACKER,
};
use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The word that makes this program do that.
pub(crate) const ROLE: &str = "squat";
/// How long it lasts at least, while somebody starts a program.
pub(crate) const HOLDING: Duration = Duration::from_millis(300);
/// What the name may be.
pub(crate) const KINDS: [&str; 6] = ["empty", "filled", "symlink", "dangling", "pipe", "directory"];

/// Makes the name given first, as the kind given next; a symlink leads to the file given last.
pub(crate) fn squat(words: &[String]) -> io::Result<()> {
    let [name, kind, target] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let name = Path::new(name);
    kernel::become_user(ATTACKER)?;
    kernel::set_umask(0);
    let target = PathBuf::from(target);
    match kind.as_str() {
        "symlink" => std::os::unix::fs::symlink(target, name)?,
        "dangling" => std::os::unix::fs::symlink(target.with_file_name("made-through-a-name"), name)?,
        "pipe" => kernel::make_node_at(HERE, name, libc::S_IFIFO | 0o666)?,
        "directory" => fs::create_dir(name)?,
        _ => {
            let mut file = kernel::open_at(HERE, name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o666)?;
            if kind == "filled" {
                file.write_all(&[0xff; 1 << 20])?;
            }
            kernel::lock(&file)?;
            thread::sleep(HOLDING);
            return Ok(());
        }
    }
    thread::sleep(HOLDING);
    Ok(())
}
