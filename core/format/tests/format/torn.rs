//! Writes cut short: a reader then finds the old value or the new one, never a mixture and never
//! nothing.

use crate::fixture;
use crate::properties::superblocks;
use cxlraid_format::*;
use proptest::prelude::*;

/// The copies as they lie in the file.
fn file(first: &Superblock, second: &Superblock) -> Vec<u8> {
    [first.encode(), second.encode()].concat()
}

/// The update after `newest`, of another shape where that is possible.
fn successor(newest: &Superblock) -> Superblock {
    Superblock {
        event_count: newest.event_count.saturating_add(1),
        copy_sequence: newest.copy_sequence.saturating_add(1),
        update_ns: !newest.update_ns,
        ..newest.clone()
    }
}

proptest! {
    // Power loss during the write of the copy that is not the newest: some prefix of it arrived.
    #[test]
    fn a_superblock_update_cut_anywhere_gives_the_old_or_the_new(
        newest in superblocks(), newest_copy in 0usize..2, arrived in 0..=COPY_BYTES,
    ) {
        prop_assume!(newest.event_count > 0 && newest.event_count < u64::MAX);
        let oldest = Superblock { event_count: newest.event_count - 1, created_ns: 1, ..newest.clone() };
        let mut bytes = if newest_copy == 0 { file(&newest, &oldest) } else { file(&oldest, &newest) };
        let update = successor(&newest);
        let start = Superblock::copy_offset(Superblock::next_copy(newest_copy)) as usize;
        bytes[start..start + arrived].copy_from_slice(&update.encode()[..arrived]);
        let (found, copy) = Superblock::choose(&bytes).unwrap();
        if copy == newest_copy {
            prop_assert_eq!(found, newest);
        } else {
            prop_assert_eq!(found, update);
        }
    }

    // Stores to persistent memory arrive in any order, in pieces of 8 bytes.
    #[test]
    fn a_superblock_update_of_which_any_words_arrived_gives_the_old_or_the_new(
        newest in superblocks(), arrived in prop::collection::vec(any::<bool>(), COPY_BYTES / 8),
    ) {
        prop_assume!(newest.event_count > 0 && newest.event_count < u64::MAX);
        let oldest = Superblock { event_count: newest.event_count - 1, ..newest.clone() };
        let mut bytes = file(&oldest, &newest);
        let update = successor(&newest);
        for (index, word) in update.encode().chunks(8).enumerate().filter(|(index, _)| arrived[*index]) {
            bytes[8 * index..][..8].copy_from_slice(word);
        }
        let (found, _) = Superblock::choose(&bytes).unwrap();
        prop_assert!(found == newest || found == update);
    }

    #[test]
    fn a_lane_of_which_any_words_arrived_is_the_old_the_new_or_torn(
        numbers in any::<[u64; 4]>(), arrived in any::<u8>(),
    ) {
        let [offset, length, sequence, generation] = numbers;
        let old = fixture::LANES[0];
        let new = LaneRecord { offset, length, sequence, generation, ..old };
        let mut bytes = old.encode();
        for (index, word) in new.encode().chunks(8).enumerate().filter(|(index, _)| arrived >> index & 1 == 1) {
            bytes[8 * index..][..8].copy_from_slice(word);
        }
        let found = LaneRecord::decode(&bytes);
        prop_assert!(found == Ok(old) || found == Ok(new) || found == Err(LaneError::Torn));
    }
}

#[test]
fn the_first_superblock_of_a_file_may_have_one_copy_only() {
    let mut bytes = [fixture::superblock().encode(), [0; COPY_BYTES]].concat();
    assert_eq!(Superblock::choose(&bytes), Ok((fixture::superblock(), 0)));
    bytes[4095] ^= 1;
    assert_eq!(Superblock::choose(&bytes), Err(SuperblockError::BadChecksum { copy: 0 }));
    bytes.rotate_left(COPY_BYTES);
    assert_eq!(Superblock::choose(&bytes), Err(SuperblockError::BadChecksum { copy: 1 }));
}

#[test]
fn copies_are_ordered_by_event_count_then_sequence() {
    let base = fixture::superblock();
    let with = |event_count, copy_sequence| Superblock { event_count, copy_sequence, ..base.clone() };
    for (first, second, chosen) in
        [((5, 1), (4, 9), 0), ((4, 9), (5, 1), 1), ((5, 2), (5, 1), 0), ((5, 1), (5, 2), 1), ((5, 1), (5, 1), 0)]
    {
        let bytes = file(&with(first.0, first.1), &with(second.0, second.1));
        assert_eq!(Superblock::choose(&bytes).unwrap().1, chosen);
    }
    assert_eq!((Superblock::next_copy(0), Superblock::next_copy(1)), (1, 0));
}
