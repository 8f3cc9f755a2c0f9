//! Counts the requests that a thread of the mount has answered, as the library does in programs: in
//! a counter cell of the runtime segment ([`array::runtime::counters`]).

use crate::{
    session::{Answer, Session},
    wire::{self, Header, ReadIn, WriteIn, op},
};
use array::{
    Spread, Way,
    runtime::counters::{CounterCell, Kind},
    sampling,
};
use namespace::Node;
use sys::rustix::thread::gettid;

/// About one of so many requests of a thread is timed.
const GAP: u32 = 16;

/// What one thread counts.
#[derive(Default)]
pub(crate) struct Counting<'a> {
    /// None before the first request, and if there was no free cell.
    cell: Option<&'a CounterCell>,
    /// How many requests this thread has begun to answer.
    begun: u32,
}

impl<'a> Counting<'a> {
    /// A request comes. Returns the time if it is one that is timed.
    pub(crate) fn begin(&mut self, session: &'a Session) -> Option<u64> {
        if self.begun == 0 {
            self.cell = session.array().runtime().claim_counters(gettid().as_raw_nonzero().get() as u32);
        }
        let is_timed = sampling::mixed(self.begun.into()).is_multiple_of(GAP);
        self.begun = self.begun.wrapping_add(1).max(1);
        is_timed.then(persist::timestamp_in_order)
    }

    /// It was answered without an error.
    pub(crate) fn end(&self, session: &Session, header: &Header, body: &[u8], answer: &Answer, begun: Option<u64>) {
        let Some(counts) = self.cell.map(CounterCell::counts) else { return };
        match header.operation {
            op::READ => {
                counts.read(answer.len());
                if let (Some(begun), Ok((asked, _))) = (begun, wire::split::<ReadIn>(body)) {
                    self.note(session, asked.handle, Way::Read, asked.offset, answer.len(), begun);
                }
            }
            op::WRITE => {
                let bytes = answer.first_word().unwrap_or(0) as usize;
                counts.write(bytes);
                if let (Some(begun), Ok((asked, _))) = (begun, wire::split::<WriteIn>(body)) {
                    self.note(session, asked.handle, Way::Write, asked.offset, bytes, begun);
                }
            }
            op::COPY_FILE_RANGE => {
                let bytes = answer.first_word().unwrap_or(0) as usize;
                counts.read(bytes);
                counts.write(bytes);
            }
            op::FSYNC | op::FSYNCDIR => counts.call(Kind::Sync),
            // Of these no program knows.
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::INIT | op::DESTROY => {}
            _ => counts.call(Kind::Other),
        }
    }

    /// Notes how long a request took, and what it moved on which member.
    fn note(&self, session: &Session, handle: u64, way: Way, offset: u64, bytes: usize, begun: u64) {
        let ticks = persist::timestamp_in_order().wrapping_sub(begun);
        self.cell.inspect(|cell| cell.note_ticks(way, ticks));
        let Ok(opened) = session.handles.get(handle) else { return };
        if let Node::File(file) = &opened.node {
            let spread = Spread { geometry: file.geometry(), turn: file.number(), way, offset, bytes: bytes as u64 };
            session.array().runtime().note_spread(self.begun as usize, &spread, GAP.into());
        }
    }
}
