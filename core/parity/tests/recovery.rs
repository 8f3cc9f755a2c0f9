//! Every pattern of up to as many erasures as there are parities recovers, and no more.

use cxlraid_parity::{Recovery, q_coefficient, reference};
use proptest::prelude::*;

const LEN: usize = 48;

/// Loses the sources in `lost` (numbered as in [`Recovery`]), recovers the data among them,
/// compares.
fn check(columns: &[Vec<u8>], parity_count: usize, lost: &[usize]) {
    let k = columns.len();
    let mut sources = columns.to_vec();
    let mut parities = [vec![0; LEN], vec![0; LEN]];
    reference::p(columns, &mut parities[0]);
    reference::q(columns, &mut parities[1]);
    sources.extend(parities.into_iter().take(parity_count));
    for &lost in lost {
        sources[lost].fill(0xee);
    }
    let missing: Vec<usize> = lost.iter().copied().filter(|&lost| lost < k).collect();
    let recovery = Recovery::new(k, parity_count, &missing, lost.contains(&k), lost.contains(&(k + 1)));
    let solvable = missing.is_empty() || lost.len() <= parity_count;
    assert_eq!(recovery.is_some(), solvable, "k {k} parities {parity_count} lost {lost:?}");
    let Some(recovery) = recovery else { return };
    assert_eq!(recovery.missing(), missing);
    assert_eq!(recovery.source_count(), sources.len());
    for (index, &column) in missing.iter().enumerate() {
        let coefficients = recovery.coefficients(index);
        assert!(lost.iter().all(|&lost| coefficients[lost] == 0), "reads what is lost");
        assert_eq!(recovery.coefficients_of(column), Some(coefficients));
        let mut out = vec![0; LEN];
        reference::dot(coefficients, &sources, &mut out);
        assert_eq!(out, columns[column], "k {k} parities {parity_count} lost {lost:?} column {column}");
    }
}

fn columns() -> impl Strategy<Value = Vec<Vec<u8>>> {
    (1usize..=30).prop_flat_map(|k| prop::collection::vec(prop::collection::vec(any::<u8>(), LEN), k))
}

#[test]
fn every_pair_of_erasures_of_every_width_recovers() {
    for k in 1..=30usize {
        let columns: Vec<Vec<u8>> = (0..k).map(|column| (0..LEN).map(|i| (i * 37 + column * 101 + 13) as u8).collect()).collect();
        for parity_count in 1..=2 {
            let count = k + parity_count;
            check(&columns, parity_count, &[]);
            for a in 0..count {
                check(&columns, parity_count, &[a]);
                for b in a + 1..count {
                    check(&columns, parity_count, &[a, b]);
                }
            }
        }
    }
}

#[test]
fn arguments_that_describe_no_stripe_are_refused() {
    assert!(Recovery::new(4, 0, &[], false, false).is_none());
    assert!(Recovery::new(4, 3, &[], false, false).is_none());
    assert!(Recovery::new(31, 2, &[], false, false).is_none());
    assert!(Recovery::new(4, 2, &[4], false, false).is_none());
    assert!(Recovery::new(4, 2, &[2, 1], false, false).is_none());
    assert!(Recovery::new(4, 2, &[1, 1], false, false).is_none());
    assert!(Recovery::new(4, 2, &[0, 1, 2], false, false).is_none());
    assert!(Recovery::new(usize::MAX, 1, &[], false, false).is_none());
}

proptest! {
    #[test]
    fn any_content_recovers(columns in columns(), parity_count in 1usize..=2, a in any::<prop::sample::Index>(),
                            b in any::<prop::sample::Index>()) {
        let count = columns.len() + parity_count;
        let mut lost = [a.index(count), b.index(count)];
        lost.sort_unstable();
        let distinct = if lost[0] == lost[1] { &lost[..1] } else { &lost[..] };
        check(&columns, parity_count, distinct);
    }

    #[test]
    fn q_changes_with_a_column_by_its_coefficient(columns in columns(), at in any::<prop::sample::Index>(), new in
                                                 prop::collection::vec(any::<u8>(), LEN)) {
        let column = at.index(columns.len());
        let mut q = vec![0; LEN];
        reference::q(&columns, &mut q);
        for (i, q) in q.iter_mut().enumerate() {
            *q ^= cxlraid_parity::mul(q_coefficient(column), columns[column][i] ^ new[i]);
        }
        let mut changed = columns;
        changed[column] = new;
        let mut expected = vec![0; LEN];
        reference::q(&changed, &mut expected);
        prop_assert_eq!(q, expected);
    }
}
