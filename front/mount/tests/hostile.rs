//! Requests that no honest kernel sends: numbers, handles, lengths, names and structures at random,
//! by a socket in the place of /dev/fuse. The process must live, and nothing outside the array may
//! change.

mod common;

use common::{CREATE, GETATTR, ROOT, creation, is_permitted, request, with_session};
use std::{fs, thread};

const COUNT: u32 = 20_000;
/// By these variables more requests are sent, of another seed.
const COUNT_VARIABLE: &str = "CXLRAID_HOSTILE_COUNT";
const SEED_VARIABLE: &str = "CXLRAID_HOSTILE_SEED";
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

    /// A number such as a handle, a length, an offset or a flag. None is a length for which there
    /// would be room, and that takes much of it.
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
    if !is_permitted() {
        return;
    }
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let canary = home.path().join("canary");
    fs::write(&canary, "untouched").unwrap();
    with_session(home.path(), |socket| {
        thread::scope(|scope| {
            let answers = scope.spawn(|| {
                let mut answer = vec![0; 2 << 20];
                loop {
                    let bytes = socket.recv(&mut answer).unwrap();
                    if bytes >= 16 && answer[8..16] == LAST.to_le_bytes() {
                        return i32::from_le_bytes(answer[4..8].try_into().unwrap());
                    }
                }
            });
            let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
            let mut random = Random(number(SEED_VARIABLE).unwrap_or(1).max(1).into());
            // Some names, that there is something to find.
            for name in &NAMES[..3] {
                socket.send(&request(CREATE, 1, ROOT, 0, &creation(name))).unwrap();
            }
            for unique in 0..number(COUNT_VARIABLE).unwrap_or(COUNT) {
                socket.send(&random_request(&mut random, unique.into())).unwrap();
            }
            socket.send(&request(GETATTR, LAST, ROOT, 0, &[0; 16])).unwrap();
            assert_eq!(answers.join().unwrap(), 0);
        });
    });
    assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
    let mut entries: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["canary", "m0", "m1"]);
}
