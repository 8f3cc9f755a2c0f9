//! A session of a mount on an array of its own, with a socket in the place of /dev/fuse.
#![allow(dead_code)] // Each test program uses a part of it.

use array::{Array, Config};
use cxlraid_mount::Session;
use file::Files;
use layout::Level;
use namespace::Namespace;
use std::{
    fs,
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, net::UnixDatagram},
    },
    path::Path,
    thread,
    time::Duration,
};

pub(crate) const GETATTR: u32 = 3;
pub(crate) const RELEASE: u32 = 18;
pub(crate) const CREATE: u32 = 35;
pub(crate) const ROOT: u64 = 1;

/// Whether a session can be served; it is said if not.
pub(crate) fn is_permitted() -> bool {
    let is_root = sys::rustix::process::geteuid().is_root();
    if !is_root {
        println!("not run: it needs root, as a mount does");
    }
    is_root
}

/// A request with its header.
pub(crate) fn request(operation: u32, unique: u64, node: u64, user: u32, body: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    request.extend_from_slice(&(40 + body.len() as u32).to_le_bytes());
    request.extend_from_slice(&operation.to_le_bytes());
    request.extend_from_slice(&unique.to_le_bytes());
    request.extend_from_slice(&node.to_le_bytes());
    for word in [user, user, std::process::id(), 0] {
        request.extend_from_slice(&word.to_le_bytes());
    }
    request.extend_from_slice(body);
    request
}

/// The body of a request that makes a file.
pub(crate) fn creation(name: &[u8]) -> Vec<u8> {
    [&0o102_u32.to_le_bytes()[..], &0o100_644_u32.to_le_bytes(), &[0; 8], name, &[0]].concat()
}

/// Ends a session, also if what runs beside it fails.
struct End(UnixDatagram);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Runs `act` beside a session, whose array has two members in `home`.
pub(crate) fn with_session(home: &Path, act: impl FnOnce(&UnixDatagram)) {
    let members = ["m0", "m1"].map(|name| home.join(name));
    members.iter().for_each(|member| fs::create_dir(member).unwrap());
    let mounts = members.each_ref().map(|member| member.as_os_str().as_bytes().to_vec());
    let config = Config::new(Level::Raid1, None, &mounts, &[b"/data".to_vec()], String::new()).unwrap();
    persist::fault::install_handlers().unwrap();
    let array = Array::attach(&config).unwrap();
    let segment = format!("/dev/shm/cxlraid-{}", array.uuid());
    let files = Files::new(array).unwrap();
    let names = Namespace::new(files).unwrap();
    let (ours, device) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let end = End(device.try_clone().unwrap());
    let session = Session::new(names, b"/data", OwnedFd::from(device)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| session.serve());
        let _end = end;
        act(&ours);
    });
    drop(session);
    assert_eq!(files.array().in_use().len(), members.len(), "a member went out");
    files.detach();
    let _ = fs::remove_file(segment);
}
