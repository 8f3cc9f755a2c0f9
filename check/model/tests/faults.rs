//! Memory that fails under the striper: a member's, the program's, and more members than the level
//! bears.

use array::sums::Summing;
use array::{IoFault, Reading, Striper, absent};
use cxlraid_model::{Face, Member, Memory, Rng, encoding, mapped_files};
use dax::Backing;
use layout::{Geometry, Level};
use medium::{Medium, Span};
use sys::OsError;
use sys::rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use units::{ChunkBytes, MemberSet};

const FILE_BYTES: usize = 300_000;

fn geometry(level: Level) -> Geometry {
    let member_count = if level == Level::Raid0 { 3 } else { level.members_min() + 2 };
    Geometry::new(level, member_count, ChunkBytes::new(4096).unwrap()).unwrap()
}

fn striper<'a, M>(geometry: &'a Geometry, members: &'a [Option<M>], out: MemberSet) -> Striper<'a, M> {
    persist::fault::install_handlers().unwrap();
    Striper {
        geometry,
        members,
        out: out.union(absent(members)),
        turn: 0,
        reading: Reading::IN_TURN,
        kernels: persist::kernels(),
        undo: None,
        sums: Summing::Off,
    }
}

fn files(geometry: &Geometry) -> Vec<Option<Backing>> {
    mapped_files(geometry.member_count(), geometry.member_bytes(FILE_BYTES as u64))
}

/// Two pages of which the second cannot be touched.
struct HalfBuffer(*mut u8);

impl HalfBuffer {
    fn new() -> Self {
        // SAFETY: fresh memory; the second page of it is taken away.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).unwrap();
            mprotect(base.byte_add(4096), 4096, MprotectFlags::empty()).unwrap();
            Self(base.cast())
        }
    }
}

impl Drop for HalfBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { munmap(self.0.cast(), 8192) }.unwrap();
    }
}

#[test]
fn a_bad_buffer_is_found_before_anything_is_stored() {
    let mut data = vec![0; FILE_BYTES];
    Rng::new(1).fill(&mut data);
    for level in Level::ALL {
        let geometry = geometry(level);
        let members = files(&geometry);
        let striper = striper(&geometry, &members, MemberSet::EMPTY);
        // SAFETY: `data` is a vector; the bad buffer is what is tested.
        unsafe {
            striper.write(0, data.as_ptr(), data.len()).unwrap();
            let bad = HalfBuffer::new();
            assert_eq!(striper.write(1000, bad.0.add(100), 6000), Err(IoFault::BadAddress), "RAID {level}");
            assert_eq!(striper.write(1000, std::ptr::null(), 10), Err(IoFault::BadAddress));
            assert_eq!(striper.read(1000, bad.0.add(100), 6000), Err(IoFault::BadAddress), "RAID {level}");
            assert_eq!(striper.write(1000, bad.0.add(8192), 0), Ok(()));
        }
        for (slot, right) in encoding::members_of(&geometry, &data).iter().enumerate() {
            assert!(members[slot].as_ref().unwrap().load(right.len()) == *right, "RAID {level}, member {slot}");
        }
    }
}

#[test]
fn a_member_that_faults_is_named_and_resync_mends_what_is_left() {
    for level in Level::ALL {
        let geometry = geometry(level);
        let mut data = vec![7; FILE_BYTES];
        for slot in 0..geometry.member_count() {
            let members = files(&geometry);
            let whole = striper(&geometry, &members, MemberSet::EMPTY);
            // SAFETY: `data` is a vector; so below.
            unsafe { whole.write(0, data.as_ptr(), data.len()) }.unwrap();
            members[slot].as_ref().unwrap().set_len(0).unwrap();
            data.fill(9);
            // SAFETY: as above.
            let fault = unsafe { whole.write(0, data.as_ptr(), data.len()) };
            assert_eq!(fault, Err(IoFault::Member(slot)), "RAID {level}");
            let degraded = striper(&geometry, &members, MemberSet::EMPTY.with(slot));
            if geometry.survives(degraded.out) {
                // The caller does it again without the member.
                // SAFETY: as above.
                unsafe { degraded.write(0, data.as_ptr(), data.len()) }.unwrap();
                let mut back = vec![0; FILE_BYTES];
                // SAFETY: `back` is a vector.
                unsafe { degraded.read(0, back.as_mut_ptr(), back.len()) }.unwrap();
                assert!(back == data, "RAID {level} without {slot}");
            }
            // The member comes back as zeros; the data is written once more, and everything is
            // right again.
            let bytes = geometry.member_bytes(FILE_BYTES as u64);
            members[slot].as_ref().unwrap().set_len(bytes).unwrap();
            // SAFETY: as above.
            unsafe { whole.write(0, data.as_ptr(), data.len()) }.unwrap();
            whole.resync(0, FILE_BYTES as u64).unwrap();
            assert_eq!(whole.verify(0, FILE_BYTES as u64), Ok(0), "RAID {level}");
        }
    }
}

/// A backing file that cannot be mapped, and whose file system may answer every call with an error.
struct Unmapped {
    memory: Memory,
    error: Option<OsError>,
}

impl Unmapped {
    fn answer(&self) -> Result<(), OsError> {
        self.error.map_or(Ok(()), Err)
    }
}

impl Medium for Unmapped {
    fn span(&self, _: u64) -> Option<Span> {
        None
    }

    unsafe fn get(&self, offset: u64, dst: *mut u8, bytes: usize) -> Result<(), OsError> {
        self.answer()?;
        // SAFETY: the caller's promise.
        unsafe { self.memory.get(offset, dst, bytes) }
    }

    unsafe fn put(&self, offset: u64, src: *const u8, bytes: usize) -> Result<(), OsError> {
        self.answer()?;
        // SAFETY: the caller's promise.
        unsafe { self.memory.put(offset, src, bytes) }
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.answer().and_then(|()| self.memory.allocate(offset, bytes))
    }

    fn set_len(&self, bytes: u64) -> Result<(), OsError> {
        self.memory.set_len(bytes)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.answer().and_then(|()| self.memory.punch(offset, bytes))
    }

    fn persist(&self, offset: u64, bytes: u64) -> Result<(), OsError> {
        self.answer().and_then(|()| self.memory.persist(offset, bytes))
    }

    fn owns(&self, address: usize) -> bool {
        self.memory.owns(address)
    }
}

/// A file system that has been shut down refuses mappings, so it is met by read(2) and write(2) as
/// well as by faults.
#[test]
fn a_member_whose_calls_fail_is_named_and_lack_of_space_is_not_its_failure() {
    for level in Level::ALL {
        let geometry = geometry(level);
        let bytes = geometry.member_bytes(FILE_BYTES as u64);
        let unmapped = || Some(Unmapped { memory: Memory::new(bytes, Face::Bytes), error: None });
        let mut data = vec![0; FILE_BYTES];
        Rng::new(3).fill(&mut data);
        for slot in 0..geometry.member_count() {
            let mut members: Vec<_> = (0..geometry.member_count()).map(|_| unmapped()).collect();
            for (error, fault) in [(OsError::IO, IoFault::Member(slot)), (OsError::NOSPC, IoFault::Os(OsError::NOSPC))] {
                members[slot].as_mut().unwrap().error = None;
                // SAFETY: `data` is a vector; so below.
                unsafe { striper(&geometry, &members, MemberSet::EMPTY).write(0, data.as_ptr(), data.len()) }.unwrap();
                members[slot].as_mut().unwrap().error = Some(error);
                let whole = striper(&geometry, &members, MemberSet::EMPTY);
                let mut back = vec![0; FILE_BYTES];
                // SAFETY: as above; `back` is a vector.
                let read = unsafe { whole.read(0, back.as_mut_ptr(), back.len()) };
                // A read need not ask every member; what it has got without this one is right.
                assert!(read == Err(fault) || read == Ok(()) && back == data, "RAID {level}: {read:?} of member {slot}");
                assert_eq!(whole.zero(0, FILE_BYTES as u64), Err(fault), "RAID {level}");
                // SAFETY: as above.
                assert_eq!(unsafe { whole.write(0, data.as_ptr(), data.len()) }, Err(fault), "RAID {level}");
            }
            let degraded = striper(&geometry, &members, MemberSet::EMPTY.with(slot));
            if geometry.survives(degraded.out) {
                let mut back = vec![0; FILE_BYTES];
                // SAFETY: as above.
                unsafe {
                    degraded.write(0, data.as_ptr(), data.len()).unwrap();
                    degraded.read(0, back.as_mut_ptr(), back.len()).unwrap();
                }
                assert!(back == data, "RAID {level} without {slot}");
            }
        }
    }
}

#[test]
fn more_failures_than_the_level_bears_are_lost_and_none_fewer() {
    for level in Level::ALL {
        for face in [Face::Mapped, Face::Bytes] {
            let geometry = geometry(level);
            let bytes = geometry.member_bytes(FILE_BYTES as u64);
            let members: Vec<_> = (0..geometry.member_count()).map(|_| Some(Memory::new(bytes, face))).collect();
            let mut data = vec![3; FILE_BYTES];
            for bits in 0..1 << geometry.member_count() {
                let out = MemberSet::from_bits(bits);
                let striper = striper(&geometry, &members, out);
                let right = if geometry.survives(out) { Ok(()) } else { Err(IoFault::Lost) };
                // SAFETY: `data` is a vector; so below.
                let read = unsafe { striper.read(0, data.as_mut_ptr(), data.len()) };
                // SAFETY: as above.
                let write = unsafe { striper.write(0, data.as_ptr(), data.len()) };
                let zero = striper.zero(0, FILE_BYTES as u64);
                assert_eq!([read, write, zero], [right; 3], "RAID {level} {face:?} without {out:?}");
            }
        }
    }
}

#[test]
fn members_that_are_not_open_count_as_out() {
    let geometry = geometry(Level::Raid6);
    let bytes = geometry.member_bytes(FILE_BYTES as u64);
    let mut members: Vec<_> = (0..geometry.member_count()).map(|_| Some(Memory::new(bytes, Face::Mapped))).collect();
    (members[0], members[3]) = (None, None);
    let striper = striper(&geometry, &members, MemberSet::EMPTY);
    let data: Vec<u8> = (0..FILE_BYTES).map(|at| (at % 251) as u8).collect();
    let mut back = vec![0; FILE_BYTES];
    // SAFETY: vectors.
    unsafe {
        striper.write(0, data.as_ptr(), data.len()).unwrap();
        striper.read(0, back.as_mut_ptr(), back.len()).unwrap();
    }
    assert!(back == data);
}

/// RAID 6 with one data chunk out and P and Q that disagree, as a crash leaves them: P is believed.
#[test]
fn resync_of_a_degraded_raid6_makes_q_agree_with_p() {
    let geometry = geometry(Level::Raid6);
    let members = files(&geometry);
    let data = vec![5; FILE_BYTES];
    let whole = striper(&geometry, &members, MemberSet::EMPTY);
    // SAFETY: a vector.
    unsafe { whole.write(0, data.as_ptr(), data.len()) }.unwrap();
    let [out, q] = [geometry.data_slot(0, 1, 0), geometry.parity_slot(0, 1)];
    members[q].as_ref().unwrap().spoil(10, b"wrong");
    let degraded = striper(&geometry, &members, MemberSet::EMPTY.with(out));
    assert_eq!(degraded.verify(0, 4096), Ok(5));
    degraded.resync(0, 4096).unwrap();
    assert_eq!(degraded.verify(0, 4096), Ok(0));
    assert_eq!(whole.verify(0, FILE_BYTES as u64), Ok(0));
}
