//! P, Q and sums byte by byte: what the kernels and the engine are tested against.

use crate::field::{mul, q_coefficient};

/// P: the sum of the columns. Columns may differ in length; bytes past their ends count as zeros.
pub fn p<C: AsRef<[u8]>>(columns: &[C], out: &mut [u8]) {
    out.fill(0);
    for column in columns {
        out.iter_mut().zip(column.as_ref()).for_each(|(out, byte)| *out ^= byte);
    }
}

/// Q: the sum of 2^i times column i. Columns may differ in length; bytes past their ends count as
/// zeros.
pub fn q<C: AsRef<[u8]>>(columns: &[C], out: &mut [u8]) {
    out.fill(0);
    for (i, column) in columns.iter().enumerate() {
        out.iter_mut().zip(column.as_ref()).for_each(|(out, &byte)| *out ^= mul(q_coefficient(i), byte));
    }
}

/// The sum of coefficient i times source i.
pub fn dot<C: AsRef<[u8]>>(coefficients: &[u8], sources: &[C], out: &mut [u8]) {
    out.fill(0);
    for (&coefficient, source) in coefficients.iter().zip(sources) {
        out.iter_mut().zip(source.as_ref()).for_each(|(out, &byte)| *out ^= mul(coefficient, byte));
    }
}
