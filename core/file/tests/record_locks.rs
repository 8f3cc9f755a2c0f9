//! Record locks of the process (fcntl(2) F_SETLK): the kernel takes them away when the process closes
//! any descriptor of the backing file, so the library closes none that it need not.

mod common;

use common::{TestArray, read, write};
use dax::Access;
use layout::Level;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use sys::rustix::fs::{FlockOperation, fcntl_lock};
use sys::rustix::io::{FdFlags, fcntl_getfd};

/// Tells whether this process has a record lock on a file.
fn has_lock(file: &File) -> bool {
    let (inode, own) = (format!(":{}", file.metadata().unwrap().ino()), std::process::id().to_string());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).any(|words| {
        words.get(1) == Some(&"POSIX")
            && words.get(4) == Some(&&own[..])
            && words.get(5).is_some_and(|place| place.ends_with(&inode))
    })
}

#[test]
fn a_file_that_is_locked_and_open_for_reading_stays_locked_when_it_is_opened_for_writing() {
    for (level, member_count) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        let array = TestArray::new(level, member_count, 4096);
        let attribute = array.create("f");
        write(&array.open("f", attribute), 0, b"abcd");
        let files = array.files;
        let reader = files.open(attribute, false, || Ok((array.backing(files, "f"), Access::ReadOnly))).unwrap();
        // The program's descriptor.
        let anchor = File::open(array.member_path(0).join("data/f")).unwrap();
        reader.note_process_lock().unwrap();
        fcntl_lock(&anchor, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(has_lock(&anchor), "{level:?}");
        let writer = array.open("f", attribute);
        assert!(writer.is_writable() && !reader.is_writable(), "{level:?}");
        assert!(has_lock(&anchor), "{level:?}: opened for writing");
        write(&writer, 2, b"efgh");
        writer.truncate(5).unwrap();
        assert_eq!(read(&reader, 0, 10), b"abefg", "{level:?}");
        // As when a mapping ends that was made before the file was opened for writing.
        drop(reader);
        assert!(has_lock(&anchor), "{level:?}: no longer used as it was open for reading");
        let again = writer.clone();
        drop(writer);
        assert!(has_lock(&anchor), "{level:?}: open still");
        // The program closes its descriptor.
        drop(anchor);
        drop(again);
        assert_eq!(read(&array.open("f", attribute), 0, 10), b"abefg", "{level:?}");
    }
}

#[test]
fn the_program_after_an_exec_goes_on_with_all_descriptors_of_a_locked_file_until_it_is_closed() {
    let array = TestArray::new(Level::Raid5, 3, 4096);
    let attribute = array.create("f");
    write(&array.open("f", attribute), 0, b"abcd");
    let place = |slot| array.member_path(slot).join("data/f");
    let reading = || (0..3).map(|slot| Some(OwnedFd::from(File::open(place(slot)).unwrap()))).collect();
    let reader = array.files.open(attribute, false, || Ok((reading(), Access::ReadOnly))).unwrap();
    let anchor = File::open(place(0)).unwrap();
    reader.note_process_lock().unwrap();
    fcntl_lock(&anchor, FlockOperation::NonBlockingLockShared).unwrap();
    let writer = array.open("f", attribute);
    let kept = array.files.keep_locks(&[anchor.as_fd()]);
    // SAFETY: the files are open.
    let borrow = |fd: &i32| unsafe { BorrowedFd::borrow_raw(*fd) };
    let stay_open = |wanted| kept.iter().map(borrow).all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC) != wanted);
    assert!(kept.len() == 2 && stay_open(true), "of both sets, that of the backing file with the lock: {kept:?}");
    // What the next program's library finds.
    let next = array.again();
    for fd in kept.iter().map(borrow).map(|fd| fd.try_clone_to_owned().unwrap()) {
        sys::high_fd::keep(fd.as_raw_fd());
        next.take_over(fd);
    }
    let (identity, other) = (anchor.metadata().unwrap(), File::open(place(1)).unwrap().metadata().unwrap());
    let taken = |for_writing, of: &std::fs::Metadata| next.taken_over(for_writing, || Some([of.dev(), of.ino()]));
    assert!(taken(false, &other).is_none());
    let Some((fd, true)) = taken(false, &identity) else { panic!("the one that can write comes first") };
    assert!(taken(true, &identity).is_none() && next.has_taken_over(), "the one that can only read is left");
    let open = |slot| File::options().read(true).write(true).open(place(slot)).unwrap().into();
    let mut backing = Some(vec![Some(fd), Some(open(1)), Some(open(2))]);
    let file = next.open(attribute, true, || Ok((backing.take().unwrap(), Access::ReadWrite))).unwrap();
    file.note_process_lock().unwrap();
    assert_eq!(read(&file, 0, 10), b"abcd");
    assert!(has_lock(&anchor) && next.has_taken_over());
    // The next exec.
    let again = next.keep_locks(&[anchor.as_fd()]);
    assert_eq!(again.len(), 2, "what is left, too: {again:?}");
    next.end_keeping(&again);
    assert!(again.iter().map(borrow).all(|fd| fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
    assert!(has_lock(&anchor));
    drop(file);
    assert!(!next.has_taken_over(), "the last close closes what is left");
    // The exec of the first program fails.
    array.files.end_keeping(&kept);
    assert!(stay_open(false));
    drop((reader, writer));
}
