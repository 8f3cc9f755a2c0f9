//! What is missing as a combination of what is left.

use crate::field::{div, inv, mul, q_coefficient};
use units::MEMBER_COUNT_MAX;

/// The most sources: the data columns and parities of one stripe.
pub const SOURCES_MAX: usize = MEMBER_COUNT_MAX;

/// For up to two missing data columns, the coefficients of the sources they are the sum of.
///
/// Sources are numbered: data columns `0..data_columns`, then P, then Q if there is one.
/// Coefficients of what is missing, and of what is not needed, are 0; a source with coefficient 0
/// in all outputs need not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    source_count: usize,
    missing_count: usize,
    missing: [usize; 2],
    coefficients: [[u8; SOURCES_MAX]; 2],
}

impl Recovery {
    /// How to recover the data columns in `missing_data` (ascending, distinct) of a stripe of
    /// `data_columns` columns and `parity_count` (1 or 2) parities, without P if `p_missing` and
    /// without Q if `q_missing`.
    ///
    /// `None` if more is missing than parities are left, or the arguments describe no stripe.
    #[must_use]
    pub fn new(
        data_columns: usize,
        parity_count: usize,
        missing_data: &[usize],
        p_missing: bool,
        q_missing: bool,
    ) -> Option<Self> {
        let source_count = data_columns.saturating_add(parity_count);
        let ascending = missing_data.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = missing_data.iter().all(|&column| column < data_columns);
        if !(1..=2).contains(&parity_count) || source_count > SOURCES_MAX || !ascending || !in_range {
            return None;
        }
        let has_p = !p_missing;
        let has_q = parity_count == 2 && !q_missing;
        let mut recovery =
            Self { source_count, missing_count: missing_data.len(), missing: [0; 2], coefficients: [[0; SOURCES_MAX]; 2] };
        for (to, &column) in recovery.missing.iter_mut().zip(missing_data) {
            *to = column;
        }
        match *missing_data {
            [] => {}
            [x] if has_p => recovery.solve_p(data_columns, x),
            [x] if has_q => recovery.solve_q(data_columns, x),
            [x, y] if has_p && has_q => recovery.solve_p_and_q(data_columns, x, y),
            _ => return None,
        }
        Some(recovery)
    }

    /// Dx = P + sum of the others.
    fn solve_p(&mut self, data_columns: usize, x: usize) {
        let out = &mut self.coefficients[0];
        out[..=data_columns].fill(1);
        out[x] = 0;
    }

    /// Dx = 2^-x * (Q + sum of 2^i * Di of the others).
    fn solve_q(&mut self, data_columns: usize, x: usize) {
        let out = &mut self.coefficients[0];
        for (i, out) in out[..data_columns].iter_mut().enumerate() {
            *out = div(q_coefficient(i), q_coefficient(x));
        }
        out[data_columns + 1] = inv(q_coefficient(x));
        out[x] = 0;
    }

    /// With P' and Q' the sums of what is left (P + sum of Di, Q + sum of 2^i * Di): Dx + Dy = P',
    /// 2^x Dx + 2^y Dy = Q', so Dx = (2^y P' + Q') / (2^x + 2^y) and Dy = P' + Dx.
    fn solve_p_and_q(&mut self, data_columns: usize, x: usize, y: usize) {
        let (x_factor, y_factor) = (q_coefficient(x), q_coefficient(y));
        let scale = inv(x_factor ^ y_factor);
        let (of_p, of_q) = (mul(y_factor, scale), scale);
        let [out_x, out_y] = &mut self.coefficients;
        for i in 0..data_columns {
            out_x[i] = of_p ^ mul(q_coefficient(i), of_q);
            out_y[i] = out_x[i] ^ 1;
        }
        for out in [&mut *out_x, &mut *out_y] {
            out[x] = 0;
            out[y] = 0;
        }
        (out_x[data_columns], out_x[data_columns + 1]) = (of_p, of_q);
        (out_y[data_columns], out_y[data_columns + 1]) = (of_p ^ 1, of_q);
    }

    /// The data columns this recovers, ascending.
    #[must_use]
    pub fn missing(&self) -> &[usize] {
        &self.missing[..self.missing_count]
    }

    /// The number of sources, `data_columns + parity_count`.
    #[must_use]
    pub const fn source_count(&self) -> usize {
        self.source_count
    }

    /// The coefficient of each source for the `index`-th of [`Self::missing`].
    ///
    /// # Panics
    /// If `index` is not below `missing().len()`.
    #[must_use]
    pub fn coefficients(&self, index: usize) -> &[u8] {
        assert!(index < self.missing_count, "no such missing column");
        &self.coefficients[index][..self.source_count]
    }

    /// The coefficients for data column `column`, if it is one of the missing.
    #[must_use]
    pub fn coefficients_of(&self, column: usize) -> Option<&[u8]> {
        self.missing().iter().position(|&missing| missing == column).map(|index| self.coefficients(index))
    }
}
