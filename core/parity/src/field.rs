//! Arithmetic on single elements of GF(2^8), with tables of logarithms. It computes coefficients,
//! such as those of Q; the kernels of the crate `persist` multiply the bytes of stripes.

/// The field's polynomial is x^8 + x^4 + x^3 + x^2 + 1; this constant leaves out x^8.
const POLYNOMIAL: u8 = 0x1d;
/// The number of elements other than 0. In the field 2 to the power of 255 is 1 again.
const ORDER: usize = 255;

/// `EXP[i]` is the element 2 to the power of i. The table is twice as long as the powers differ, so
/// that the sum of two logarithms can be the index.
static EXP: [u8; 2 * ORDER] = exp_table();
/// The logarithm to base 2 of 1..=255; entry 0 is unused.
static LOG: [u8; 256] = log_table();

const fn exp_table() -> [u8; 2 * ORDER] {
    let mut table = [0; 2 * ORDER];
    let mut value = 1u8;
    let mut i = 0;
    while i < 2 * ORDER {
        table[i] = value;
        value = (value << 1) ^ if value & 0x80 != 0 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    table
}

const fn log_table() -> [u8; 256] {
    let table = exp_table();
    let mut out = [0; 256];
    let mut i = 0;
    while i < ORDER {
        out[table[i] as usize] = i as u8;
        i += 1;
    }
    out
}

/// The product of `a` and `b` in GF(2^8).
#[inline]
#[must_use]
pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The multiplicative inverse of `a` in GF(2^8).
///
/// # Panics
/// If `a` is 0.
#[inline]
#[must_use]
pub fn inv(a: u8) -> u8 {
    assert_ne!(a, 0, "0 has no inverse");
    EXP[ORDER - LOG[a as usize] as usize]
}

/// `a` divided by `b` in GF(2^8).
///
/// # Panics
/// If `b` is 0.
#[inline]
#[must_use]
pub fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// The element 2 to the power of `exponent`, in GF(2^8).
#[inline]
#[must_use]
pub fn pow(exponent: usize) -> u8 {
    EXP[exponent % ORDER]
}

/// The factor by which data column `column` enters Q: 2 to the power of `column`, in GF(2^8). From
/// column 255 on the factors repeat; levels have far fewer columns.
#[inline]
#[must_use]
pub fn q_coefficient(column: usize) -> u8 {
    pow(column)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: the product of two polynomials over GF(2), reduced by the field's
    /// polynomial.
    fn mul_slow(a: u8, b: u8) -> u8 {
        let product = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ (u16::from(a) << bit));
        (8..15).rev().fold(product, |rest, bit| if rest >> bit & 1 == 1 { rest ^ (0x11d << (bit - 8)) } else { rest }) as u8
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), mul_slow(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn inverses_and_quotients_undo_products() {
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1);
            for b in 0..=255 {
                assert_eq!(div(mul(a, b), a), b);
            }
        }
    }

    #[test]
    fn two_generates_every_element_but_zero() {
        let mut seen = [false; 256];
        (0..ORDER).for_each(|i| seen[pow(i) as usize] = true);
        assert!(!seen[0] && seen[1..].iter().all(|&seen| seen));
    }

    #[test]
    fn powers_begin_with_1_and_2_and_begin_again_at_the_order() {
        assert_eq!((pow(0), pow(1), pow(8), pow(ORDER)), (1, 2, POLYNOMIAL, 1));
    }
}
