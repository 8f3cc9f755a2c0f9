//! What a system call of the generator's table is: its number, what each of its arguments may be,
//! and how what it stores is compared.

use libc::c_long;

/// What an argument may be. Every kind has good values and bad ones.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A descriptor of the program's, or what is none.
    Fd,
    /// A descriptor that a path is relative to.
    Dir,
    /// A pointer to a path.
    Path,
    /// A pointer to bytes that the kernel reads.
    In,
    /// A pointer to bytes that the kernel stores. What is there afterwards is compared.
    Out,
    /// How many bytes are at the pointer before.
    Length,
    /// An offset in a file, or a size.
    Offset,
    /// Any of these bits, alone, in pairs or all at once, and bits that have no meaning.
    Bits(&'static [i32]),
    /// One of these numbers, or another one.
    Number(&'static [i64]),
    /// A file mode.
    Mode,
    /// A user's or group's number.
    Id,
    /// A pointer to two times (struct timespec), or null.
    Times,
    /// A pointer to two times (struct timeval), or null.
    OldTimes,
    /// A pointer to pieces of memory (struct iovec) that the kernel reads, and their number.
    PiecesIn,
    /// A pointer to pieces of memory that the kernel stores to, and their number.
    PiecesOut,
    /// The number of pieces before.
    PieceCount,
    /// A pointer to an offset that the kernel reads and stores, or null.
    OffsetPlace,
    /// A pointer to a lock (struct flock).
    Lock,
    /// A pointer to what openat2(2) takes (struct open_how).
    How,
    /// The size of that.
    HowBytes,
    /// A pointer to the name of an extended attribute.
    Attribute,
    /// A pointer to two descriptors that pipe2(2) stores.
    Pipe,
    /// A pointer to the address of a local socket (struct sockaddr_un).
    Address,
    /// The size of that.
    AddressBytes,
    /// A pointer to a size that the kernel reads and stores.
    SizePlace,
    /// A pointer to a handle of a file (struct file_handle).
    Handle,
    /// A pointer to what is to be done at a signal (the kernel's struct sigaction).
    Action,
    /// A pointer to a set of signals, none of which this program needs.
    SignalSet,
    /// A pointer to a limit (struct rlimit), or null.
    Limit,
    /// A pointer to a message (struct msghdr) with pieces of memory and no address, mostly without
    /// control data.
    Message,
    /// A pointer to three ranges (struct iovec) of the part of the address space that programs map
    /// files into.
    Ranges,
    /// An address in the part of the address space that programs map files into.
    At,
    /// How many bytes of that part.
    MapBytes,
    /// What is to be mapped, and how (MAP_*).
    MapFlags,
    /// An offset of pages in a file.
    MapOffset,
    /// Always this number.
    Fixed(i64),
}

/// How a call's stores are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// Byte by byte.
    Bytes,
    /// The fields of struct stat that an array has as a directory does.
    Stat,
    /// The same of struct statx.
    Statx,
    /// The names and types of directory entries, in any order.
    Entries,
    /// Nothing: the bytes are the file system's own affair.
    Nothing,
    /// Only that it succeeds: where a file's holes begin is the file system's own affair.
    Success,
    /// The address that the call returns, if it lies where programs map files; that it is
    /// elsewhere, if not.
    Place,
}

/// Where a call may be drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    Everywhere,
    /// Not in a child that shares its parent's memory: README.md says what such a child cannot do
    /// on an array.
    OwnMemory,
    /// Nor in a program whose tasks leave each other's descriptors: a call on memory.
    Mapping,
    /// Not by one of several threads, which it would part from the others.
    Alone,
}

/// The number of what is no call: a load from mapped memory, which shows the bytes or the signal.
pub(crate) const LOAD: c_long = -1;
/// The number of a store to mapped memory.
pub(crate) const STORE: c_long = -2;

/// One system call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: c_long,
    pub(crate) kinds: &'static [Kind],
    pub(crate) shown: Shown,
    /// How often it is drawn, in proportion to the others.
    pub(crate) weight: u64,
    pub(crate) reach: Reach,
}
