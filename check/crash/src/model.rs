//! What may be found after a crash: the promises of the engine, as a check of a recovered array
//! against what the program knows.
//!
//! What is promised, without a journal (docs/crash-consistency.md has the reasons):
//! - An operation that has returned is there. One that has not begun is not.
//! - Of a change of names or attributes under way, all or nothing is there, on every member alike.
//! - Of a write under way each byte is old or new; each aligned 8-byte word that it covers is
//!   whole. The size is old or new, and if it is new, all bytes of the write are. So for punching a
//!   hole. A file being cut is as before or cut; one being lengthened ends in zeros.
//! - What was stored through a mapping is old or new by the word until msync or munmap has
//!   returned, then it is there.
//! - If a member is lost in the very crash, stripes with parity that were being written may lose
//!   other bytes of theirs (the write hole).

use crate::case::Shape;
use crate::workload::{Operation, Workload, afterwards, content};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    Directory(Attributes),
    Symlink(String),
    /// A file by its number: names with the same number are links to it.
    File(usize),
}

/// What users see of a file or directory besides what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) note: Option<String>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    pub(crate) attributes: Attributes,
}

/// All names and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct World {
    pub(crate) names: BTreeMap<String, Entry>,
    pub(crate) files: Vec<File>,
}

/// How far a run had come when it ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Operations that have returned, in that order, with their values.
    pub(crate) done: Vec<(usize, u64)>,
    /// Operations that have begun and not returned.
    pub(crate) under_way: Vec<usize>,
    /// Of those in `done` the ones that a crash has cut short, before the recovery that is
    /// recorded.
    pub(crate) cut_short: Vec<usize>,
    /// What a recovery from there has shown: from then on nothing else.
    pub(crate) shown: Option<Shown>,
    /// Members whose medium has lost the journal in the crash, one bit each.
    pub(crate) journal_lost: u32,
}

/// What a recovery has told the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Shown {
    /// It has read everything.
    All(World),
    /// It has only asked how long files are, by their names.
    Lengths(BTreeMap<String, u64>),
}

impl Progress {
    /// The same once a recovery from there is over.
    pub(crate) fn recovered(self, shown: Option<Shown>) -> Self {
        if let Some(Shown::All(_)) = shown {
            // Nothing is under way any more: it is there or not.
            let done = self.done.into_iter().chain(self.under_way.iter().map(|&index| (index, 0))).collect();
            return Self { done, under_way: Vec::new(), cut_short: self.under_way, shown, ..self };
        }
        Self { shown, ..self }
    }
}

impl World {
    /// Does an operation that returned `value`.
    pub(crate) fn apply(&mut self, operation: &Operation, value: u64) {
        let attributes = |mode| Attributes { mode, note: None };
        match *operation {
            Operation::Create(name) => {
                self.files.push(File { bytes: Vec::new(), attributes: attributes(0o644) });
                self.names.insert(name.to_owned(), Entry::File(self.files.len() - 1));
            }
            Operation::Write { name, at, bytes, seed } => self.store(name, at, &content(seed, bytes)),
            Operation::Append { name, bytes, seed } => self.store(name, value - bytes, &content(seed, bytes)),
            Operation::Truncate { name, bytes } => self.bytes_of(name).resize(bytes as usize, 0),
            Operation::Punch { name, at, bytes } => {
                let file = self.bytes_of(name);
                let end = ((at + bytes) as usize).min(file.len());
                file[at as usize..end].fill(0);
            }
            Operation::Allocate { name, at, bytes } => {
                let file = self.bytes_of(name);
                file.resize(file.len().max((at + bytes) as usize), 0);
            }
            // A mapping makes no file longer: the caller has left out what lies behind the end.
            Operation::Store { name, at, bytes, seed } if bytes > 0 => self.store(name, at, &content(seed, bytes)),
            Operation::Sync(_)
            | Operation::Close(_)
            | Operation::Fail(_)
            | Operation::TakeOut(_)
            | Operation::ReAdd(_)
            | Operation::Map(_)
            | Operation::Store { .. }
            | Operation::Msync(_)
            | Operation::Unmap(_) => {}
            Operation::Mkdir(name) => _ = self.names.insert(name.to_owned(), Entry::Directory(attributes(0o755))),
            Operation::Symlink { target, name } => _ = self.names.insert(name.to_owned(), Entry::Symlink(target.to_owned())),
            Operation::Link { from, to } => _ = self.names.insert(to.to_owned(), self.names[from].clone()),
            Operation::Rename { from, to } => self.rename(from, to),
            Operation::Exchange { one, other } => {
                let (first, second) = (self.names[one].clone(), self.names[other].clone());
                self.names.insert(one.to_owned(), second);
                self.names.insert(other.to_owned(), first);
            }
            Operation::Unlink(name) | Operation::Rmdir(name) => _ = self.names.remove(name),
            Operation::Chmod { name, mode } => self.attributes_of(name).mode = mode,
            Operation::Note { name, value } => {
                self.attributes_of(name).note = Some(value.to_owned()).filter(|value| !value.is_empty());
            }
        }
    }

    fn number(&self, name: &str) -> usize {
        match self.names.get(name) {
            Some(&Entry::File(number)) => number,
            _ => panic!("the workload uses {name}, which is no file"),
        }
    }

    fn bytes_of(&mut self, name: &str) -> &mut Vec<u8> {
        let number = self.number(name);
        &mut self.files[number].bytes
    }

    fn attributes_of(&mut self, name: &str) -> &mut Attributes {
        match self.names.get_mut(name) {
            Some(&mut Entry::File(number)) => &mut self.files[number].attributes,
            Some(Entry::Directory(attributes)) => attributes,
            _ => panic!("the workload changes {name}, which has no attributes"),
        }
    }

    fn store(&mut self, name: &str, at: u64, data: &[u8]) {
        let (file, at) = (self.bytes_of(name), at as usize);
        file.resize(file.len().max(at + data.len()), 0);
        file[at..at + data.len()].copy_from_slice(data);
    }

    /// A directory takes along what is below it; two names of one file both stay.
    fn rename(&mut self, from: &str, to: &str) {
        if matches!(self.names[from], Entry::File(_)) && self.names.get(to) == self.names.get(from) {
            return;
        }
        let below = format!("{from}/");
        let moved: Vec<String> = self.names.keys().filter(|name| *name == from || name.starts_with(&below)).cloned().collect();
        for name in moved {
            if let Some(entry) = self.names.remove(&name) {
                self.names.insert(format!("{to}{}", &name[from.len()..]), entry);
            }
        }
    }
}

/// What a workload promises at any point of it.
pub(crate) struct Model {
    /// All recorded operations by their numbers, with those that follow a recovery.
    pub(crate) operations: Vec<Operation>,
    /// How many of them come before it.
    first_afterwards: usize,
    start: World,
    shape: Shape,
    /// Whether several threads are at work; then files they append to begin empty.
    concurrent: bool,
}

impl Model {
    /// The model of a run, or of the recovery from a crash in it that has `shown` something.
    pub(crate) fn new(workload: &Workload, shape: Shape, shown: Option<&Shown>) -> Self {
        let mut start = World::default();
        for operation in &workload.before {
            let value = start.value_of(operation);
            start.apply(operation, value);
        }
        let mut operations: Vec<Operation> = workload.threads.iter().flatten().cloned().collect();
        let first_afterwards = operations.len();
        if let Some(Shown::All(world)) = shown {
            operations.extend(afterwards(world));
        }
        Self { operations, first_afterwards, start, shape, concurrent: workload.threads.len() > 1 }
    }

    /// Whether the program has begun to go on after a recovery.
    pub(crate) fn has_gone_on(&self, progress: &Progress) -> bool {
        let mut begun = progress.done.iter().map(|(index, _)| index).chain(&progress.under_way);
        begun.any(|&index| index >= self.first_afterwards)
    }

    /// Members that failed in the run, or were taken out, one bit each: they may be out when the
    /// array comes back.
    pub(crate) fn failed(&self, progress: &Progress) -> u32 {
        let begun = progress.done.iter().map(|&(index, _)| index).chain(progress.under_way.iter().copied());
        begun.fold(0, |failed, index| match self.operations[index] {
            Operation::Fail(member) | Operation::TakeOut(member) => failed | 1 << member,
            // A recovery does not bring a member back whose return the crash has cut short.
            Operation::ReAdd(member) if !progress.under_way.contains(&index) && !progress.cut_short.contains(&index) => {
                failed & !(1 << member)
            }
            _ => failed,
        })
    }

    /// The member that was taken out and has not come back, and whether it must be proven to be the
    /// one that left.
    pub(crate) fn taken_out(&self, progress: &Progress) -> Option<(usize, bool)> {
        let is_done = |index: usize| progress.done.iter().any(|&(done, _)| done == index);
        let taken = |(index, operation): (usize, &Operation)| match *operation {
            Operation::TakeOut(member) => Some((index, member)),
            _ => None,
        };
        let (index, member) = self.operations.iter().enumerate().find_map(taken)?;
        let comes_back = |&index: &usize| matches!(self.operations[index], Operation::ReAdd(_));
        let begun = progress.done.iter().map(|&(index, _)| index).chain(progress.under_way.iter().copied());
        // A return that was cut short may have left a member that is none any more.
        let must_be = is_done(index) && !begun.clone().any(|index| comes_back(&index));
        (is_done(index) || progress.under_way.contains(&index)).then_some((member, must_be))
    }

    /// Compares what was found after a crash with what may be. `hole`: a member was lost in the
    /// same crash.
    pub(crate) fn judge(&self, progress: &Progress, found: &World, hole: bool) -> Result<(), String> {
        match &progress.shown {
            None => self.judge_from(&self.start, 0, progress, found, hole),
            Some(Shown::All(world)) => self
                .judge_from(world, self.first_afterwards, progress, found, hole)
                .map_err(|wrong| format!("after the first recovery: {wrong}")),
            Some(Shown::Lengths(lengths)) => {
                let wrong = lengths.iter().find_map(|(name, &bytes)| match found.names.get(name) {
                    Some(&Entry::File(number)) if found.files[number].bytes.len() as u64 == bytes => None,
                    _ => Some(format!("{name} is not {bytes} bytes long, as the first recovery has told")),
                });
                wrong.map_or(Ok(()), Err).and_then(|()| self.judge_from(&self.start, 0, progress, found, hole))
            }
        }
    }

    /// The same of operations from the `first` on, which begin with `start`.
    fn judge_from(&self, start: &World, first: usize, progress: &Progress, found: &World, hole: bool) -> Result<(), String> {
        let mut before = start.clone();
        let under_way = progress.under_way.iter().filter(|&&index| index >= first);
        let mut under_way: Vec<&Operation> = under_way.map(|&index| &self.operations[index]).collect();
        let judge =
            Judge { model: self, has_journal: self.shape.has_journal() && (progress.journal_lost == 0 || first > 0), hole };
        // Stores through mappings are old or new like writes under way until a call has made them
        // durable.
        let mut unsynced = Vec::new();
        for &(operation, value) in progress.done.iter().filter(|&&(index, _)| index >= first) {
            match &self.operations[operation] {
                operation @ &Operation::Store { name, .. } => unsynced.push((operation, before.bytes_of(name).len())),
                Operation::Msync(synced) | Operation::Unmap(synced) => unsynced.retain(|&(store, end)| {
                    let is_synced = data_of(store) == Some(synced);
                    if is_synced {
                        before.apply(&within(store, end), 0);
                    }
                    !is_synced
                }),
                operation => before.apply(operation, value),
            }
        }
        if first == 0 {
            self.fill_gaps(progress, &mut before, &mut under_way);
        }
        let (data, names): (Vec<_>, Vec<_>) = under_way.into_iter().partition(|operation| data_of(operation).is_some());
        let end_of = |operation: &Operation| data_of(operation).map_or(0, |name| before.files[before.number(name)].bytes.len());
        let now = data.into_iter().map(|operation| (operation, end_of(operation)));
        let data: Vec<UnderWay<'_>> = now.chain(unsynced).collect();
        let mut result = judge.compare(&before, found, &data);
        for operation in names {
            let mut after = before.clone();
            after.apply(operation, after.value_of(operation));
            result = result.or_else(|first| {
                judge
                    .compare(&after, found, &data)
                    .map_err(|second| format!("neither before {operation:?} ({first}) nor after it ({second})"))
            });
        }
        result
    }

    /// An append that returned says where it went; if there is a gap before it, one that has not
    /// returned yet went there before.
    fn fill_gaps(&self, progress: &Progress, world: &mut World, under_way: &mut Vec<&Operation>) {
        let range = |operation: &Operation, value: u64| match *operation {
            Operation::Append { name, bytes, .. } => Some((name, value - bytes, value)),
            _ => None,
        };
        if !self.concurrent {
            return;
        }
        let done: Vec<_> = progress.done.iter().filter_map(|&(index, value)| range(&self.operations[index], value)).collect();
        for &(name, start, _) in &done {
            let reached = |end: u64| end == 0 || done.iter().any(|&(other, _, other_end)| other == name && other_end == end);
            let Some(at) = under_way.iter().position(|operation| {
                matches!(operation, Operation::Append { name: other, bytes, .. } if *other == name && *bytes <= start && reached(start - bytes))
                    && !reached(start)
            }) else {
                continue;
            };
            let operation = under_way.remove(at);
            world.apply(operation, start);
        }
    }
}

/// How a comparison is made.
struct Judge<'a> {
    model: &'a Model,
    /// Whether a journal sees to it that each write is old or new as a whole.
    has_journal: bool,
    /// Whether a member was lost in the same crash.
    hole: bool,
}

impl Judge<'_> {
    fn compare(&self, world: &World, found: &World, data: &[UnderWay<'_>]) -> Result<(), String> {
        let mut numbers = BTreeMap::new();
        for (name, entry) in &world.names {
            match (entry, found.names.get(name)) {
                (_, None) => return Err(format!("{name} is not there")),
                (Entry::File(number), Some(Entry::File(other))) => {
                    if *numbers.entry(number).or_insert(other) != other {
                        return Err(format!("{name} is no longer a link to the same file"));
                    }
                    let (file, other) = (&world.files[*number], &found.files[*other]);
                    if file.attributes != other.attributes {
                        return Err(format!("{name} has {:?}, not {:?}", other.attributes, file.attributes));
                    }
                    let own: Vec<UnderWay<'_>> = data
                        .iter()
                        .copied()
                        .filter(|(operation, _)| data_of(operation).and_then(|name| world.names.get(name)) == Some(entry))
                        .collect();
                    self.compare_bytes(&file.bytes, &other.bytes, &own).map_err(|wrong| format!("{name}: {wrong}"))?;
                }
                (entry, Some(other)) if entry != other => return Err(format!("{name} is {other:?}, not {entry:?}")),
                _ => {}
            }
        }
        match found.names.keys().find(|name| !world.names.contains_key(*name)) {
            Some(name) => Err(format!("{name} is there")),
            None => Ok(()),
        }
    }

    /// The bytes of a file of which these operations are under way.
    fn compare_bytes(&self, before: &[u8], found: &[u8], under_way: &[UnderWay<'_>]) -> Result<(), String> {
        let is_append = |(operation, _): &&UnderWay<'_>| matches!(operation, Operation::Append { .. });
        let appends: Vec<&Operation> = under_way.iter().filter(is_append).map(|(operation, _)| *operation).collect();
        let change = |&(operation, end): &UnderWay<'_>| {
            Change::of(operation, before.len(), None).map(|change| change.of_store(operation, end))
        };
        let others: Vec<Change> = under_way.iter().filter_map(change).collect();
        // In whatever order they come, any number of them.
        let mut results = Vec::new();
        for order in orders(appends.len()) {
            let mut changes = others.clone();
            let mut end = before.len();
            for index in order {
                changes.extend(Change::of(appends[index], before.len(), Some(end)));
                end = changes.last().map_or(end, |change| change.end);
            }
            results.push(self.compare_changes(before, found, &changes));
        }
        results.iter().find(|result| result.is_ok()).or(results.last()).cloned().unwrap_or(Ok(()))
    }

    fn compare_changes(&self, before: &[u8], found: &[u8], changes: &[Change]) -> Result<(), String> {
        let shape = &self.model.shape;
        let sizes: Vec<usize> = std::iter::once(before.len()).chain(changes.iter().filter_map(|change| change.size)).collect();
        if !sizes.contains(&found.len()) {
            return Err(format!("{} bytes long, not {sizes:?}", found.len()));
        }
        // A size that came with a change says that all of it is there; one that a cut would take
        // away, that none of it is.
        let is_complete = |change: &Change| change.size == Some(found.len()) && change.end > before.len();
        let is_cut = |change: &Change| change.size.is_some_and(|size| size < before.len());
        let stripe = (shape.chunk_bytes * shape.columns()) as usize;
        let is_still = |at: usize| changes.iter().all(|change| change.end <= at || at + STEP <= change.start);
        let is_as_before = |at: usize| found.get(at..at + STEP).is_some_and(|step| before.get(at..at + STEP) == Some(step));
        let steps = (0..found.len()).step_by(STEP).filter(|&at| !is_still(at) || !is_as_before(at));
        for at in steps.flat_map(|at| at..found.len().min(at + STEP)) {
            let byte = found[at];
            let old = before.get(at).copied().unwrap_or(0);
            let covering: Vec<&Change> = changes.iter().filter(|change| change.covers(at)).collect();
            let near =
                |change: &Change| change.start / stripe <= at / stripe && at / stripe <= change.end.max(1).div_ceil(stripe);
            // The journal closes the hole, but for whole stripes of zeros.
            let open = |change: &Change| near(change) && (!self.has_journal || change.data.is_none());
            if self.hole && shape.has_parity() && changes.iter().any(open) {
                continue;
            }
            let right = match &covering[..] {
                [] => byte == old,
                [change] if is_cut(change) => byte == old,
                [change] if is_complete(change) => byte == change.byte(at),
                [change] if change.has_whole_words() => {
                    let word = at & !7..(at & !7) + 8;
                    let all = |right: &dyn Fn(usize) -> bool| word.clone().all(right);
                    let in_file = word.end <= found.len();
                    !in_file && (byte == old || byte == change.byte(at))
                        || in_file
                            && (all(&|at| found[at] == before.get(at).copied().unwrap_or(0))
                                || all(&|at| found[at] == change.byte(at)))
                }
                _ => byte == old || covering.iter().any(|change| byte == change.byte(at)),
            };
            if !right {
                let wanted: Vec<u8> = std::iter::once(old).chain(covering.iter().map(|change| change.byte(at))).collect();
                return Err(format!("byte {at} of {} is {byte:#04x}, not one of {wanted:02x?}", found.len()));
            }
        }
        if self.has_journal { whole_writes(before, found, changes) } else { Ok(()) }
    }
}

/// With a journal a write is old or new as a whole, where nothing else is under way.
fn whole_writes(before: &[u8], found: &[u8], changes: &[Change]) -> Result<(), String> {
    for (index, change) in changes.iter().enumerate().filter(|(_, change)| change.is_write) {
        let others = changes.iter().enumerate().filter(|(other, _)| *other != index);
        if others.clone().any(|(_, other)| other.start < change.end && change.start < other.end || other.size.is_some()) {
            continue;
        }
        let mut range = change.start..change.end.min(found.len());
        let is_old = range.clone().all(|at| found[at] == before.get(at).copied().unwrap_or(0));
        if !is_old && (range.end < change.end || !range.all(|at| found[at] == change.byte(at))) {
            return Err(format!("the write of bytes {} to {} is there in part", change.start, change.end));
        }
    }
    Ok(())
}

impl World {
    /// What an operation returns if nothing else goes on: an append the end.
    fn value_of(&self, operation: &Operation) -> u64 {
        match *operation {
            Operation::Append { name, bytes, .. } => self.files[self.number(name)].bytes.len() as u64 + bytes,
            _ => 0,
        }
    }
}

/// Bytes of a file that are compared at once where nothing is under way.
const STEP: usize = 4096;

/// An operation that changes bytes, and how long its file was when it was done.
type UnderWay<'a> = (&'a Operation, usize);

/// What of a store through a mapping lies before the end: behind it nothing is found again.
fn within(store: &Operation, end: usize) -> Operation {
    match *store {
        Operation::Store { name, at, bytes, seed } => {
            Operation::Store { name, at, bytes: bytes.min((end as u64).saturating_sub(at)), seed }
        }
        ref other => other.clone(),
    }
}

/// The file whose bytes an operation changes.
const fn data_of(operation: &Operation) -> Option<&'static str> {
    match operation {
        Operation::Write { name, .. }
        | Operation::Append { name, .. }
        | Operation::Store { name, .. }
        | Operation::Truncate { name, .. }
        | Operation::Punch { name, .. }
        | Operation::Allocate { name, .. } => Some(name),
        _ => None,
    }
}

/// What an operation under way may change of a file.
#[derive(Clone, Debug)]
struct Change {
    start: usize,
    end: usize,
    /// What is stored; zeros if None.
    data: Option<Vec<u8>>,
    /// The size it leaves, if it changes it.
    size: Option<usize>,
    /// Whether it is one call that stores data: with a journal it is there as a whole.
    is_write: bool,
    /// Bytes from here on it did not reach.
    limit: usize,
}

impl Change {
    fn of(operation: &Operation, present: usize, end_of_file: Option<usize>) -> Option<Self> {
        let grown = |end: usize| Some(end).filter(|&end| end > present);
        match *operation {
            Operation::Write { at, bytes, seed, .. } => {
                let (start, end) = (at as usize, (at + bytes) as usize);
                Some(Self { start, end, data: Some(content(seed, bytes)), size: grown(end), is_write: true, limit: usize::MAX })
            }
            Operation::Store { at, bytes, seed, .. } => {
                let (start, end) = (at as usize, (at + bytes) as usize);
                Some(Self { start, end, data: Some(content(seed, bytes)), size: None, is_write: false, limit: usize::MAX })
            }
            Operation::Append { bytes, seed, .. } => {
                let start = end_of_file?;
                let end = start + bytes as usize;
                Some(Self { start, end, data: Some(content(seed, bytes)), size: grown(end), is_write: true, limit: usize::MAX })
            }
            Operation::Truncate { bytes, .. } => {
                let (start, end) = ((bytes as usize).min(present), (bytes as usize).max(present));
                let size = Some(bytes as usize).filter(|&size| size != present);
                Some(Self { start, end, data: None, size, is_write: false, limit: usize::MAX })
            }
            Operation::Punch { at, bytes, .. } => {
                let end = ((at + bytes) as usize).min(present);
                Some(Self { start: at as usize, end, data: None, size: None, is_write: false, limit: usize::MAX })
            }
            Operation::Allocate { at, bytes, .. } => {
                let end = (at + bytes) as usize;
                Some(Self { start: present.min(end), end, data: None, size: grown(end), is_write: false, limit: usize::MAX })
            }
            _ => None,
        }
    }

    /// A store through a mapping reached no further than the file did then.
    fn of_store(self, operation: &Operation, end: usize) -> Self {
        let limit = if matches!(operation, Operation::Store { .. }) { end } else { self.limit };
        Self { limit, ..self }
    }

    fn covers(&self, at: usize) -> bool {
        self.start <= at && at < self.end.min(self.limit)
    }

    fn byte(&self, at: usize) -> u8 {
        self.data.as_ref().map_or(0, |data| data[at - self.start])
    }

    /// Whether it begins and ends between aligned words.
    const fn has_whole_words(&self) -> bool {
        self.start.is_multiple_of(8) && self.end.is_multiple_of(8)
    }
}

/// Every sequence of distinct numbers below `count`, of any length.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let present = all[at].clone();
        all.extend((0..count).filter(|index| !present.contains(index)).map(|index| [&present[..], &[index]].concat()));
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Journal;
    use layout::Level;

    const SHAPE: Shape = Shape { level: Level::Raid5, member_count: 3, chunk_bytes: 64, journal: Journal::None, sums: false };

    fn workload(threads: Vec<Vec<Operation>>) -> Workload {
        let before = vec![Operation::Create("a"), Operation::Write { name: "a", at: 0, bytes: 64, seed: 1 }];
        Workload { before, threads, window_bytes: None }
    }

    /// What is said of a file that holds `bytes` after a crash during the first operation, or
    /// before it.
    fn verdict(operation: Operation, begun: bool, bytes: &[u8]) -> Result<(), String> {
        let workload = workload(vec![vec![operation]]);
        let model = Model::new(&workload, SHAPE, None);
        let mut found = model.start.clone();
        found.files[0].bytes = bytes.to_vec();
        let progress = Progress { done: Vec::new(), under_way: if begun { vec![0] } else { Vec::new() }, ..Progress::default() };
        model.judge(&progress, &found, false)
    }

    #[test]
    fn words_of_a_write_are_old_or_new() {
        let (old, new) = (content(1, 64), content(2, 16));
        let write = Operation::Write { name: "a", at: 8, bytes: 16, seed: 2 };
        let with = |range: std::ops::Range<usize>| {
            let mut bytes = old.clone();
            bytes[range.clone()].copy_from_slice(&new[range.start - 8..range.end - 8]);
            bytes
        };
        for range in [8..8, 8..16, 16..24, 8..24] {
            assert_eq!(verdict(write.clone(), true, &with(range)), Ok(()));
        }
        assert!(verdict(write.clone(), true, &with(8..12)).is_err());
        assert!(verdict(write.clone(), false, &with(8..16)).is_err());
        let mut mixed = old.clone();
        mixed[40] ^= 1;
        assert!(verdict(write, true, &mixed).is_err());
    }

    #[test]
    fn after_a_recovery_the_model_begins_with_what_that_has_shown() {
        let workload = workload(vec![vec![Operation::Write { name: "a", at: 0, bytes: 64, seed: 2 }]]);
        let crashed = Progress { under_way: vec![0], ..Progress::default() };
        let mut world = Model::new(&workload, SHAPE, None).start;
        world.files[0].bytes[..8].copy_from_slice(&content(2, 8));
        let shown = Shown::All(world.clone());
        let model = Model::new(&workload, SHAPE, Some(&shown));
        let recovered = crashed.clone().recovered(Some(shown));
        assert!(!model.has_gone_on(&recovered));
        assert_eq!(model.judge(&recovered, &world, false), Ok(()));
        // Old again, which was as good before the recovery, or new.
        assert!(model.judge(&recovered, &model.start, false).is_err());
        assert_eq!(model.judge(&crashed, &model.start, false), Ok(()));
        // The program goes on: it writes all of the file anew.
        let next = Progress { under_way: vec![1], ..recovered.clone() };
        assert!(model.has_gone_on(&next));
        let mut after = world.clone();
        after.apply(&model.operations[1], 0);
        assert_ne!(after, world);
        assert_eq!(model.judge(&next, &world, false), Ok(()));
        assert_eq!(model.judge(&next, &after, false), Ok(()));
        assert!(model.judge(&recovered, &after, false).is_err());
        let over = Progress { done: [&recovered.done[..], &[(1, 0)]].concat(), ..recovered };
        assert_eq!(model.judge(&over, &after, false), Ok(()));
        assert!(model.judge(&over, &world, false).is_err());
    }

    #[test]
    fn a_member_whose_return_is_cut_short_may_stay_out() {
        let workload = workload(vec![vec![Operation::TakeOut(0), Operation::ReAdd(0)]]);
        let model = Model::new(&workload, SHAPE, None);
        let returned = Progress { done: vec![(0, 0), (1, 0)], ..Progress::default() };
        let crashed = Progress { done: vec![(0, 0)], under_way: vec![1], ..Progress::default() };
        let recovered = |progress: &Progress| progress.clone().recovered(Some(Shown::All(model.start.clone())));
        assert_eq!([&returned, &recovered(&returned)].map(|progress| model.failed(progress)), [0, 0]);
        assert_eq!([&crashed, &recovered(&crashed)].map(|progress| model.failed(progress)), [1, 1]);
    }

    #[test]
    fn a_length_that_was_told_stays() {
        let workload = workload(vec![vec![Operation::Append { name: "a", bytes: 8, seed: 2 }]]);
        let model = Model::new(&workload, SHAPE, None);
        let crashed = Progress { under_way: vec![0], ..Progress::default() };
        let told = |bytes| crashed.clone().recovered(Some(Shown::Lengths([("a".to_owned(), bytes)].into())));
        assert_eq!(model.judge(&told(64), &model.start, false), Ok(()));
        assert!(model.judge(&told(72), &model.start, false).is_err());
        let mut longer = model.start.clone();
        longer.apply(&model.operations[0], 72);
        assert_eq!(model.judge(&told(72), &longer, false), Ok(()));
        assert!(model.judge(&told(64), &longer, false).is_err());
    }

    #[test]
    fn where_a_journal_was_lost_writes_are_judged_by_words() {
        let shape = Shape { level: Level::Raid1, member_count: 2, journal: Journal::Members, ..SHAPE };
        let workload = workload(vec![vec![Operation::Write { name: "a", at: 0, bytes: 64, seed: 2 }]]);
        let model = Model::new(&workload, shape, None);
        let mut torn = model.start.clone();
        torn.files[0].bytes[..8].copy_from_slice(&content(2, 8));
        let crashed = Progress { under_way: vec![0], ..Progress::default() };
        assert!(model.judge(&crashed, &torn, false).is_err());
        assert_eq!(model.judge(&Progress { journal_lost: 1, ..crashed }, &torn, false), Ok(()));
    }

    #[test]
    fn a_size_comes_with_its_bytes() {
        let append = Operation::Append { name: "a", bytes: 8, seed: 2 };
        let (old, new) = (content(1, 64), content(2, 8));
        assert_eq!(verdict(append.clone(), true, &old), Ok(()));
        assert_eq!(verdict(append.clone(), true, &[&old[..], &new[..]].concat()), Ok(()));
        assert!(verdict(append.clone(), true, &[&old[..], &[0; 8]].concat()).is_err());
        assert!(verdict(append, true, &[&old[..], &new[..4]].concat()).is_err());
        let cut = Operation::Truncate { name: "a", bytes: 10 };
        assert_eq!(verdict(cut.clone(), true, &old[..10]), Ok(()));
        assert_eq!(verdict(cut.clone(), true, &old), Ok(()));
        assert!(verdict(cut, true, &[&old[..10], &[0; 54]].concat()).is_err());
    }

    #[test]
    fn of_two_appends_the_one_that_returned_is_there() {
        let append = |bytes, seed| Operation::Append { name: "b", bytes, seed };
        let mut workload = workload(vec![vec![append(8, 2)], vec![append(4, 3)]]);
        workload.before.push(Operation::Create("b"));
        let model = Model::new(&workload, SHAPE, None);
        let judge = |value: u64, bytes: Vec<u8>| {
            let mut found = model.start.clone();
            found.files[1].bytes = bytes;
            model.judge(&Progress { done: vec![(1, value)], under_way: vec![0], ..Progress::default() }, &found, false)
        };
        let (one, other) = (content(2, 8), content(3, 4));
        assert_eq!(judge(4, other.clone()), Ok(()));
        assert_eq!(judge(4, [&other[..], &one[..]].concat()), Ok(()));
        assert_eq!(judge(12, [&one[..], &other[..]].concat()), Ok(()));
        assert!(judge(12, [&[0; 8], &other[..]].concat()).is_err());
        assert!(judge(4, Vec::new()).is_err());
    }

    #[test]
    fn names_change_wholly_or_not_at_all() {
        let workload = workload(vec![vec![Operation::Rename { from: "a", to: "b" }]]);
        let model = Model::new(&workload, SHAPE, None);
        let under_way = Progress { done: Vec::new(), under_way: vec![0], ..Progress::default() };
        let mut found = model.start.clone();
        assert_eq!(model.judge(&under_way, &found, false), Ok(()));
        let entry = found.names.remove("a").unwrap();
        assert!(model.judge(&under_way, &found, false).is_err());
        found.names.insert("b".into(), entry.clone());
        assert_eq!(model.judge(&under_way, &found, false), Ok(()));
        found.names.insert("a".into(), entry);
        assert!(model.judge(&under_way, &found, false).is_err());
    }
}
