//! The directories of a whole run, and the user that programs run as.
//!
//! Members and prefixes lie on tmpfs; sockets, logs and what programs are compared with lie on
//! another file system.

use crate::{Outcome, options::Options};
use stage::Janitor;
use std::{
    env, fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process,
};

/// Who runs the programs when we are root: PostgreSQL refuses to, and permissions are checked only
/// for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// nobody, if we are root; otherwise ourselves.
    pub(crate) fn unprivileged() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == "nobody");
        let number = |index: usize| fields.as_ref().and_then(|fields| fields.get(index)?.parse().ok());
        Some(Self { uid: number(2).unwrap_or(65534), gid: number(3).unwrap_or(65534) })
    }
}

/// The directories of a whole run. Removed by the janitor.
pub(crate) struct Ground {
    /// On tmpfs.
    pub(crate) root: PathBuf,
    /// On another file system.
    pub(crate) host: PathBuf,
    pub(crate) janitor: Janitor,
    /// A copy, readable by everyone, that stays the same while others build.
    pub(crate) library: PathBuf,
    pub(crate) user: Option<User>,
    /// Whether system calls on arrays are under watch.
    pub(crate) watched: bool,
    pub(crate) keep: bool,
}

impl Ground {
    pub(crate) fn new(options: &Options) -> Outcome<Self> {
        let name = format!("cxlraid-servers.{}", process::id());
        let (root, host) = (Path::new("/dev/shm").join(&name), env::temp_dir().join(&name));
        let janitor = Janitor::new(&[&root, &host]).map_err(|error| format!("/bin/sh: {error}"))?;
        let ground = Self {
            library: host.join("libcxlraid.so"),
            root,
            host,
            janitor,
            user: User::unprivileged(),
            watched: options.watched && !options.plain,
            keep: options.keep,
        };
        for directory in [&ground.root, &ground.host] {
            fs::create_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        }
        if !options.plain {
            fs::copy(&options.library, &ground.library).map_err(|error| format!("{}: {error}", options.library.display()))?;
        }
        Ok(ground)
    }

    /// A new directory that belongs to `user`.
    pub(crate) fn directory(&self, path: &Path, user: Option<User>) -> Outcome {
        fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some(user) = user {
            chown(path, Some(user.uid), Some(user.gid)).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

/// `rm -rf`, also of directories that may not be written.
pub(crate) fn remove(directory: &Path) {
    if fs::remove_dir_all(directory).is_err() && directory.exists() {
        // What cannot be removed now the janitor removes later.
        let _ = process::Command::new("chmod").arg("-R").arg("u+rwX").arg(directory).status();
        let _ = fs::remove_dir_all(directory);
    }
}
