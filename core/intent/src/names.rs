//! The log of names in memory: where the next record goes, and what a crash has left of it.
//!
//! A record is stored on every member in use and fenced before the first member's tree is changed.
//! Changes of names are made one at a time, so there is one writer; where it is in the ring is the
//! caller's to remember (the runtime segment).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use format::{NAME_RECORD_ALIGN, NAME_RECORD_BYTES_MAX, NAMES_RING_BYTES, NameRecord, TABLE_HEADER_BYTES};
use medium::Medium;
use persist::Flush;
use persist::fault::guard;
use units::{MemberSet, Slot};

/// The logs of one array, by member.
pub struct NameLog<M> {
    files: Vec<Option<M>>,
    /// Where each ring lies in memory; 0 if there is none.
    bases: Vec<usize>,
    flush: Flush,
}

/// A record found in the ring: where it lies, and its bytes.
pub struct Found {
    /// Offset in the ring.
    pub offset: usize,
    bytes: Vec<u8>,
}

impl Found {
    /// What it says.
    #[must_use]
    pub fn record(&self) -> Option<NameRecord<'_>> {
        NameRecord::decode(&self.bytes)
    }
}

/// The whole records of a log by sequence.
pub type Records = BTreeMap<u64, Found>;

impl<M: Medium> NameLog<M> {
    /// The logs in these files; None for a member that is missing or has none. `flush` is what the
    /// members' stores need.
    #[must_use]
    pub fn new(files: Vec<Option<M>>, flush: Flush) -> Self {
        let base = |file: &Option<M>| {
            let span = file.as_ref()?.span(TABLE_HEADER_BYTES as u64)?;
            (span.bytes >= NAMES_RING_BYTES).then_some(span.start.as_ptr() as usize)
        };
        let bases = files.iter().map(|file| base(file).unwrap_or(0)).collect();
        Self { files, bases, flush }
    }

    /// The member's log file.
    pub fn file(&self, slot: Slot) -> Option<&M> {
        self.files.get(slot)?.as_ref()
    }

    /// Where a record goes that comes after one that ends at `end`, which any process may have
    /// stored.
    #[must_use]
    pub fn place(end: u64, record: &NameRecord<'_>) -> u64 {
        let last = (NAMES_RING_BYTES as u64).checked_sub(record.ring_bytes() as u64);
        if last.is_none_or(|last| end > last) { 0 } else { end / NAME_RECORD_ALIGN as u64 * NAME_RECORD_ALIGN as u64 }
    }

    /// Stores a record at `offset` of the ring on `members`, and fences. Returns the members whose
    /// memory failed.
    pub fn store(&self, members: MemberSet, offset: u64, record: &NameRecord<'_>) -> MemberSet {
        let head = record.encode_head();
        let parts = [&head[..], record.path, record.to];
        let failed = members.iter().filter(|&slot| !self.store_on(slot, offset as usize, &parts)).collect();
        persist::fence();
        failed
    }

    fn store_on(&self, slot: Slot, offset: usize, parts: &[&[u8]]) -> bool {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let base = self.bases[slot];
        if base == 0 || offset.checked_add(bytes).is_none_or(|end| end > NAMES_RING_BYTES) {
            return true;
        }
        let start = (base + offset) as *mut u8;
        let store = || {
            let mut to = start;
            for part in parts {
                // SAFETY: within the ring (checked above), and nobody else stores there.
                unsafe {
                    to.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    to = to.add(part.len());
                }
            }
            if self.flush == Flush::Needed {
                // SAFETY: as above.
                unsafe { persist::write_back(start, bytes) };
            }
        };
        // SAFETY: the closure owns nothing.
        unsafe { guard(store) }.is_ok()
    }

    /// The whole records on `members`. One that any member has as void is void.
    #[must_use]
    pub fn read(&self, members: MemberSet) -> Records {
        let mut records = Records::new();
        let mut ring = alloc::vec![0u8; NAMES_RING_BYTES];
        for slot in members.iter() {
            let (base, out) = (self.bases[slot], ring.as_mut_ptr());
            // SAFETY: both are as long as the ring; the closure owns nothing.
            if base == 0 || unsafe { guard(|| out.copy_from_nonoverlapping(base as *const u8, NAMES_RING_BYTES)) }.is_err() {
                continue;
            }
            let mut at = 0;
            while at < NAMES_RING_BYTES {
                let end = NAMES_RING_BYTES.min(at + NAME_RECORD_BYTES_MAX);
                let Some(record) = NameRecord::decode(&ring[at..end]) else {
                    at += NAME_RECORD_ALIGN;
                    continue;
                };
                let bytes = record.ring_bytes();
                if record.void || !records.contains_key(&record.sequence) {
                    records.insert(
                        record.sequence,
                        Found { offset: at, bytes: ring[at..(at + bytes).min(NAMES_RING_BYTES)].to_vec() },
                    );
                }
                at += bytes;
            }
        }
        records
    }
}
