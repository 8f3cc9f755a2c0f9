//! What the library and the process that serves a mount say to each other when a program is handed
//! over to the mount: requests by ioctl(2) on descriptors of the mount, and a name that is looked
//! up in its root. Whoever asks names a descriptor of its own; the process that serves the mount
//! fetches that (pidfd_getfd(2)) and looks at what it is.

use alloc::vec::Vec;

/// Bytes of an [`Identity`] as the kernel carries it.
pub const IDENTITY_BYTES: usize = 4096;
/// Bytes of a [`Given`] as the kernel carries it.
pub const GIVEN_BYTES: usize = 16;
/// Bytes of what [`INODE`] takes and gives.
pub const INODE_BYTES: usize = 8;
const UUID_BYTES: usize = 16;
const HEAD_BYTES: usize = UUID_BYTES + 4;

const READS: u32 = 2 << 30;
const WRITES: u32 = 1 << 30;
const KIND: u32 = 0xc8 << 8;

/// The extended attribute by which a mount tells where in the array what it is asked of is now; NOENT
/// if that has no name any more. getcwd(2) does not tell it: the kernel does not hear of a directory
/// that gets another name without the mount.
pub const PATH: &core::ffi::CStr = c"system.cxlraid.path";

/// Asks a mount which array's it is, and which of the array's paths it shows.
pub const IDENTIFY: u32 = READS | (IDENTITY_BYTES as u32) << 16 | KIND | 1;
/// Says that a descriptor of the mount takes the place of an anchor of the calling process. The
/// answer is an error if the two do not stand for the same file or directory.
pub const GIVE: u32 = WRITES | (GIVEN_BYTES as u32) << 16 | KIND | 2;
/// Tells which file number programs are told of the thing behind a descriptor of the calling
/// process: in the place of the number, both of 64 bits.
pub const INODE: u32 = READS | WRITES | (INODE_BYTES as u32) << 16 | KIND | 3;

/// In the root of a mount, this name and a number lead to the file behind that descriptor of the
/// calling process.
pub const NAME: &[u8] = b".cxlraid-descriptor-";

/// Which array a mount shows.
pub struct Identity<'a> {
    /// The array's UUID.
    pub uuid: [u8; UUID_BYTES],
    /// The path of the array that the root of the mount is.
    pub prefix: &'a [u8],
}

impl<'a> Identity<'a> {
    /// As the kernel carries it; None if the path is too long.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = alloc::vec![0; IDENTITY_BYTES];
        bytes.get_mut(..UUID_BYTES)?.copy_from_slice(&self.uuid);
        bytes.get_mut(UUID_BYTES..HEAD_BYTES)?.copy_from_slice(&(self.prefix.len() as u32).to_le_bytes());
        bytes.get_mut(HEAD_BYTES..)?.get_mut(..self.prefix.len())?.copy_from_slice(self.prefix);
        Some(bytes)
    }

    /// Reads what a mount has answered. None if it makes no sense.
    #[must_use]
    pub fn decode(bytes: &'a [u8; IDENTITY_BYTES]) -> Option<Self> {
        let (uuid, rest) = bytes.split_first_chunk::<UUID_BYTES>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        Some(Self { uuid: *uuid, prefix: rest.get(..u32::from_le_bytes(*length) as usize)? })
    }
}

/// An anchor that a descriptor of the mount takes the place of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// The anchor's number in the calling process.
    pub descriptor: u32,
    /// The offset of the mount's descriptor, which is that of the anchor.
    pub position: u64,
}

impl Given {
    /// As the kernel carries it.
    #[must_use]
    pub fn encode(self) -> [u8; GIVEN_BYTES] {
        let mut bytes = [0; GIVEN_BYTES];
        let (descriptor, position) = bytes.split_at_mut(8);
        descriptor.copy_from_slice(&u64::from(self.descriptor).to_le_bytes());
        position.copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    /// Reads what a process has sent. None if it is too short, or no number of a descriptor.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (descriptor, rest) = bytes.split_first_chunk::<8>()?;
        let position = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        Some(Self { descriptor: u64::from_le_bytes(*descriptor).try_into().ok()?, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let identity = Identity { uuid: [7; 16], prefix: b"/data" };
        let bytes: [u8; IDENTITY_BYTES] = identity.encode().unwrap().try_into().unwrap();
        let decoded = Identity::decode(&bytes).unwrap();
        assert_eq!((decoded.uuid, decoded.prefix), ([7; 16], &b"/data"[..]));
        assert!(Identity { uuid: [7; 16], prefix: &[b'x'; IDENTITY_BYTES] }.encode().is_none());
        assert!(Identity::decode(&[0xff; IDENTITY_BYTES]).is_none());
        let given = Given { descriptor: 9, position: 1 << 40 };
        assert_eq!(Given::decode(&given.encode()), Some(given));
        assert!(Given::decode(&[0; 15]).is_none() && Given::decode(&[0xff; 16]).is_none());
    }
}
