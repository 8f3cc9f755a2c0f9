//! GF(2^8) by logarithm tables.

/// The polynomial without its x^8.
const POLYNOMIAL: u8 = 0x1d;
/// The order of the multiplicative group.
const ORDER: usize = 255;

/// 2^i for i in 0..510, so that a sum of two logarithms needs no reduction.
static EXP: [u8; 2 * ORDER] = exp();
/// The logarithm to base 2 of 1..=255; entry 0 is unused.
static LOG: [u8; 256] = log();

const fn exp() -> [u8; 2 * ORDER] {
    let mut table = [0; 2 * ORDER];
    let mut value = 1u8;
    let mut i = 0;
    while i < 2 * ORDER {
        table[i] = value;
        value = value << 1 ^ if value & 0x80 != 0 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    table
}

const fn log() -> [u8; 256] {
    let table = exp();
    let mut out = [0; 256];
    let mut i = 0;
    while i < ORDER {
        out[table[i] as usize] = i as u8;
        i += 1;
    }
    out
}

/// The product.
#[inline]
#[must_use]
pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The inverse of `a`.
///
/// # Panics
/// If `a` is 0.
#[inline]
#[must_use]
pub fn inv(a: u8) -> u8 {
    assert_ne!(a, 0, "0 has no inverse");
    EXP[ORDER - LOG[a as usize] as usize]
}

/// The quotient.
///
/// # Panics
/// If `b` is 0.
#[inline]
#[must_use]
pub fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// 2 to the power of `exponent`.
#[inline]
#[must_use]
pub fn pow(exponent: usize) -> u8 {
    EXP[exponent % ORDER]
}

/// Q's coefficient of data column `column`: 2^column.
#[inline]
#[must_use]
pub fn q_coefficient(column: usize) -> u8 {
    pow(column)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: shift and reduce.
    fn mul_slow(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = a << 1 ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
            b >>= 1;
        }
        product
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
        assert_eq!((pow(0), pow(1), pow(8), pow(ORDER)), (1, 2, POLYNOMIAL, 1));
    }
}
