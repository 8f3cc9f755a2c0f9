//! The kernel may remember more files than the process that serves a mount has descriptors.

mod common;

use common::{CREATE, GETATTR, RELEASE, ROOT, creation, is_permitted, request, with_session};
use std::os::unix::net::UnixDatagram;
use sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 400;
const COUNT: u64 = 1000;

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

#[test]
fn more_files_are_known_than_there_are_descriptors() {
    if !is_permitted() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).unwrap();
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    with_session(home.path(), |socket| {
        let mut known = Vec::new();
        for index in 0..COUNT {
            let name = format!("file{index}");
            let (error, made) = ask(socket, &request(CREATE, index, ROOT, 0, &creation(name.as_bytes())));
            assert_eq!(error, 0, "{name}");
            // An entry, with the inode number behind 40 bytes, and the handle behind that.
            known.push((word(&made, 0), word(&made, 40)));
            let release = [&word(&made, 128).to_le_bytes()[..], &[0; 16]].concat();
            assert_eq!(ask(socket, &request(RELEASE, index, ROOT, 0, &release)).0, 0);
        }
        for &(number, inode) in known.iter().chain(known.iter().rev()) {
            let (error, told) = ask(socket, &request(GETATTR, number, number, 65534, &[0; 16]));
            assert_eq!((error, word(&told, 16)), (0, inode));
        }
    });
}
