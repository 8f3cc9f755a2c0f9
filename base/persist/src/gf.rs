//! GF(2^8) constants for the kernels: polynomial x^8+x^4+x^3+x^2+1 (0x11d), generator 2, as in md's
//! and ISA-L's RAID 6.
//!
//! The arithmetic that the array computes coefficients with is in `core/parity`. Here are only the
//! tables that vector instructions need.

/// The product of `a` and `b`, bit by bit; for building tables.
pub(crate) const fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// For each coefficient its products with 0, 1, .. 15 (low nibble) and then with 0, 16, .. 240 (high
/// nibble), for pshufb. The table has 8 KiB.
pub(crate) static NIBBLES: [[u8; 32]; 256] = nibbles();

/// For each coefficient the multiplication by it, as a matrix of 8 × 8 bits in the order of
/// gf2p8affineqb (the row of output bit 0 in the highest byte). The table has 2 KiB. The instruction
/// gf2p8mulb is of no use: its polynomial is 0x11b.
pub(crate) static MATRICES: [u64; 256] = matrices();

const fn nibbles() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[coefficient][nibble] = multiply(coefficient as u8, nibble as u8);
            tables[coefficient][16 + nibble] = multiply(coefficient as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        coefficient += 1;
    }
    tables
}

const fn matrices() -> [u64; 256] {
    let mut tables = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut column = 0;
        while column < 8 {
            let product = multiply(coefficient as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if product >> row & 1 != 0 {
                    tables[coefficient] |= 1 << (8 * (7 - row) + column);
                }
                row += 1;
            }
            column += 1;
        }
        coefficient += 1;
    }
    tables
}
