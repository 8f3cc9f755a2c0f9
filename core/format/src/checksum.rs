//! The checksum of everything that is written rarely: CRC-32C, which finds every burst of up to 32
//! bits.
//!
//! Lanes are written before every write of the program and have a cheaper one, in `lane`.

use crc::{CRC_32_ISCSI, Crc, Table};

/// Takes 16 bytes a step. Each program that starts checks the superblocks, 8 KiB a member.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// CRC-32C (Castagnoli, RFC 3720) of the parts, as if they were one.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = CRC32C.digest();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn rfc_3720_vectors() {
        assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c(&[&[0xff; 32]]), 0x62a8_ab43);
    }
}
