//! Division by a number that is known when a file is opened: a multiplication instead of a division
//! for each call.

/// A divisor, `1..=65535`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Divisor {
    value: u16,
    /// 2^64 / value, rounded up; 0 stands for 2^64, that is for dividing by 1.
    reciprocal: u64,
}

/// Below it the product with the reciprocal has an error that is less than 1 / value.
const EXACT_MAX: u64 = 1 << 48;

impl Divisor {
    pub(crate) const fn new(value: u16) -> Self {
        assert!(value != 0, "nothing is divided by zero");
        Self { value, reciprocal: (u64::MAX / value as u64).wrapping_add(1) }
    }

    /// `number / value`.
    #[inline]
    pub(crate) const fn divide(self, number: u64) -> u64 {
        if self.reciprocal == 0 {
            return number;
        }
        if number >= EXACT_MAX {
            return self.divide_slowly(number);
        }
        ((number as u128 * self.reciprocal as u128) >> 64) as u64
    }

    #[cold]
    const fn divide_slowly(self, number: u64) -> u64 {
        number / self.value as u64
    }

    /// `number % value`.
    #[inline]
    pub(crate) const fn remainder(self, number: u64) -> u64 {
        number - self.divide(number) * self.value as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;
    use proptest::prelude::*;

    #[test]
    fn every_divisor_at_the_edges_of_its_multiples() {
        for value in 1..=u16::MAX {
            let divisor = Divisor::new(value);
            for multiple in [0, 1, 2, 1000, (1 << 48) / u64::from(value), u64::MAX / u64::from(value)] {
                let number = multiple * u64::from(value);
                for number in [number.saturating_sub(1), number, number.saturating_add(1)] {
                    assert_eq!(divisor.divide(number), number / u64::from(value), "{number} / {value}");
                    assert_eq!(divisor.remainder(number), number % u64::from(value), "{number} % {value}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_number(value in 1u16.., number: u64, shift in 0u32..64) {
            let number = number >> shift;
            prop_assert_eq!(Divisor::new(value).divide(number), number / u64::from(value));
        }
    }
}
