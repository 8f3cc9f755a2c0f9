//! A program may change its buffer while it is being written. Which bytes are stored is then the
//! program's affair, but parity must fit whatever was stored: a kernel (of parity) that loads a
//! byte of the new data twice leaves a stripe that reconstructs wrongly.

mod common;

use common::{Buffer, mul, q_coefficients, variants, with_changing_buffer};

const LEN: usize = 2048 + 24;

#[test]
fn parity_fits_what_was_stored_while_the_buffer_changes() {
    with_changing_buffer(LEN + 64, |new| {
        for k in variants() {
            for round in 0..1000 {
                let zeros = vec![0; LEN];
                let [mut a, mut b, mut p, mut q] = [0; 4].map(|_| Buffer::new(&zeros, 40));
                let (a_at, b_at, p_at, q_at) = (a.as_mut_ptr(), b.as_mut_ptr(), p.as_mut_ptr(), q.as_mut_ptr());
                // SAFETY: all buffers have LEN bytes. The race on `new` is what is tested: the kernels
                // load each line once, into a register.
                unsafe {
                    match round % 6 {
                        0 => k.update_p(a_at, p_at, new, LEN),
                        1 => k.update_pq(a_at, p_at, q_at, new, 1, LEN),
                        2 => k.update_q(a_at, q_at, new, 1, LEN),
                        3 => k.stripe_p(&[new, new], &[a_at, b_at], p_at, LEN),
                        5 => k.mirror_to_media(&[a_at, b_at, p_at, q_at], new, LEN),
                        _ => k.stripe_pq(&[new, new], &[a_at, b_at], p_at, q_at, LEN),
                    }
                }
                if round % 6 == 5 {
                    assert!([&b, &p, &q].iter().all(|other| other.content() == a.content()), "{k:?} mirror");
                    continue;
                }
                let factor = q_coefficients(2)[1];
                let [a, b, p, q] = [&a, &b, &p, &q].map(Buffer::content);
                for i in 0..LEN {
                    let (a, b) = (a[i], b[i]);
                    let (has_p, has_q) = (round % 6 != 2, matches!(round % 6, 1 | 2 | 4));
                    assert!(!has_p || p[i] == a ^ b, "{k:?} round {round} P at {i}");
                    assert!(!has_q || q[i] == a ^ mul(factor, b), "{k:?} round {round} Q at {i}");
                }
            }
        }
    });
}
