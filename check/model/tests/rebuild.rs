//! What members have lost is computed in place, byte for byte what they had, and nothing is stored
//! to the others.

use array::sums::Summing;
use array::{IoFault, Reading, Striper};
use cxlraid_model::{Face, Memory, Rng, mapped_files};
use layout::{Geometry, Level};
use medium::Medium;
use units::{ChunkBytes, MemberSet, Slot};

const STRIPES: u64 = 7;

fn striper<'a, M: Medium>(geometry: &'a Geometry, members: &'a [Option<M>], out: MemberSet) -> Striper<'a, M> {
    Striper {
        geometry,
        members,
        out,
        turn: 0,
        reading: Reading::IN_TURN,
        kernels: persist::kernels(),
        undo: None,
        sums: Summing::Off,
    }
}

fn contents<M: Medium>(members: &[Option<M>], bytes: u64) -> Vec<Vec<u8>> {
    let of = |member: &Option<M>| {
        let mut content = vec![0; bytes as usize];
        // SAFETY: the buffer is that long.
        unsafe { member.as_ref().unwrap().get(0, content.as_mut_ptr(), content.len()) }.unwrap();
        content
    };
    members.iter().map(of).collect()
}

fn store<M: Medium>(members: &[Option<M>], slot: Slot, content: &[u8]) {
    // SAFETY: the buffer is a slice.
    unsafe { members[slot].as_ref().unwrap().put(0, content.as_ptr(), content.len()) }.unwrap();
}

/// All sets of members that are out, and of others that have lost their bytes: one or two in all.
fn losses(member_count: usize) -> impl Iterator<Item = (MemberSet, MemberSet)> {
    let one = |slot: Slot| MemberSet::EMPTY.with(slot);
    let pairs = move |first: Slot| (first + 1..member_count).map(move |second| (first, second));
    let of_pair = move |(first, second)| {
        [(MemberSet::EMPTY, one(first).with(second)), (one(first), one(second)), (one(second), one(first))]
    };
    (0..member_count).map(move |slot| (MemberSet::EMPTY, one(slot))).chain((0..member_count).flat_map(pairs).flat_map(of_pair))
}

/// Tries every loss, and returns how often what was lost could be computed in place.
fn rebuild_all<M: Medium>(geometry: &Geometry, members: &[Option<M>]) -> usize {
    let bytes = STRIPES * geometry.stripe_bytes();
    let member_bytes = geometry.member_bytes(bytes);
    let mut data = vec![0; bytes as usize];
    Rng::new(bytes).fill(&mut data);
    // SAFETY: `data` is a vector.
    unsafe { striper(geometry, members, MemberSet::EMPTY).write(0, data.as_ptr(), data.len()) }.unwrap();
    let right = contents(members, member_bytes);
    let mut in_place = 0;
    for (out, lost) in losses(geometry.member_count()) {
        let mut expected = right.clone();
        let mut poison = vec![0; member_bytes as usize];
        for slot in out.union(lost).iter() {
            Rng::new(slot as u64).fill(&mut poison);
            store(members, slot, &poison);
            if out.contains(slot) {
                expected[slot].copy_from_slice(&poison);
            }
        }
        let reduced = striper(geometry, members, out);
        // The first stripe is left as it is.
        let (from, at) = (geometry.stripe_bytes(), geometry.member_offset(1) as usize);
        let done = reduced.rebuild(lost, from, bytes - from);
        if geometry.survives(out.union(lost)) {
            if done.unwrap() {
                in_place += 1;
                let found = contents(members, member_bytes);
                for slot in 0..members.len() {
                    assert!(found[slot][at..] == expected[slot][at..], "{geometry:?}: {slot} with {lost:?} lost, {out:?} out");
                }
                assert_eq!(reduced.verify(from, bytes - from), Ok(0));
            }
        } else {
            assert_eq!(done, Err(IoFault::Lost), "{geometry:?}: {lost:?} lost, {out:?} out");
        }
        right.iter().enumerate().for_each(|(slot, content)| store(members, slot, content));
    }
    in_place
}

#[test]
fn what_members_have_lost_is_computed_in_place() {
    persist::fault::install_handlers().unwrap();
    for (level, member_count, survivable, in_place) in [
        (Level::Raid1, 3, 12, 12),
        (Level::Raid4, 4, 4, 4),
        (Level::Raid5, 3, 3, 3),
        (Level::Raid5, 5, 5, 5),
        // Where a parity is to be computed and data are out, the caller has to read and write.
        (Level::Raid6, 5, 35, 15),
        (Level::Raid10, 4, 16, 16),
        (Level::Raid01, 4, 16, 16),
    ] {
        for chunk in [64, 4 << 10, 64 << 10] {
            let geometry = Geometry::new(level, member_count, ChunkBytes::new(chunk).unwrap()).unwrap();
            let bytes = geometry.member_bytes(STRIPES * geometry.stripe_bytes());
            let memory = |face| -> Vec<_> { (0..member_count).map(|_| Some(Memory::new(bytes, face))).collect() };
            let all = losses(member_count).filter(|(out, lost)| geometry.survives(out.union(*lost))).count();
            assert_eq!(all, survivable, "{level:?}");
            assert_eq!(rebuild_all(&geometry, &memory(Face::Mapped)), in_place, "{level:?}");
            assert_eq!(rebuild_all(&geometry, &mapped_files(member_count, bytes)), in_place, "{level:?}");
            assert_eq!(rebuild_all(&geometry, &memory(Face::Bytes)), 0, "{level:?}");
            rebuild_all(&geometry, &memory(Face::Windows(4 << 10)));
        }
    }
}

#[test]
fn what_was_computed_from_all_that_is_left_is_known_to_fit() {
    let fits = |level, members, out: &[Slot], lost: &[Slot]| {
        let geometry = Geometry::new(level, members, ChunkBytes::new(4096).unwrap()).unwrap();
        let media: Vec<Option<Memory>> = (0..members).map(|_| Some(Memory::new(0, Face::Mapped))).collect();
        let set = |slots: &[Slot]| slots.iter().copied().collect();
        striper(&geometry, &media, set(out)).fits_when_rebuilt(set(lost))
    };
    assert!(fits(Level::Raid5, 3, &[], &[1]));
    assert!(fits(Level::Raid6, 5, &[0], &[1]) && fits(Level::Raid6, 5, &[], &[1, 3]));
    assert!(!fits(Level::Raid6, 5, &[], &[1]), "the other parity may not fit");
    assert!(fits(Level::Raid1, 2, &[], &[1]) && fits(Level::Raid10, 4, &[], &[1, 3]));
    assert!(!fits(Level::Raid1, 3, &[], &[1]), "the other two copies may differ");
    assert!(!fits(Level::Raid10, 4, &[], &[1]), "the copies of the other pair may differ");
}
