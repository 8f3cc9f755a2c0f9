//! What a path leads to: on an array and in a plain directory that looks the same, where the kernel
//! says it.
//!
//! A byte of the input stands for one component of the path; what it stands for, the tree has.

use array::Config;
use file::Files;
use layout::Level;
use namespace::{Namespace, OFlags, ProgramPath, Reached};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use sys::OsError;
use sys::rustix::fs::{CWD, Mode, ResolveFlags, open, openat2, readlinkat};

/// Directories and files of the tree, and symlinks with what they contain.
const DIRECTORIES: [&str; 4] = ["d", "d/e", "d/e/f", "other"];
const FILES: [&str; 2] = ["file", "d/e/file"];
const LINKS: [(&str, &str); 10] = [
    ("up", ".."),
    ("d/up", "../.."),
    ("d/e/absolute", "/data/d"),
    ("out", "/etc"),
    ("d/out", "../../etc"),
    ("loop", "loop"),
    ("d/back", "/etc/../data/other"),
    ("to-file", "d/e/file"),
    ("other/nowhere", "missing/too"),
    ("other/slash", "../d/e/"),
];
const COMPONENTS: [&str; 20] = [
    "d", "e", "f", "other", "file", "up", "absolute", "out", "loop", "back", "to-file", "nowhere", "slash", "..", ".", "",
    "missing", "etc", "data", ".cxlraid",
];
/// Those that may lead out of the array.
const LEAVING: [&[u8]; 4] = [b"..", b"up", b"out", b"back"];
/// More than the kernel takes of a component is 255 bytes, of a path 4095.
const LONG: [u8; 256] = [b'l'; 256];

struct World {
    names: Namespace,
    /// The root of the plain tree.
    plain: PathBuf,
}

/// The array, made in the directory `CXLRAID_FUZZ_DIRECTORY`, which who runs the target removes.
fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        // A load behind the end of a table is answered, and is no failure of the target.
        persist::fault::install_handlers().expect("handlers of faults");
        let home = std::env::var_os("CXLRAID_FUZZ_DIRECTORY").expect("CXLRAID_FUZZ_DIRECTORY names a directory for the array");
        let home = Path::new(&home).join(format!("resolution-{}", std::process::id()));
        let members = [0, 1, 2].map(|slot| home.join(format!("m{slot}")));
        members.iter().for_each(|member| fs::create_dir_all(member).expect("a member"));
        let mounts = members.map(|member| member.into_os_string().into_encoded_bytes());
        let config = Config::new(Level::Raid5, None, &mounts, &[b"/data".to_vec()], String::new())
            .expect("the array is described rightly");
        let files = Files::new(array::Array::attach(&config).expect("an array")).expect("its files");
        // Nobody else uses it.
        let _ = fs::remove_file(array::runtime::segment_path(files.array().uuid()));
        let names = Namespace::new(files).expect("its names");
        let plain = home.join("plain");
        for directory in ["etc", "data"] {
            fs::create_dir_all(plain.join(directory)).expect("a plain directory");
        }
        for name in DIRECTORIES {
            let path = format!("/data/{name}");
            fs::create_dir(plain.join(&path[1..])).expect("a plain directory");
            names.mkdir(path.as_bytes(), 0o755).expect("a directory");
        }
        for name in FILES {
            let path = format!("/data/{name}");
            fs::write(plain.join(&path[1..]), "").expect("a plain file");
            drop(names.open(path.as_bytes(), OFlags::CREATE | OFlags::WRONLY, 0o644).expect("a file"));
        }
        for (name, content) in LINKS {
            let path = format!("/data/{name}");
            std::os::unix::fs::symlink(content, plain.join(&path[1..])).expect("a plain symlink");
            names.symlink(content.as_bytes(), path.as_bytes()).expect("a symlink");
        }
        World { names, plain }
    })
}

/// Where the kernel comes to in the plain tree, whose root is taken for the root of all.
fn by_kernel(world: &World, path: &[u8], follow: bool) -> Result<Vec<u8>, OsError> {
    let root = open(world.plain.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let flags = OFlags::PATH | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let found = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?;
    let link = format!("/proc/self/fd/{}", sys::AsRawFd::as_raw_fd(&found));
    let host = readlinkat(CWD, link.as_str(), Vec::new())?.into_bytes();
    Ok(host[world.plain.as_os_str().len()..].to_vec())
}

/// The first byte of the input says whether the last symlink is followed, the next how the path
/// ends, each other is a component.
pub(super) fn resolution(input: &[u8]) {
    let &[follow, end, ref parts @ ..] = input else { return };
    let mut path = b"/data".to_vec();
    for part in parts {
        path.push(b'/');
        path.extend_from_slice(
            COMPONENTS.get(usize::from(*part) % (COMPONENTS.len() + 1)).map_or(&LONG[..], |name| name.as_bytes()),
        );
    }
    if end & 1 != 0 {
        path.push(b'/');
    }
    let leaves = path.split(|&byte| byte == b'/').any(|part| LEAVING.contains(&part));
    let (world, follow) = (world(), follow & 1 != 0);
    let ours = world.names.resolve(ProgramPath::from(path.as_slice()), follow);
    let kernels = by_kernel(world, &path, follow);
    let is_there = |path: &[u8]| fs::symlink_metadata(world.plain.join(OsStr::from_bytes(&path[1..]))).is_ok();
    let shown = units::Shown(&path);
    match (&ours, &kernels) {
        (Ok(Reached::Array(ours)), Ok(kernels)) => assert_eq!(ours, kernels, "{shown}"),
        // The last component may be one that is not there. Outside the array `..` is taken by text,
        // so what is not there may be on the way.
        (Ok(Reached::Array(ours)), Err(error)) => {
            assert!(leaves || !is_there(ours) && *error == OsError::NOENT, "{shown}: {error:?}");
        }
        // The library hands paths outside the array to the kernel as they are, so it says nothing
        // of them but that they are not below the prefix.
        (Ok(Reached::Host(_)), Ok(kernels)) => assert!(!world.names.owns(kernels), "{shown} leads into the array"),
        (Ok(Reached::Host(_)), Err(_)) => {}
        (Err(ours), Err(kernels)) => assert!(leaves || ours == kernels, "{shown}: {ours:?}, the kernel says {kernels:?}"),
        (Err(error), Ok(kernels)) => panic!("{shown}: {error:?}, and leads to {}", units::Shown(kernels)),
    }
}
