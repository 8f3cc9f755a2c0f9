//! The kernel may remember more files than the process that serves a mount has descriptors.

mod common;

use common::{CREATE, GETATTR, MKDIR, RELEASE, RENAME, ROOT, creation, is_permitted, request, with_session};
use std::{
    os::unix::net::UnixDatagram,
    sync::{Mutex, PoisonError},
};
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 400;
const COUNT: u64 = 1000;
const OPEN_COUNT: u64 = 20;
/// The tests share the process' descriptors.
static ALONE: Mutex<()> = Mutex::new(());

/// Sends a request, and returns the error and the body of the answer.
fn ask(socket: &UnixDatagram, request: &[u8]) -> (i32, Vec<u8>) {
    socket.send(request).unwrap();
    let mut answer = vec![0; 4096];
    let bytes = socket.recv(&mut answer).unwrap();
    (i32::from_le_bytes(answer[4..8].try_into().unwrap()), answer[16..bytes].to_vec())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Makes a file, and returns what the kernel is told: its number, its inode number and the handle.
fn make(socket: &UnixDatagram, directory: u64, name: &str) -> [u64; 3] {
    let (error, made) = ask(socket, &request(CREATE, 1, directory, 0, &creation(name.as_bytes())));
    assert_eq!(error, 0, "{name}");
    // An entry, with the inode number behind 40 bytes, and the handle behind that.
    [0, 40, 128].map(|at| word(&made, at))
}

fn release(socket: &UnixDatagram, handle: u64) {
    let body = [&handle.to_le_bytes()[..], &[0; 16]].concat();
    assert_eq!(ask(socket, &request(RELEASE, 1, ROOT, 0, &body)).0, 0);
}

fn limit_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).unwrap();
}

/// A program has files open, many others are known since, and a directory above them is renamed.
#[test]
fn what_is_open_is_known_whatever_becomes_of_its_path() {
    if !is_permitted() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_descriptors();
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    with_session(home.path(), |socket| {
        let (error, made) = ask(socket, &request(MKDIR, 1, ROOT, 0, &[&0o755_u64.to_le_bytes()[..], b"before\0"].concat()));
        assert_eq!(error, 0);
        let directory = word(&made, 0);
        let open: Vec<_> = (0..OPEN_COUNT).map(|index| make(socket, directory, &format!("open{index}"))).collect();
        for index in 0..COUNT {
            let [.., handle] = make(socket, ROOT, &format!("file{index}"));
            release(socket, handle);
        }
        let names = [&ROOT.to_le_bytes()[..], b"before\0after\0"].concat();
        assert_eq!(ask(socket, &request(RENAME, 1, ROOT, 0, &names)).0, 0);
        for [number, inode, handle] in open {
            let (error, told) = ask(socket, &request(GETATTR, 1, number, 0, &[0; 16]));
            assert_eq!((error, word(&told, 16)), (0, inode));
            release(socket, handle);
        }
    });
}

#[test]
fn more_files_are_known_than_there_are_descriptors() {
    if !is_permitted() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_descriptors();
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    with_session(home.path(), |socket| {
        let mut known = Vec::new();
        for index in 0..COUNT {
            let [number, inode, handle] = make(socket, ROOT, &format!("file{index}"));
            known.push((number, inode));
            release(socket, handle);
        }
        for &(number, inode) in known.iter().chain(known.iter().rev()) {
            let (error, told) = ask(socket, &request(GETATTR, number, number, 65534, &[0; 16]));
            assert_eq!((error, word(&told, 16)), (0, inode));
        }
    });
}
