//! Writing with a member out: RAID 5 of three, of which two are left.
//!
//! The limit is a loop that stores what has to be stored and nothing else: it saves nothing for the
//! case that it dies (core/array/undo.rs). What is left of a stripe decides what it does: a copy
//! where the parity is out, the sum with the other column where the column written is out,
//! read-modify-write where the other one is. A case goes through stripes of all three kinds in
//! turn.

use crate::levels::{self, FILE};
use crate::limit::{Loop, Loops, Piece};
use crate::members::Mapped;
use crate::places::{Order, Places};
use crate::plan::{ArrayPlace, LARGE_BYTES, Plan, SMALL_BYTES};
use crate::report::Row;
use crate::rounds::{Contender, measure};
use crate::subject::{Buffer, Subject, Writes};
use layout::{Geometry, Level};
use std::io;

/// The member that is out.
pub(crate) const OUT: usize = 1;
/// Bytes of a write of a whole stripe in the default chunk.
const STRIPE_BYTES: usize = 128 << 10;

/// The file of `place` is filled and `plan.region_bytes` long, and member [`OUT`] is out.
pub(crate) fn rows(plan: &Plan, place: &ArrayPlace, subject: &impl Subject) -> io::Result<Vec<Row>> {
    let geometry = levels::geometry(place)?;
    // Once more, by whoever is measured: it has every page in its page tables then.
    levels::fill(subject, plan.region_bytes);
    assert_eq!((geometry.level(), geometry.member_count()), (Level::Raid5, 3));
    let bytes = geometry.member_bytes(plan.region_bytes);
    let member = |slot: usize| (slot != OUT).then(|| Mapped::new(&place.backing(slot, FILE), bytes)).transpose();
    let members = [member(0)?, member(1)?, member(2)?];
    let cases = [
        ("write 4 KiB", SMALL_BYTES, Order::Sequential),
        ("write 4 KiB", SMALL_BYTES, Order::Random),
        ("write 128 KiB", STRIPE_BYTES, Order::Sequential),
        ("write 1 MiB", LARGE_BYTES, Order::Sequential),
    ];
    let rows = cases.map(|(what, bytes, order)| row(plan, &geometry, &members, subject, (what, bytes, order)));
    verify(plan, subject);
    Ok(rows.into())
}

fn row(
    plan: &Plan,
    geometry: &Geometry,
    members: &[Option<Mapped>; 3],
    subject: &impl Subject,
    (what, bytes, order): (&str, usize, Order),
) -> Row {
    let [own, other] = [(); 2].map(|()| Buffer::of(&levels::content(bytes)));
    let mut limit = Limit { loops: Loops::best(), geometry, members, buffer: &other, steps: Vec::new() };
    let mut ours = Writes(subject, &own);
    let calls = if bytes == SMALL_BYTES { plan.small_calls } else { plan.large_calls * (LARGE_BYTES / bytes) };
    let places = |index| Places::new(order, plan.region_bytes, bytes, index, 2);
    let times = measure(&mut [(&mut ours, places(0)), (&mut limit, places(1))], plan.rounds, calls);
    Row {
        ours_ns: Some(times.nanoseconds(0)),
        limit_ns: Some(times.nanoseconds(1)),
        limit_ratio: Some(times.ratio(0, 1)),
        ..Row::new(format!("{what} {} RAID 5 x 3, one out", order.name()))
    }
}

/// What is written is read back, from the members that are left.
fn verify(plan: &Plan, subject: &impl Subject) {
    let whole = levels::content(LARGE_BYTES);
    let mut back = vec![0; LARGE_BYTES];
    for offset in (0..plan.region_bytes).step_by(LARGE_BYTES) {
        subject.read(offset, &mut back);
        assert!(back == whole, "what the file holds at {offset} is read back with a member out");
    }
}

/// One loop over a part of a call's buffer.
struct Step {
    work: Loop,
    places: Piece,
    from: usize,
    bytes: usize,
}

/// The loops, for every call.
struct Limit<'a> {
    loops: Loops,
    geometry: &'a Geometry,
    members: &'a [Option<Mapped>; 3],
    buffer: &'a [u8],
    steps: Vec<Step>,
}

impl Limit<'_> {
    /// The steps of a call at `offset`: whole stripes, or a part of one chunk.
    fn call(&self, offset: u64) -> Vec<Step> {
        let stripe_bytes = self.geometry.stripe_bytes() as usize;
        if self.buffer.len() < stripe_bytes {
            let place = self.geometry.locate(offset);
            return self.part(place.stripe, place.column, place.within);
        }
        (0..self.buffer.len()).step_by(stripe_bytes).flat_map(|from| self.stripe(offset + from as u64, from)).collect()
    }

    /// The stripe's data and parity in the order of `[data, data, parity]`, at `within` of their
    /// chunks; None where the member is out.
    fn places(&self, stripe: u64, within: u64) -> [Option<*mut u8>; 3] {
        let at = self.geometry.member_offset(stripe) + within;
        let data = |column| self.geometry.data_slot(stripe, column, 0);
        [data(0), data(1), self.geometry.parity_slot(stripe, 0)]
            .map(|slot| self.members[slot].as_ref().map(|member| member.at(at)))
    }

    fn part(&self, stripe: u64, column: usize, within: u64) -> Vec<Step> {
        let places = self.places(stripe, within);
        let (work, [first, second]) = match (places[column], places[1 - column], places[2]) {
            (Some(data), Some(_), _) => (self.loops.copy[0], [data, data]),
            (Some(data), None, Some(parity)) => (self.loops.update, [data, parity]),
            (None, Some(other), Some(parity)) => (self.loops.update_without_member, [other, parity]),
            _ => unreachable!("one is out"),
        };
        vec![Step { work, places: [first, second, second], from: 0, bytes: self.buffer.len() }]
    }

    fn stripe(&self, offset: u64, from: usize) -> Vec<Step> {
        let bytes = self.geometry.chunk().bytes() as usize;
        let step = |work, places, from| Step { work, places, from, bytes };
        match self.places(self.geometry.stripe_of(offset), 0) {
            [Some(first), Some(second), _] => {
                let copy = self.loops.copy[0];
                vec![step(copy, [first; 3], from), step(copy, [second; 3], from + bytes)]
            }
            [Some(data), None, Some(parity)] => vec![step(self.loops.stripe_without_member[0], [data, parity, parity], from)],
            [None, Some(data), Some(parity)] => vec![step(self.loops.stripe_without_member[1], [data, parity, parity], from)],
            _ => unreachable!("one is out"),
        }
    }
}

impl Contender for Limit<'_> {
    fn prepare(&mut self, offsets: &[u64]) {
        self.steps = offsets.iter().flat_map(|&offset| self.call(offset)).collect();
    }

    fn run(&mut self, _offsets: &[u64]) {
        for step in &self.steps {
            // SAFETY: the members are mapped at the places for as many bytes, and the buffer holds
            // all parts of a call.
            unsafe { (step.work)(&step.places, self.buffer.as_ptr().add(step.from), step.bytes) };
        }
        persist::fence();
    }
}
