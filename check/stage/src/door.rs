//! An array's mount beside the library: a process of its own serves it, by the crate that `cxlraid
//! mount` uses. The array is what the usual variables say.

use crate::scrub::View;
use mount::{Manner, MountFlags, Session};
use std::{
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

/// Far longer than a mount takes to begin or to end.
const LIMIT: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(2);

/// A mount, and the process that serves it.
pub struct Door {
    directory: PathBuf,
    serving: Option<Child>,
}

impl Door {
    /// Mounts an array at a directory, which is made if it is not there. `serve` starts the process
    /// that calls [`serve()`].
    pub fn open(mut serve: Command, directory: &Path) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("{}: {error}", directory.display());
        fs::create_dir_all(directory).map_err(told)?;
        let directory = fs::canonicalize(directory).map_err(told)?;
        let serving = serve.spawn().map_err(|error| format!("{serve:?}: {error}"))?;
        let mut door = Self { directory, serving: Some(serving) };
        let begun = Instant::now();
        while !is_mounted(&door.directory) {
            let has_ended = door.serving.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended || begun.elapsed() > LIMIT {
                return Err("the array cannot be mounted".to_owned());
            }
            thread::sleep(PERIOD);
        }
        Ok(door)
    }

    /// Unmounts it, which nobody may use any more, and waits until its process has ended in order.
    pub fn close(mut self) -> Result<(), String> {
        let begun = Instant::now();
        // The kernel closes the files of those that have just ended.
        while let Err(error) = mount::unmount(&self.directory, false) {
            if begun.elapsed() > LIMIT {
                return Err(format!("{}: it cannot be unmounted: {error:?}", self.directory.display()));
            }
            thread::sleep(PERIOD);
        }
        let Some(mut child) = self.serving.take() else { return Ok(()) };
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(None) if begun.elapsed() < LIMIT => thread::sleep(PERIOD),
                other => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("the mount's process has not ended in order: {other:?}"));
                }
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(mut child) = self.serving.take() {
            let _ = mount::unmount(&self.directory, true);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_mounted(directory: &Path) -> bool {
    let all = mount::mounted().unwrap_or_default();
    all.iter().any(|mount| mount.array.is_some() && mount.directory == directory)
}

/// Whether this process may mount. If not, why.
pub fn may_mount() -> Result<(), String> {
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Err("a mount needs root".to_owned());
    }
    mount::device().map(|_| ()).map_err(|error| format!("/dev/fuse: {error:?}; if it is not there, 'modprobe fuse'"))
}

/// Mounts the environment's array at a directory, for all users, and serves it until it is
/// unmounted.
pub fn serve(directory: &Path) -> Result<(), String> {
    let prefix = std::env::var_os("CXLRAID_PATHS").ok_or("no array in the environment")?;
    let told = |what: String| format!("{}: {what}", directory.display());
    // Without who checks nobody would end this process.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let view = View::attach()?;
    let device = mount::device().map_err(|error| told(format!("/dev/fuse: {error:?}")))?;
    let session = Session::new(*view.names(), prefix.as_bytes(), device).map_err(|error| told(format!("{error:?}")))?;
    let manner = Manner { array: "check", allow_other: true, flags: MountFlags::empty() };
    mount::mount(session.device(), directory, manner).map_err(|error| told(format!("mount: {error:?}")))?;
    session.serve();
    drop(session);
    view.files().detach();
    Ok(())
}
