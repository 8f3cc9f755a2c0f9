//! Backing files on tmpfs (and where the tests run): windows, space, both faces.

use super::*;
use crate::windows::{WINDOW_SHIFT, WINDOWS_SHIFT};
use sys::AsFd as _;
use sys::rustix::fs::{Mode, OFlags, openat};

/// A file without a name.
fn file(directory: &str) -> OwnedFd {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(sys::rustix::fs::CWD, directory, flags, Mode::RUSR | Mode::WUSR).unwrap()
}

/// Offsets from here on are in no window.
const MAPPED_BYTES_MAX: u64 = 1 << (WINDOW_SHIFT + WINDOWS_SHIFT);

fn backing(directory: &str) -> Backing {
    let fd = file(directory);
    Backing::new(fd, Access::ReadWrite, PersistenceDomain::Volatile)
}

fn store(backing: &Backing, offset: u64, byte: u8) {
    let span = backing.span(offset).unwrap();
    // SAFETY: the tests allocate first.
    unsafe { span.start.as_ptr().write_volatile(byte) };
}

#[test]
fn both_faces_see_the_same_bytes_and_the_end_reads_as_zeros() {
    let backing = backing("/dev/shm");
    backing.allocate(0, 100).unwrap();
    store(&backing, 99, 7);
    let mut read = [1u8; 8];
    // SAFETY: `read` is 8 bytes long; so below.
    unsafe { backing.get(98, read.as_mut_ptr(), 8) }.unwrap();
    assert_eq!(read, [0, 7, 0, 0, 0, 0, 0, 0]);
    backing.set_len(101).unwrap();
    // SAFETY: as above.
    unsafe { backing.put(97, [5u8, 6].as_ptr(), 2).and_then(|()| backing.get(96, read.as_mut_ptr(), 8)) }.unwrap();
    assert_eq!(read, [0, 5, 6, 7, 0, 0, 0, 0]);
}

#[test]
fn a_file_is_mapped_when_it_was_read_some_times() {
    let backing = Backing::of_file(file("/dev/shm"), Access::ReadWrite, PersistenceDomain::Volatile, || false).unwrap();
    // SAFETY: the array has 5000 bytes.
    unsafe { backing.put(0, [7u8; 5000].as_ptr(), 5000) }.unwrap();
    let mut read = [0u8; 5000];
    assert!(backing.span_to_load(0, GET_BYTES_MAX + 1).is_some_and(|span| span.bytes > GET_BYTES_MAX));
    let backing = Backing::of_file(
        backing.fd().unwrap().as_fd().try_clone_to_owned().unwrap(),
        Access::ReadWrite,
        PersistenceDomain::Volatile,
        || false,
    )
    .unwrap();
    for _ in 0..GET_COUNT {
        assert!(backing.span_to_load(0, 5000).is_none());
        // SAFETY: `read` has 5000 bytes; so below.
        unsafe { backing.get(0, read.as_mut_ptr(), 5000) }.unwrap();
        assert_eq!(read, [7; 5000]);
    }
    // SAFETY: within the file.
    assert_eq!(unsafe { backing.span_to_load(4999, 1).unwrap().start.read() }, 7);
    assert!(backing.span_to_load(0, 5000).is_some() && backing.span(0).is_some());
}

/// As a load from a mapping would be answered.
#[test]
fn what_was_cut_off_is_not_read_as_zeros() {
    let backing = Backing::of_file(file("/dev/shm"), Access::ReadWrite, PersistenceDomain::Volatile, || false).unwrap();
    backing.set_len(100).unwrap();
    let mut read = [1u8; 8];
    // SAFETY: `read` is 8 bytes long; so below.
    assert_eq!(unsafe { backing.get(4090, read.as_mut_ptr(), 6) }, Ok(()));
    assert_eq!(read, [0, 0, 0, 0, 0, 0, 1, 1]);
    // SAFETY: as above.
    assert_eq!(unsafe { backing.get(4090, read.as_mut_ptr(), 8) }, Err(OsError::IO));
}

#[test]
fn windows_do_not_move_and_are_owned() {
    let backing = backing("/dev/shm");
    let first = backing.span(0).unwrap();
    assert_eq!(first.bytes, 1 << 30);
    assert_eq!(first.start.addr().get() % (2 << 20), 0);
    let later = backing.span((40 << 30) + 5).unwrap();
    assert_eq!(later.bytes, (1 << 30) - 5);
    assert_eq!(backing.span(0).unwrap().start, first.start);
    assert!(backing.owns(first.start.addr().get()) && backing.owns(later.start.addr().get()));
    assert!(backing.owns(first.start.addr().get() + (1 << 30) - 1));
    assert!(!backing.owns(&raw const backing as usize) && !backing.owns(0) && !backing.owns(1));
    assert!(backing.span(MAPPED_BYTES_MAX).is_none());
}

#[test]
fn space_is_given_once_and_remembered_until_forgotten() {
    let backing = backing("/dev/shm");
    backing.allocate(1000, 70_000).unwrap();
    assert_eq!(backing.bytes().unwrap(), 128 << 10);
    assert!(backing.is_known(0, 128 << 10) && !backing.is_known(0, (128 << 10) + 1));
    store(&backing, 70_999, 9);
    // What is known needs no system call: a closed file would say so.
    backing.allocate(0, 100).unwrap();
    backing.punch(0, 10).unwrap();
    assert!(!backing.is_known(0, 1) && backing.is_known(64 << 10, 128 << 10));
    backing.allocate(0, 1).unwrap();
    assert!(backing.is_known(0, 128 << 10));
    backing.forget_allocations();
    assert!(!backing.is_known(0, 1));
    // Across windows.
    backing.allocate((1 << 30) - 5, 10).unwrap();
    assert!(backing.is_known((1 << 30) - 5, (1 << 30) + 5));
    assert_eq!(backing.bytes().unwrap(), (1 << 30) + (64 << 10));
    backing.set_len(3).unwrap();
    assert!(!backing.is_known(1 << 30, (1 << 30) + 1));
}

#[test]
fn of_a_file_with_holes_only_what_is_known_to_have_data_is_mapped() {
    const GRANULE: u64 = 64 << 10;
    let backing = backing("/dev/shm");
    let blocks = || fstat(backing.fd().unwrap()).unwrap().st_blocks;
    backing.set_len(100 * GRANULE).unwrap();
    // SAFETY: the buffer is as long; so below.
    unsafe { backing.put(3 * GRANULE, [7; 5 * GRANULE as usize].as_ptr(), 5 * GRANULE as usize) }.unwrap();
    let before = blocks();
    backing.mind_holes();
    assert!(backing.span(0).is_none() && backing.span(99 * GRANULE).is_none());
    // The kernel is asked once enough has been read by calls.
    let span = (0..100).find_map(|_| backing.span(4 * GRANULE + 10)).unwrap();
    assert_eq!(span.bytes, 4 * GRANULE as usize - 10, "to the hole");
    assert!(backing.span(3 * GRANULE).is_none_or(|span| span.bytes == 5 * GRANULE as usize));
    assert!(backing.span(8 * GRANULE).is_none());
    let mut read = vec![1; 100 * GRANULE as usize];
    // SAFETY: as above.
    unsafe { backing.get(0, read.as_mut_ptr(), read.len()) }.unwrap();
    assert!(read.iter().enumerate().all(|(at, &byte)| byte == 7 * u8::from((3..8).contains(&(at as u64 / GRANULE)))));
    assert_eq!(blocks(), before);
    // What gets space is mapped, and what is punched is not.
    backing.allocate(50 * GRANULE, GRANULE).unwrap();
    assert_eq!(backing.span(50 * GRANULE).unwrap().bytes, GRANULE as usize);
    backing.punch(5 * GRANULE, GRANULE).unwrap();
    assert!(backing.span(5 * GRANULE).is_none());
    assert_eq!(backing.span(4 * GRANULE).unwrap().bytes, GRANULE as usize);
    backing.forget_allocations();
    assert!(backing.span(50 * GRANULE).is_none());
    // Somebody cuts the file: what is not there is not taken for zeros, no more than by a load.
    ftruncate(backing.fd().unwrap(), 20 * GRANULE + 1).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(backing.get(20 * GRANULE, read.as_mut_ptr(), PAGE_BYTES), Ok(()));
        assert_eq!(backing.get(20 * GRANULE, read.as_mut_ptr(), PAGE_BYTES + 1), Err(OsError::IO));
        assert_eq!(backing.get(30 * GRANULE, read.as_mut_ptr(), 1), Err(OsError::IO));
    }
}

#[test]
fn offsets_beyond_the_windows_work_by_byte_range() {
    let backing = backing("/dev/shm");
    let far = MAPPED_BYTES_MAX + 123;
    backing.allocate(far, 10).unwrap();
    let mut read = [0u8; 3];
    // SAFETY: buffers of 3 bytes.
    unsafe { backing.put(far, b"far".as_ptr(), 3).and_then(|()| backing.get(far, read.as_mut_ptr(), 3)) }.unwrap();
    assert_eq!(&read, b"far");
    assert_eq!(backing.allocate(u64::MAX - 5, 3), Err(OsError::FBIG));
}

#[test]
fn touching_gives_space_and_keeps_bytes() {
    let backing = backing("/dev/shm");
    backing.set_len(10_000).unwrap();
    store(&backing, 5000, 3);
    backing.allocate_by_touching(4000, 20_000).unwrap();
    assert_eq!(backing.bytes().unwrap(), 20_000);
    let stat = fstat(backing.fd().unwrap()).unwrap();
    assert!(stat.st_blocks * 512 >= 16_000, "{} blocks", stat.st_blocks);
    let mut read = [0u8; 1];
    // SAFETY: one byte.
    unsafe { backing.get(5000, read.as_mut_ptr(), 1) }.unwrap();
    assert_eq!(read, [3]);
}

#[test]
fn persist_reaches_the_file_in_the_page_cache() {
    let directory = std::env::temp_dir();
    let fd = file(directory.to_str().unwrap());
    let root =
        openat(sys::rustix::fs::CWD, directory.to_str().unwrap(), OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    let domain = detect(root.as_fd());
    let backing = Backing::new(fd, Access::ReadWrite, domain);
    backing.allocate(0, 10_000).unwrap();
    store(&backing, 5000, 3);
    backing.persist(4999, 3).unwrap();
    backing.persist(0, 3 << 30).unwrap();
}

#[test]
fn a_file_that_is_refused_a_synchronous_mapping_is_synced_by_a_call() {
    for (domain, refused) in
        [(PersistenceDomain::Adr, true), (PersistenceDomain::Eadr, true), (PersistenceDomain::Volatile, false)]
    {
        // No tmpfs grants MAP_SYNC.
        let backing = Backing::new(file("/dev/shm"), Access::ReadWrite, domain);
        backing.allocate(0, 10).unwrap();
        assert!(!backing.needs_sync_call());
        store(&backing, 5, 3);
        assert_eq!(backing.needs_sync_call(), refused, "{domain:?}");
        backing.persist(0, 10).unwrap();
    }
}

#[test]
fn files_in_a_page_cache_are_not_direct() {
    let directory = std::env::temp_dir();
    for place in ["/dev/shm", directory.to_str().unwrap()] {
        let direct = |domain| Backing::new(file(place), Access::ReadWrite, domain).is_direct();
        assert!(!direct(PersistenceDomain::Volatile) && !direct(PersistenceDomain::PageCache), "{place}");
        assert!(direct(PersistenceDomain::Adr));
    }
}

#[test]
fn drop_gives_everything_back() {
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let backing = backing("/dev/shm");
    let base = backing.span(7 << 30).unwrap().start.addr().get();
    let line = format!("{base:x}-");
    assert!(maps().contains(&line));
    drop(backing);
    assert!(!maps().contains(&line));
}

#[test]
fn small_files_take_little_address_space() {
    let fd = sys::rustix::fs::memfd_create("small", sys::rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let backing = Backing::small(fd, Access::ReadWrite, PersistenceDomain::Volatile, || true);
    let spans = [0, 32 << 20].map(|offset| backing.span(offset).unwrap());
    assert!(spans.iter().all(|span| span.bytes == 32 << 20));
    assert!(backing.owns(spans[1].start.addr().get() + (32 << 20) - 1));
}

#[test]
fn a_file_is_mapped_through_a_small_window_until_somebody_reaches_further() {
    let of_file = |bytes| {
        let backing = Backing::of_file(file("/dev/shm"), Access::ReadWrite, PersistenceDomain::Volatile, || true).unwrap();
        backing.set_len(bytes).unwrap();
        backing
    };
    let backing = of_file(100);
    let early = backing.span(10).unwrap();
    assert_eq!((early.bytes, early.start.addr().get() % (2 << 20)), ((2 << 20) - 10, 10));
    store(&backing, 99, 7);
    backing.set_len(5 << 20).unwrap();
    assert_eq!(backing.span(0).unwrap().start.addr().get(), early.start.addr().get() - 10);
    let later = backing.span(2 << 20).unwrap();
    assert_eq!(later.bytes, (1 << 30) - (2 << 20));
    // Both show the file, and the first one stays.
    let first = backing.span(0).unwrap();
    assert_eq!((first.bytes, first.start.addr().get()), (1 << 30, later.start.addr().get() - (2 << 20)));
    store(&backing, 98, 8);
    // SAFETY: `early` is mapped as long as the backing file is open.
    let seen = [88, 89].map(|at| unsafe { early.start.as_ptr().add(at).read_volatile() });
    assert_eq!(seen, [8, 7]);
    assert!([early.start, later.start].iter().all(|start| backing.owns(start.addr().get())));
    assert!(!backing.owns(early.start.addr().get() - 10 + (2 << 20)));
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = format!("{:x}-", early.start.addr().get() - 10);
    assert!(maps().contains(&line));
    drop(backing);
    assert!(!maps().contains(&line));
    // One that is longer when it is mapped has no small window.
    assert_eq!(of_file((2 << 20) + 1).span(0).unwrap().bytes, 1 << 30);
    assert_eq!(of_file(2 << 20).span(0).unwrap().bytes, 2 << 20);
}

#[test]
fn small_files_have_several_windows_where_that_is_asked_for() {
    let mut backing = backing("/dev/shm");
    backing.windows.shift = 17;
    backing.allocate(0, 300 << 10).unwrap();
    let spans = [0, 128 << 10, 256 << 10].map(|offset| backing.span(offset).unwrap());
    assert!(spans.iter().all(|span| span.bytes == 128 << 10));
    assert_eq!(backing.span((128 << 10) - 10).unwrap().bytes, 10);
    assert!(backing.is_known((128 << 10) - 5, (128 << 10) + 5));
    store(&backing, 128 << 10, 7);
    let mut read = [1u8; 3];
    // SAFETY: `read` is 3 bytes long.
    unsafe { backing.get((128 << 10) - 1, read.as_mut_ptr(), 3) }.unwrap();
    assert_eq!(read, [0, 7, 0]);
    assert!(spans.iter().all(|span| backing.owns(span.start.addr().get() + (128 << 10) - 1)));
    assert!(backing.span(1 << 33).is_none());
}

/// A filter of system calls (seccomp(2)) lets each fdatasync of a thread fail, so that it is seen
/// who makes one.
#[test]
fn a_length_that_no_page_fault_makes_durable_is_made_durable_with_its_space() {
    #[repr(C)]
    struct Program(u16, *const [u64; 4]);
    const FDATASYNC: u64 = 75;
    // Load the call's number; if it is fdatasync go on, else skip one; EIO; allow.
    let filter = [0x20, FDATASYNC << 32 | 1 << 24 | 0x15, 0x0005_0005_u64 << 32 | 0x06, 0x7fff_0000 << 32 | 0x06];
    let allocated = |domain, bytes: u64, start: u64, end: u64| {
        let backing = Backing::new(file("/dev/shm"), Access::ReadWrite, domain);
        backing.set_len(bytes).unwrap();
        backing.allocate(start, end - start)
    };
    let judge = move || {
        let program = Program(4, &raw const filter);
        // SAFETY: PR_SET_NO_NEW_PRIVS, and a filter that is valid for the call. Both concern this
        // thread alone.
        unsafe {
            sys::raw::check(sys::raw::syscall(157, [38, 1, 0, 0, 0, 0])).unwrap();
            sys::raw::check(sys::raw::syscall(317, [1, 0, &raw const program as usize, 0, 0, 0])).unwrap();
        }
        for domain in [PersistenceDomain::Adr, PersistenceDomain::Eadr] {
            assert_eq!(allocated(domain, 100, 100, 200), Err(OsError::IO));
            // Space is got in steps, which reach further than what is asked for.
            assert_eq!(allocated(domain, 100, 0, 100), Err(OsError::IO));
            assert_eq!(allocated(domain, 4096, 4096, 5000), Ok(()));
            assert_eq!(allocated(domain, 0, 0, 100), Ok(()));
            assert_eq!(allocated(domain, 70_000, 0, 100), Ok(()));
        }
        assert_eq!(allocated(PersistenceDomain::PageCache, 100, 100, 200), Ok(()));
    };
    std::thread::spawn(judge).join().unwrap();
}
