//! Tests of the locks with loom, which runs every interleaving of a few threads and lets each load
//! see every value that the memory model permits.

use crate::{Acquired, Liveness, OwnedLock, OwnerId, StripeLock};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

/// A source of liveness by which one owner has died and all others live.
struct Dead(u32);

impl Liveness for Dead {
    fn is_alive(&self, owner: OwnerId) -> bool {
        owner.get() != self.0
    }
}

/// A source of liveness by which all owners live.
const NOBODY: Dead = Dead(0);

fn id(number: u32) -> OwnerId {
    OwnerId::new(number).unwrap()
}

#[test]
fn two_exclude_each_other_and_see_what_the_other_stored() {
    loom::model(|| {
        let shared = Arc::new((OwnedLock::default(), AtomicU64::new(0)));
        let count = |shared: &(OwnedLock, AtomicU64), me| {
            assert_eq!(shared.0.lock(id(me), &NOBODY), Acquired::Clean);
            let value = shared.1.load(Ordering::Relaxed);
            shared.1.store(value + 1, Ordering::Relaxed);
            shared.0.unlock();
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || count(&shared, 2))
        };
        count(&shared, 1);
        other.join().unwrap();
        assert_eq!(shared.1.load(Ordering::Relaxed), 2);
        assert_eq!(shared.0.owner(), None);
    });
}

#[test]
fn one_of_two_inherits_from_the_dead() {
    loom::model(|| {
        let shared = Arc::new((OwnedLock::default(), AtomicUsize::new(0), AtomicU64::new(0)));
        assert_eq!(shared.0.lock(id(7), &NOBODY), Acquired::Clean);
        let take = |shared: &(OwnedLock, AtomicUsize, AtomicU64), me| {
            if shared.0.lock(id(me), &Dead(7)) == Acquired::Inherited {
                shared.1.fetch_add(1, Ordering::Relaxed);
            }
            let value = shared.2.load(Ordering::Relaxed);
            shared.2.store(value + 1, Ordering::Relaxed);
            shared.0.unlock();
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || take(&shared, 2))
        };
        take(&shared, 1);
        other.join().unwrap();
        assert_eq!((shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed)), (1, 2));
    });
}

#[test]
fn what_a_reader_found_unchanged_is_not_torn() {
    loom::model(|| {
        let shared = Arc::new((StripeLock::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                for value in 1..3 {
                    let _ = shared.0.write_begin(id(1), &NOBODY);
                    shared.1.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                    shared.0.write_end();
                }
            })
        };
        for _ in 0..2 {
            if let Some(sequence) = shared.0.read_begin() {
                let [one, two] = [0, 1].map(|index| shared.1[index].load(Ordering::Relaxed));
                if shared.0.read_validate(sequence) {
                    assert_eq!(one, two);
                }
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_a_writer_stored_is_seen_by_the_next_and_by_a_reader_behind_it() {
    loom::model(|| {
        let shared = Arc::new((StripeLock::default(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let add = |shared: &(StripeLock, [AtomicU64; 2]), me| {
            let _ = shared.0.write_begin(id(me), &NOBODY);
            for word in &shared.1 {
                word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            shared.0.write_end();
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || add(&shared, 2))
        };
        add(&shared, 1);
        if let Some(sequence) = shared.0.read_begin() {
            let [one, two] = [0, 1].map(|index| shared.1[index].load(Ordering::Relaxed));
            assert!(!shared.0.read_validate(sequence) || one == two && one >= 1);
        }
        other.join().unwrap();
        assert_eq!(shared.1[0].load(Ordering::Relaxed), 2);
    });
}
