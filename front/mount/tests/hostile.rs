//! Requests that no honest kernel sends: numbers, handles, lengths, names and structures at random, by a socket in the
//! place of /dev/fuse. The process must live, and nothing outside the array may change.

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
    thread,
    time::Duration,
};

const COUNT: u32 = 20_000;
const GETATTR: u32 = 3;
const ROOT: u64 = 1;
/// The header of the last request has this number.
const LAST: u64 = u64::MAX / 3;
const NAMES: [&[u8]; 10] = [b"a", b"b", b"c", b"..", b".", b"", b"a/../../canary", b".cxlraid", &[b'x'; 300], b"\xff\xfe"];

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }

    /// A number such as a handle, a length, an offset or a flag. None is a length for which there would be room, and that takes much of it.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0..=3 => self.below(12),
            4 => self.below(200_000),
            5 => 1 << self.below(16),
            6 => (1 << 62) + self.below(1 << 20),
            _ => u64::MAX - self.below(10),
        }
    }
}

fn request(operation: u32, unique: u64, node: u64, user: u32, body: &[u8]) -> Vec<u8> {
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

fn random_request(random: &mut Random, unique: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let halves = random.below(2) == 0;
    for _ in 0..random.below(12) {
        if halves {
            body.extend_from_slice(&(random.number() as u32).to_le_bytes());
        } else {
            body.extend_from_slice(&random.number().to_le_bytes());
        }
    }
    for _ in 0..random.below(3) {
        body.extend_from_slice(NAMES[random.below(NAMES.len() as u64) as usize]);
        body.push(0);
    }
    body.truncate(body.len() - (random.below(4) / 3) as usize * body.len().min(3));
    let user = [0, 0, 65534, u32::MAX][random.below(4) as usize];
    let operation = 1 + random.below(53) as u32;
    // To be done with the session is not what is tested.
    let operation = if operation == 38 { GETATTR } else { operation };
    request(operation, unique, random.number(), user, &body)
}

#[test]
fn no_request_ends_the_process_or_leaves_the_array() {
    if !sys::rustix::process::geteuid().is_root() {
        println!("not run: it needs root, as a mount does");
        return;
    }
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let canary = home.path().join("canary");
    fs::write(&canary, "untouched").unwrap();
    let members = ["m0", "m1"].map(|name| home.path().join(name));
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
    let end = device.try_clone().unwrap();
    let session = Session::new(names, b"/data", OwnedFd::from(device)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| session.serve());
        let answers = scope.spawn(|| {
            let mut answer = vec![0; 2 << 20];
            loop {
                let bytes = ours.recv(&mut answer).unwrap();
                if bytes >= 16 && answer[8..16] == LAST.to_le_bytes() {
                    return i32::from_le_bytes(answer[4..8].try_into().unwrap());
                }
            }
        });
        let mut random = Random(1);
        // Some names, that there is something to find.
        for name in &NAMES[..3] {
            let body = [&0o102_u32.to_le_bytes()[..], &0o100_644_u32.to_le_bytes(), &[0; 8], name, &[0]].concat();
            ours.send(&request(35, 1, ROOT, 0, &body)).unwrap();
        }
        for unique in 0..COUNT {
            ours.send(&random_request(&mut random, unique.into())).unwrap();
        }
        ours.send(&request(GETATTR, LAST, ROOT, 0, &[0; 16])).unwrap();
        assert_eq!(answers.join().unwrap(), 0);
        end.shutdown(Shutdown::Both).unwrap();
    });
    drop(session);
    assert_eq!(files.array().in_use().len(), members.len(), "a member went out");
    files.detach();
    assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
    let mut entries: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["canary", "m0", "m1"]);
    let _ = fs::remove_file(segment);
}
