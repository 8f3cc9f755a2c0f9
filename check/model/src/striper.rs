//! Random operations on a striper and on a vector.

use crate::encoding::members_of;
use crate::{Rng, encoding};
use array::shares::NODE_COUNT;
use array::sums::Summing;
use array::{IoFault, Reading, Shares, Striper, absent};
use format::ReadPolicy;
use layout::Geometry;
use medium::Medium;
use units::{MemberSet, Slot};

/// A medium the model can also look into and spoil.
pub trait Member: Medium {
    /// All bytes from 0 on.
    fn load(&self, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        // SAFETY: `out` is that long.
        unsafe { self.get(0, out.as_mut_ptr(), bytes) }.expect("memory");
        out
    }

    /// Overwrites bytes at `offset`.
    fn spoil(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: `bytes` is a slice.
        unsafe { self.put(offset, bytes.as_ptr(), bytes.len()) }.expect("memory");
    }
}

impl<M: Medium> Member for M {}

/// A file on members, and what it ought to contain.
pub struct StriperModel<M> {
    geometry: Geometry,
    members: Vec<Option<M>>,
    out: MemberSet,
    /// Which copies are read; None for the lowest.
    shares: Option<Shares>,
    file: Vec<u8>,
    rng: Rng,
    name: String,
}

impl<M: Medium> StriperModel<M> {
    /// A file of `file_bytes` zeros on fresh members of `geometry.member_bytes(file_bytes)` zeros
    /// each.
    #[must_use]
    pub fn new(geometry: Geometry, members: Vec<Option<M>>, file_bytes: usize, seed: u64) -> Self {
        let (level, count, chunk) = (geometry.level(), geometry.member_count(), geometry.chunk().bytes());
        let name = format!("RAID {level}, {count} members, chunk {chunk}, {file_bytes} bytes, seed {seed}");
        Self { geometry, members, out: MemberSet::EMPTY, shares: None, file: vec![0; file_bytes], rng: Rng::new(seed), name }
    }

    /// Does `steps` random operations and looks at every member at the end and now and then.
    pub fn run(&mut self, steps: usize) {
        for step in 0..steps {
            if self.rng.one_in(20) {
                self.draw_policy();
            }
            match self.rng.below(16) {
                0..=6 => self.write(),
                7..=10 => self.read(),
                11..=12 => self.zero(),
                13 => self.drop_out(),
                14 => self.come_back(),
                _ => self.disagree(),
            }
            if step % 8 == 7 || step + 1 == steps {
                self.check_members();
            }
        }
        self.read_at(0, self.file.len());
    }

    fn with<R>(&self, operate: impl FnOnce(&Striper<'_, M>) -> Result<R, IoFault>) -> R {
        let kernels = persist::kernels();
        let out = self.out.union(absent(&self.members));
        let striper = Striper {
            geometry: &self.geometry,
            members: &self.members,
            out,
            turn: self.file.len() as u64,
            reading: self.shares.as_ref().map_or(Reading::LOWEST, Shares::reading),
            kernels,
            undo: None,
            sums: Summing::Off,
        };
        operate(&striper).unwrap_or_else(|fault| panic!("{}: {fault:?} with {:?} out", self.name, self.out))
    }

    /// Other copies are read from now on. Whichever they are, the bytes are the same.
    fn draw_policy(&mut self) {
        let policies = ReadPolicy::ALL;
        let Some(policy) = policies.get(self.rng.below(policies.len() as u64 + 1) as usize) else {
            self.shares = None;
            return;
        };
        let member_count = self.geometry.member_count();
        let mut some = || MemberSet::from_bits((self.rng.below(1 << 32) & self.rng.below(1 << 32)) as u32);
        let (mostly, near) = (some(), [(); NODE_COUNT].map(|()| some()));
        self.shares.get_or_insert_default().set(*policy, mostly, &near, member_count);
    }

    /// A range: anything, something short, or whole chunks or stripes give or take a byte.
    fn range(&mut self) -> (usize, usize) {
        let file_bytes = self.file.len() as u64;
        let unit = match self.rng.below(3) {
            0 => 1,
            1 => self.geometry.chunk().bytes().min(file_bytes),
            _ => self.geometry.stripe_bytes().min(file_bytes),
        };
        let near = |rng: &mut Rng, at: u64| (at * unit + rng.below(3)).saturating_sub(1);
        let units = file_bytes / unit + 1;
        let offset_units = self.rng.below(units);
        let offset = near(&mut self.rng, offset_units).min(file_bytes - 1);
        let longest = if self.rng.one_in(2) { units } else { units.min(300) };
        let length_units = self.rng.below(longest) + 1;
        let bytes = near(&mut self.rng, length_units).clamp(1, file_bytes - offset);
        (offset as usize, bytes as usize)
    }

    fn write(&mut self) {
        let (offset, bytes) = self.range();
        let misalignment = self.rng.below(65) as usize;
        let mut data = vec![0; misalignment + bytes];
        self.rng.fill(&mut data);
        let data = &data[misalignment..];
        // SAFETY: `data` is a slice.
        self.with(|striper| unsafe { striper.write(offset as u64, data.as_ptr(), bytes) });
        self.file[offset..offset + bytes].copy_from_slice(data);
    }

    fn read(&mut self) {
        let (offset, bytes) = self.range();
        self.read_at(offset, bytes);
    }

    fn read_at(&self, offset: usize, bytes: usize) {
        let mut data = vec![0xa5; bytes + 2];
        // SAFETY: `data` is a byte longer at both ends.
        self.with(|striper| unsafe { striper.read(offset as u64, data.as_mut_ptr().add(1), bytes) });
        let right = data[1..=bytes] == self.file[offset..offset + bytes] && data[0] == 0xa5 && data[bytes + 1] == 0xa5;
        assert!(right, "{}: read {offset}+{bytes} with {:?} out", self.name, self.out);
    }

    fn zero(&mut self) {
        let (offset, bytes) = self.range();
        self.with(|striper| striper.zero(offset as u64, bytes as u64));
        self.file[offset..offset + bytes].fill(0);
    }

    /// A member goes away, if the level bears it; what it held is overwritten.
    fn drop_out(&mut self) {
        let slot = self.rng.below(self.geometry.member_count() as u64) as Slot;
        if self.geometry.survives(self.out.with(slot)) {
            self.out = self.out.with(slot);
            let mut garbage = vec![0; self.member_bytes()];
            self.rng.fill(&mut garbage);
            self.member(slot).spoil(0, &garbage);
        }
    }

    /// All members come back, with what they ought to hold.
    fn come_back(&mut self) {
        let right = members_of(&self.geometry, &self.file);
        self.out.iter().for_each(|slot| self.member(slot).spoil(0, &right[slot]));
        self.out = MemberSet::EMPTY;
    }

    /// With all members in, redundancy is spoilt: verify has to count it and resync to mend it.
    fn disagree(&mut self) {
        self.come_back();
        let (offset, bytes) = self.range();
        let verify = |model: &Self| model.with(|striper| striper.verify(offset as u64, bytes as u64));
        assert_eq!(verify(self), 0, "{}: verify {offset}+{bytes}", self.name);
        if !self.has_redundancy() {
            return;
        }
        let at = offset + self.rng.below(bytes as u64) as usize;
        let place = self.geometry.locate(at as u64);
        let member_offset = self.geometry.member_offset(place.stripe) + place.within;
        let redundant = self.redundant_slots(at as u64);
        let slot = redundant[self.rng.below(redundant.len() as u64) as usize];
        let old = self.member(slot).load(self.member_bytes())[member_offset as usize];
        let flip = 1 + self.rng.below(255) as u8;
        self.member(slot).spoil(member_offset, &[old ^ flip]);
        assert_eq!(verify(self), 1, "{}: verify {offset}+{bytes} with {at} spoilt on {slot}", self.name);
        self.with(|striper| striper.resync(offset as u64, bytes as u64));
        assert_eq!(verify(self), 0, "{}: verify {offset}+{bytes} after resync", self.name);
        // The other way round: data stored without its redundancy, as a crash leaves it.
        let data_slot = self.geometry.data_slot(place.stripe, place.column, 0);
        self.member(data_slot).spoil(member_offset, &[self.file[at] ^ flip]);
        self.file[at] ^= flip;
        assert_eq!(verify(self), redundant.len() as u64, "{}: verify with data {at} changed", self.name);
        self.with(|striper| striper.resync(at as u64, 1));
        assert_eq!(verify(self), 0, "{}: resync of {at}", self.name);
    }

    fn has_redundancy(&self) -> bool {
        self.geometry.copy_count() > 1 || self.geometry.level().parity_count() > 0
    }

    /// The members with copies (but the first) or parities of a file byte.
    fn redundant_slots(&self, offset: u64) -> Vec<Slot> {
        let place = self.geometry.locate(offset);
        let copies = (1..self.geometry.copy_count()).map(|copy| self.geometry.data_slot(place.stripe, place.column, copy));
        let parities = (0..self.geometry.level().parity_count()).map(|which| self.geometry.parity_slot(place.stripe, which));
        copies.chain(parities).collect()
    }

    fn member(&self, slot: Slot) -> &M {
        self.members[slot].as_ref().expect("all members are open")
    }

    fn member_bytes(&self) -> usize {
        self.geometry.member_bytes(self.file.len() as u64) as usize
    }

    /// Every member that is in holds what the definition says.
    pub fn check_members(&self) {
        let right = encoding::members_of(&self.geometry, &self.file);
        for (slot, right) in right.iter().enumerate().filter(|(slot, _)| !self.out.contains(*slot)) {
            let found = self.member(slot).load(self.member_bytes());
            let wrong = found.iter().zip(right).position(|(found, right)| found != right);
            assert_eq!(wrong, None, "{}: first wrong byte on member {slot}, {:?} out", self.name, self.out);
        }
    }
}
