//! The guest's root file system: this program as process 1, programs of the host with their
//! libraries, modules, a PostgreSQL cluster.
//!
//! An ext4 image that the guest mounts read-only from an emulated NVMe disk: the guest reads what
//! it needs, and nothing is unpacked by an emulated processor. It is made anew for each run, from
//! the library and the programs as they are now.

use super::{kernel, packages::Packages, tool};
use crate::{Outcome, about, guest::USER_ID, options::Options};
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

/// Programs of the host, and their packages.
const PROGRAMS: [(&str, &str); 13] = [
    ("chmod", "coreutils"),
    ("cat", "coreutils"),
    ("cp", "coreutils"),
    ("dd", "coreutils"),
    ("ls", "coreutils"),
    ("cmp", "diffutils"),
    ("sqlite3", "sqlite3"),
    ("fio", "fio"),
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("setpriv", "util-linux"),
    ("zstd", "zstd"),
    ("xz", "xz-utils"),
];
/// Not needed inside, only to build.
const OF_THE_HOST: [&str; 3] = ["setpriv", "zstd", "xz"];
/// Programs of the unpacked packages.
const TOOLS: [&str; 3] = ["usr/bin/ndctl", "usr/bin/cxl", "sbin/mkfs.xfs"];
/// Where Debian has PostgreSQL; its version is that of the newest directory.
const POSTGRESQL: &str = "/usr/lib/postgresql";
const POSTGRESQL_PROGRAMS: [&str; 3] = ["postgres", "psql", "pg_amcheck"];
const POSTGRESQL_MODULES: [&str; 3] = ["plpgsql.so", "dict_snowball.so", "amcheck.so"];
const IMAGE_MIB: u32 = 384;

/// What a machine boots.
pub(crate) struct System {
    pub(crate) kernel: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) setpriv: PathBuf,
}

/// Kernel and root, built below `directory`.
pub(crate) fn build(packages: &Packages, options: &Options, directory: &Path) -> Outcome<System> {
    let programs = PROGRAMS.iter().map(|(program, package)| tool::need(program, package)).collect::<Outcome<Vec<_>>>()?;
    let system = System {
        kernel: directory.join(format!("vmlinux-{}", packages.kernel)),
        root: directory.join("root.img"),
        setpriv: tool::need("setpriv", "util-linux")?,
    };
    if !system.kernel.exists() {
        kernel::unpack(&packages.unpacked.join(format!("boot/vmlinuz-{}", packages.kernel)), &system.kernel)?;
    }
    let stage = directory.join("root");
    if stage.exists() {
        fs::remove_dir_all(&stage).map_err(about(stage.display()))?;
    }
    let mut tree = Tree { root: &stage, seen: BTreeSet::new() };
    tree.skeleton()?;
    kernel::modules(&packages.unpacked.join("lib/modules").join(&packages.kernel), &stage)?;
    for program in programs.iter().filter(|path| !OF_THE_HOST.iter().any(|name| path.ends_with(name))) {
        tree.program(program, &Path::new("usr/bin").join(program.file_name().unwrap_or_default()), None)?;
    }
    for tool in TOOLS {
        let target = Path::new("usr/bin").join(Path::new(tool).file_name().unwrap_or_default());
        tree.program(&packages.unpacked.join(tool), &target, Some(&packages.unpacked))?;
    }
    tree.program(&env::current_exe().map_err(about("our own program"))?, Path::new("init"), None)?;
    tree.program(&options.build.join("cxlraid"), Path::new("usr/bin/cxlraid"), None)?;
    let library = options.build.join("libcxlraid.so");
    tree.copy(&library, Path::new("usr/lib/libcxlraid.so"))?;
    postgresql(&mut tree)?;
    image(&stage, &system.root)?;
    fs::remove_dir_all(&stage).map_err(about(stage.display()))?;
    Ok(system)
}

/// The tree that becomes the root.
struct Tree<'a> {
    root: &'a Path,
    /// Libraries that are in it.
    seen: BTreeSet<PathBuf>,
}

impl Tree<'_> {
    fn skeleton(&self) -> Outcome {
        for directory in ["usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "run", "mnt", "data", "stage"] {
            fs::create_dir_all(self.root.join(directory)).map_err(about(directory))?;
        }
        for (link, target) in
            [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("usr/sbin", "bin")]
        {
            symlink(target, self.root.join(link)).map_err(about(link))?;
        }
        let passwd = format!("root:x:0:0::/tmp:/bin/false\npostgres:x:{USER_ID}:{USER_ID}::/tmp:/bin/false\n");
        fs::write(self.root.join("etc/passwd"), passwd).map_err(about("etc/passwd"))?;
        fs::write(self.root.join("etc/group"), format!("root:x:0:\npostgres:x:{USER_ID}:\n")).map_err(about("etc/group"))?;
        self.copy(Path::new("/etc/mke2fs.conf"), Path::new("etc/mke2fs.conf"))
    }

    /// `target` is relative to the root.
    fn copy(&self, source: &Path, target: &Path) -> Outcome {
        let target = self.root.join(target);
        fs::create_dir_all(target.parent().unwrap_or(self.root)).map_err(about(target.display()))?;
        fs::copy(source, target).map(drop).map_err(about(source.display()))
    }

    /// A program and the libraries it is linked to; libraries of packages lie below `unpacked`.
    fn program(&mut self, source: &Path, target: &Path, unpacked: Option<&Path>) -> Outcome {
        self.copy(source, target)?;
        let mut ldd = Command::new("ldd");
        if let Some(unpacked) = unpacked {
            let places = ["usr/lib", "lib"].map(|place| unpacked.join(place).join("x86_64-linux-gnu").display().to_string());
            ldd.env("LD_LIBRARY_PATH", places.join(":"));
        }
        for library in libraries(&String::from_utf8_lossy(&tool::output(ldd.arg(source))?))? {
            if self.seen.insert(library.clone()) {
                let name = library.file_name().unwrap_or_default();
                // The loader has its own place; it looks for the others there without a cache.
                let is_loader = name.to_string_lossy().starts_with("ld-linux");
                let place = if is_loader { "usr/lib64" } else { "usr/lib/x86_64-linux-gnu" };
                self.copy(&library, &Path::new(place).join(name))?;
            }
        }
        Ok(())
    }

    fn directory(&self, source: &Path, target: &Path) -> Outcome {
        let to = self.root.join(target);
        fs::create_dir_all(&to).map_err(about(to.display()))?;
        tool::output(Command::new("cp").arg("-rL").arg(source.join(".")).arg(&to)).map(drop)
    }
}

/// The paths in what ldd prints.
fn libraries(listing: &str) -> Outcome<Vec<PathBuf>> {
    if let Some(line) = listing.lines().find(|line| line.contains("not found")) {
        return Err(format!("a library is missing: {}", line.trim()));
    }
    let paths = listing.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

/// The newest PostgreSQL of the host, and a new cluster in `/stage/cluster`, with small log files.
fn postgresql(tree: &mut Tree<'_>) -> Outcome {
    let versions = fs::read_dir(POSTGRESQL).map_err(|_| missing_postgresql())?;
    let newest = versions.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()).max();
    let version = newest.ok_or_else(missing_postgresql)?.to_string();
    let home = Path::new(POSTGRESQL).join(&version);
    let inside = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    for program in POSTGRESQL_PROGRAMS {
        let source = home.join("bin").join(program);
        tree.program(&source, &inside(&source), None)?;
        symlink(&source, tree.root.join("usr/bin").join(program)).map_err(about(program))?;
    }
    for module in POSTGRESQL_MODULES {
        let source = home.join("lib").join(module);
        tree.copy(&source, &inside(&source))?;
    }
    let share = Path::new("/usr/share/postgresql").join(&version);
    tree.directory(&share, &inside(&share))?;
    cluster(&home.join("bin/initdb"), &tree.root.join("stage"))
}

fn missing_postgresql() -> String {
    format!("{POSTGRESQL}: no PostgreSQL there; run 'check/setup vm', or as root: apt-get install postgresql-15")
}

/// initdb refuses to run as root.
fn cluster(initdb: &Path, stage: &Path) -> Outcome {
    let root = rustix::process::geteuid().is_root();
    let mut command = Command::new(if root { Path::new("setpriv") } else { initdb });
    let place = env::temp_dir().join(format!("cxlraid-vm-cluster.{}", std::process::id()));
    fs::create_dir_all(&place).map_err(about(place.display()))?;
    if root {
        chown(&place, Some(USER_ID), Some(USER_ID)).map_err(about(place.display()))?;
        let ids = [format!("--reuid={USER_ID}"), format!("--regid={USER_ID}")];
        command.args(ids).arg("--clear-groups").arg(initdb);
    }
    let words = "-U postgres --auth=trust --no-locale -E UTF8 --data-checksums --wal-segsize=1 --no-sync -D";
    command.args(words.split_whitespace()).arg(place.join("cluster")).env("TZ", "GMT").env("LC_ALL", "C");
    let made = tool::output(&mut command).and_then(|_| {
        tool::output(Command::new("cp").arg("-r").arg(place.join("cluster")).arg(stage))?;
        // The guest copies it as another user.
        tool::output(Command::new("chmod").arg("-R").arg("a+rX").arg(stage))
    });
    fs::remove_dir_all(&place).map_err(about(place.display()))?;
    made.map(drop)
}

fn image(stage: &Path, target: &Path) -> Outcome {
    fs::set_permissions(stage, fs::Permissions::from_mode(0o755)).map_err(about(stage.display()))?;
    let mut command = Command::new(tool::need("mke2fs", "e2fsprogs")?);
    command.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"]).arg(stage).arg(target);
    tool::output(command.arg(format!("{IMAGE_MIB}M"))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let listing = "\tlinux-vdso.so.1 (0x7ff)\n\tlibz.so.1 => /lib/x/libz.so.1 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7)\n";
        assert_eq!(libraries(listing).unwrap(), [Path::new("/lib/x/libz.so.1"), Path::new("/lib64/ld-linux-x86-64.so.2")]);
        assert!(libraries("\tlibq.so => not found\n").unwrap_err().contains("libq.so"));
    }
}
