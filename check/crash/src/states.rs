//! From a log to crash states: what the members may hold if the machine stops at some instant.
//!
//! A store is durable for certain only after what the platform asks for; until then it may be or
//! not. Lines of 64 bytes are written back by themselves at any time, so:
//! - *ADR*: a line that was stored to holds some prefix of its ordinary stores in program order,
//!   the last of them perhaps torn at a word of 8 bytes; words stored non-temporally are there or
//!   not, each by itself. A write-back or non-temporal store followed by a fence of the same thread
//!   makes it certain.
//! - *eADR*: what other processors see is safe. A thread's ordinary stores become visible in
//!   program order, so they are a prefix; its non-temporal ones in any order; a fence makes all of
//!   them certain. Locked instructions are not counted as fences.
//!
//! What the member's file system does (names, lengths, holes) is durable when the call returns, as
//! with its journal committed; what was written by pwrite, once it is synced.

use crate::image::Image;
use crate::log::{Event, Log, ObjectId};
use crate::model::Progress;
use crate::record::Platform;
use oracle::Rng;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use units::PAGE_BYTES;

const LINE: u64 = 64;
const WORD: usize = 8;
/// A store that is longer and goes through the page cache is there or not by whole pages, as the
/// kernel writes them: a table that is made anew has thousands of lines.
const CACHED_BYTES_MAX: usize = 4096;

/// A part of a store that lies in one line and need not be durable yet.
#[derive(Clone, Debug)]
struct Pending {
    event: usize,
    thread: u8,
    object: ObjectId,
    at: u64,
    bytes: Vec<u8>,
    streamed: bool,
    /// Threads that have written the line back since, one bit each: their next fence makes it
    /// durable.
    flushed: u32,
    /// Through the page cache: only a sync of the file makes it durable.
    cached: bool,
    /// The same as `flushed` if nothing had been left out.
    flushed_in_full: u32,
    /// It would be certain if nothing had been left out.
    overdue: bool,
}

/// Which states are looked at of a run that was changed.
#[derive(Clone, Debug)]
pub(crate) enum Focus {
    /// All.
    Everything,
    /// Those that the run as it was recorded could not have left: something is missing that a flush
    /// or fence which was left out makes certain.
    Overdue,
    /// Those in which a store of these events is missing: it was moved behind a fence.
    Missing(HashSet<usize>),
}

/// Bytes that made it, on top of what was durable.
pub(crate) type Patch = (ObjectId, u64, Vec<u8>);

/// What may be found after a crash at one instant.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) patches: Vec<Patch>,
    /// Events whose stores are not, or not wholly, among the patches.
    pub(crate) lost_stores: Vec<usize>,
}

/// An instant: everything durable, and what may be there besides.
pub(crate) struct Instant<'a> {
    pub(crate) event: usize,
    pub(crate) image: &'a Image,
    pub(crate) progress: &'a Progress,
    pub(crate) states: Vec<State>,
}

/// How many states are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Up to so many, all states of an instant are taken (subsets of lines), otherwise a sample.
    pub(crate) exhaustive_max: usize,
    /// States of a sample.
    pub(crate) sample: usize,
}

/// Walks through a log.
pub(crate) struct Replay<'a> {
    log: &'a Log,
    platform: Platform,
    /// Whether an event is left out: a flush or fence taken from the source.
    without: &'a dyn Fn(&Event) -> bool,
    focus: &'a Focus,
    image: Image,
    /// Rises with every change of `image`.
    version: u64,
    pending: Vec<Pending>,
    progress: Progress,
    seen: HashSet<u64>,
    rng: Rng,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(log: &'a Log, platform: Platform, seed: u64, without: &'a dyn Fn(&Event) -> bool) -> Self {
        Self::focused(log, platform, seed, without, &Focus::Everything)
    }

    /// The same for some of the states only.
    pub(crate) fn focused(
        log: &'a Log,
        platform: Platform,
        seed: u64,
        without: &'a dyn Fn(&Event) -> bool,
        focus: &'a Focus,
    ) -> Self {
        Self {
            log,
            platform,
            without,
            focus,
            image: log.base.clone(),
            version: 0,
            pending: Vec::new(),
            progress: Progress::default(),
            seen: HashSet::new(),
            rng: Rng::new(seed),
        }
    }

    /// Calls `visit` with every instant at which something can be found that could not before.
    /// `visit` says whether to go on.
    pub(crate) fn run(&mut self, effort: Effort, mut visit: impl FnMut(&Instant<'_>) -> bool) {
        for (index, event) in self.log.events.iter().enumerate() {
            let without = (self.without)(event);
            // What may be found rises until something becomes certain; just before that is when all
            // of it may be.
            if !without
                && !matches!(event, Event::Store { .. } | Event::Flush { .. } | Event::Put { .. })
                && !self.offer(index, effort, &mut visit)
            {
                return;
            }
            if matches!(self.focus, Focus::Overdue) {
                self.note_overdue(event);
            }
            if !without {
                self.step(index, event);
            }
        }
        self.offer(self.log.events.len(), effort, &mut visit);
    }

    fn offer(&mut self, event: usize, effort: Effort, visit: &mut impl FnMut(&Instant<'_>) -> bool) -> bool {
        let wanted: Option<HashSet<usize>> = match self.focus {
            Focus::Everything => None,
            Focus::Overdue => Some(self.pending.iter().filter(|pending| pending.overdue).map(|pending| pending.event).collect()),
            Focus::Missing(events) => {
                Some(self.pending.iter().map(|pending| pending.event).filter(|event| events.contains(event)).collect())
            }
        };
        if wanted.as_ref().is_some_and(HashSet::is_empty) {
            return true;
        }
        let mut states = self.states(effort);
        if let Some(wanted) = &wanted {
            states.retain(|state| state.lost_stores.iter().any(|event| wanted.contains(event)));
        }
        states.retain(|state| {
            let key = self.key(state);
            self.seen.insert(key)
        });
        states.is_empty() || visit(&Instant { event, image: &self.image, progress: &self.progress, states })
    }

    /// Tells states apart by what they hold and what may be expected of them.
    fn key(&self, state: &State) -> u64 {
        let mut words: BTreeMap<(ObjectId, u64), [u8; WORD]> = BTreeMap::new();
        let mut pages = Vec::new();
        for (object, at, patch) in &state.patches {
            if patch.len() > LINE as usize {
                // Of a table that is made anew each state has tens of thousands of words.
                pages.push((*object, *at, patch));
                continue;
            }
            let (mut at, mut rest) = (*at, &patch[..]);
            while !rest.is_empty() {
                let within = at as usize % WORD;
                let (now, later) = rest.split_at((WORD - within).min(rest.len()));
                let start = at - within as u64;
                let word = words.entry((*object, start)).or_insert_with(|| self.image.objects[*object].word(start));
                word[within..within + now.len()].copy_from_slice(now);
                (at, rest) = (at + now.len() as u64, later);
            }
        }
        words.retain(|&(object, start), word| self.image.objects[object].word(start) != *word);
        let mut hasher = DefaultHasher::new();
        (self.version, &self.progress.done, &self.progress.under_way, self.progress.shown.is_some(), words, pages)
            .hash(&mut hasher);
        hasher.finish()
    }

    /// Marks what would be certain after this event in the run as it was recorded.
    fn note_overdue(&mut self, event: &Event) {
        for pending in &mut self.pending {
            match event {
                Event::Flush { thread, object, at, .. } if pending.object == *object && pending.at & !(LINE - 1) == *at => {
                    pending.flushed_in_full |= 1 << thread;
                }
                Event::Fence { thread, .. } => {
                    pending.overdue |= is_certain(pending, pending.flushed_in_full, *thread, self.platform);
                }
                _ => {}
            }
        }
    }

    fn step(&mut self, index: usize, event: &Event) {
        match event {
            Event::Store { thread, object, at, bytes, streamed, .. } => {
                self.add(index, *thread, *object, *at, bytes, *streamed, false);
            }
            Event::Put { object, at, bytes, .. } => self.add(index, 0, *object, *at, bytes, true, true),
            Event::Flush { thread, object, at, .. } => {
                for pending in
                    self.pending.iter_mut().filter(|pending| pending.object == *object && pending.at & !(LINE - 1) == *at)
                {
                    pending.flushed |= 1 << thread;
                }
            }
            Event::Fence { thread, .. } => {
                let (thread, platform) = (*thread, self.platform);
                self.commit(|pending| is_certain(pending, pending.flushed, thread, platform));
            }
            Event::Sync { object, start, end, .. } => {
                // Of a page that is synced in part the kernel writes all.
                let page = |at: u64| at / PAGE_BYTES as u64;
                let is_synced = |at: u64| page(at) >= page(*start) && page(at) <= page(end.saturating_sub(1));
                self.commit(|pending| pending.cached && pending.object == *object && is_synced(pending.at));
            }
            Event::Length { object, bytes } => {
                self.object(*object).set_bytes(*bytes);
                self.pending.retain(|pending| pending.object != *object || pending.at < *bytes);
            }
            Event::Zero { object, at, bytes } => {
                self.object(*object).zero(*at, *bytes);
                self.pending.retain(|pending| pending.object != *object || pending.at < *at || pending.at >= at + bytes);
            }
            Event::Tree { member, tree, .. } => {
                for node in tree.0.values() {
                    if let crate::image::Kind::File(object) = node.kind {
                        self.object(object);
                    }
                }
                self.image.trees[*member] = tree.clone();
                self.version += 1;
            }
            Event::Begin { operation } => self.progress.under_way.push(*operation),
            Event::End { operation, value } => {
                self.progress.under_way.retain(|other| other != operation);
                self.progress.done.push((*operation, *value));
            }
            Event::Recovered => {
                let crashed = self.log.crashed.clone().unwrap_or_default();
                self.progress = crashed.recovered(self.log.shown.clone());
            }
        }
    }

    fn object(&mut self, object: ObjectId) -> &mut crate::image::Content {
        self.version += 1;
        if self.image.objects.len() <= object {
            self.image.objects.resize_with(object + 1, Default::default);
        }
        &mut self.image.objects[object]
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of two kinds of events")]
    fn add(&mut self, event: usize, thread: u8, object: ObjectId, at: u64, bytes: &[u8], streamed: bool, cached: bool) {
        let mut done = 0;
        while done < bytes.len() {
            let at = at + done as u64;
            let unit = if cached && bytes.len() > CACHED_BYTES_MAX { PAGE_BYTES as u64 } else { LINE };
            let step = ((unit - at % unit) as usize).min(bytes.len() - done);
            let bytes = bytes[done..done + step].to_vec();
            self.pending.push(Pending {
                event,
                thread,
                object,
                at,
                bytes,
                streamed,
                flushed: 0,
                cached,
                flushed_in_full: 0,
                overdue: false,
            });
            done += step;
        }
    }

    /// Makes durable what `is_certain`, with what was stored to the same bytes before.
    fn commit(&mut self, is_certain: impl Fn(&Pending) -> bool) {
        let certain: Vec<bool> = self.pending.iter().map(is_certain).collect();
        let all_certain: Vec<usize> = (0..certain.len()).filter(|&index| certain[index]).collect();
        // A table that was just written has thousands of lines.
        if all_certain.is_empty() {
            return;
        }
        let overlap = |a: &Pending, b: &Pending| {
            a.object == b.object && a.at < b.at + b.bytes.len() as u64 && b.at < a.at + a.bytes.len() as u64
        };
        let all = std::mem::take(&mut self.pending);
        for (index, pending) in all.iter().enumerate() {
            if certain[index] || all_certain.iter().any(|&later| later > index && overlap(pending, &all[later])) {
                self.object(pending.object).put(pending.at, &pending.bytes);
            } else {
                self.pending.push(pending.clone());
            }
        }
    }

    /// The states of this instant: all, or a sample.
    fn states(&mut self, effort: Effort) -> Vec<State> {
        let groups = match self.platform {
            Platform::Adr => self.lines(),
            Platform::Eadr => self.orders(),
        };
        let counts: Vec<usize> = groups.iter().map(|group| group.len() + 1).collect();
        let all = counts
            .iter()
            .try_fold(1usize, |product, &count| product.checked_mul(count))
            .filter(|&all| all <= effort.exhaustive_max);
        let mut choices: Vec<Vec<usize>> = match all {
            Some(all) => (0..all).map(|number| digits(number, &counts)).collect(),
            None => self.sample(&counts, effort.sample),
        };
        choices.dedup();
        let mut states: Vec<State> = choices.iter().map(|choice| self.state(&groups, choice)).collect();
        if groups.iter().any(|group| !group.is_empty()) {
            let torn = if all.is_some() { (effort.sample / 4).max(2) } else { effort.sample / 2 };
            states.extend((0..torn).map(|_| self.torn(&groups)).collect::<Vec<_>>());
        }
        states
    }

    /// Pending stores by line, each in program order: what of a line is there is a prefix.
    fn lines(&self) -> Vec<Vec<usize>> {
        let mut lines: BTreeMap<(ObjectId, u64), Vec<usize>> = BTreeMap::new();
        for (index, pending) in self.pending.iter().enumerate() {
            lines.entry((pending.object, pending.at / LINE)).or_default().push(index);
        }
        // A non-temporal store of a line comes in pieces of what the registers hold; they leave
        // together as a rule (else: torn).
        lines.into_values().collect()
    }

    /// Pending stores in the order in which a thread's become visible: ordinary ones together,
    /// non-temporal ones by line.
    fn orders(&self) -> Vec<Vec<usize>> {
        type Line = (ObjectId, u64);
        let mut orders: BTreeMap<(u8, Option<Line>), Vec<usize>> = BTreeMap::new();
        for (index, pending) in self.pending.iter().enumerate() {
            let line = (pending.streamed || pending.cached).then_some((pending.object, pending.at / LINE));
            orders.entry((pending.thread, line)).or_default().push(index);
        }
        orders.into_values().collect()
    }

    /// How much of each group is there, in a sample: nothing, everything, one group alone or
    /// missing, and by chance.
    fn sample(&mut self, counts: &[usize], wanted: usize) -> Vec<Vec<usize>> {
        let full: Vec<usize> = counts.iter().map(|count| count - 1).collect();
        let mut choices = vec![vec![0; counts.len()], full.clone()];
        while choices.len() < wanted {
            let mut choice = match self.rng.below(4) {
                0 => vec![0; counts.len()],
                1 => full.clone(),
                // Some groups wholly there, the rest not at all.
                2 => full.iter().map(|&all| if self.rng.one_in(2) { all } else { 0 }).collect(),
                _ => counts.iter().map(|&count| self.rng.below(count as u64) as usize).collect(),
            };
            let one = self.rng.below(counts.len() as u64) as usize;
            choice[one] = if choice[one] == 0 { full[one] } else { self.rng.below(counts[one] as u64) as usize };
            choices.push(choice);
        }
        choices
    }

    fn state(&self, groups: &[Vec<usize>], choice: &[usize]) -> State {
        let mut kept: Vec<usize> = groups.iter().zip(choice).flat_map(|(group, &count)| group[..count].iter().copied()).collect();
        kept.sort_unstable();
        self.put_together(&kept, None)
    }

    /// A state in which a store may be there in part.
    fn torn(&mut self, groups: &[Vec<usize>]) -> State {
        let mut kept = Vec::new();
        let mut words = Vec::new();
        for group in groups {
            let ordered = self.rng.below(group.len() as u64 + 1) as usize;
            kept.extend_from_slice(&group[..ordered]);
            for &index in &group[ordered..] {
                let pending = &self.pending[index];
                let first = index == group.get(ordered).copied().unwrap_or(usize::MAX);
                let is_torn = pending.bytes.len() <= LINE as usize && (first || pending.streamed || pending.cached);
                if is_torn {
                    words.push(index);
                }
            }
        }
        kept.sort_unstable();
        let seed = self.rng.below(u64::MAX);
        self.put_together(&kept, Some((words, Rng::new(seed))))
    }

    /// What is there if `kept` are wholly, and of others some words.
    fn put_together(&self, kept: &[usize], others: Option<(Vec<usize>, Rng)>) -> State {
        let (words, mut rng) = others.unwrap_or_else(|| (Vec::new(), Rng::new(0)));
        let mut patches: Vec<(usize, Patch)> = Vec::new();
        let mut whole = kept.to_vec();
        for &index in kept {
            let pending = &self.pending[index];
            patches.push((index, (pending.object, pending.at, pending.bytes.clone())));
        }
        for index in words {
            let pending = &self.pending[index];
            let (mut at, mut arrived) = (0, 0);
            while at < pending.bytes.len() {
                let step = (WORD - (pending.at as usize + at) % WORD).min(pending.bytes.len() - at);
                if rng.one_in(2) {
                    patches.push((index, (pending.object, pending.at + at as u64, pending.bytes[at..at + step].to_vec())));
                    arrived += step;
                }
                at += step;
            }
            if arrived == pending.bytes.len() {
                whole.push(index);
            }
        }
        patches.sort_by_key(|(index, _)| *index);
        whole.sort_unstable();
        let lost = (0..self.pending.len()).filter(|index| whole.binary_search(index).is_err());
        let mut lost_stores: Vec<usize> = lost.map(|index| self.pending[index].event).collect();
        lost_stores.dedup();
        State { patches: patches.into_iter().map(|(_, patch)| patch).collect(), lost_stores }
    }
}

/// Whether a fence of `thread` makes a store certain whose line the threads of `flushed` have
/// written back.
fn is_certain(pending: &Pending, flushed: u32, thread: u8, platform: Platform) -> bool {
    let own = pending.thread == thread;
    let certain = match platform {
        Platform::Adr => pending.streamed && own || flushed >> thread & 1 == 1,
        Platform::Eadr => own,
    };
    certain && !pending.cached
}

/// The digits of a number, each with its own base.
fn digits(mut number: usize, bases: &[usize]) -> Vec<usize> {
    bases
        .iter()
        .map(|base| {
            let digit = number % base;
            number /= base;
            digit
        })
        .collect()
}

impl State {
    /// What the members hold in this state.
    pub(crate) fn image(&self, durable: &Image) -> Image {
        let mut image = durable.clone();
        for (object, at, bytes) in &self.patches {
            image.objects[*object].put(*at, bytes);
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Content;

    fn store(at: u64, byte: u8, streamed: bool) -> Event {
        Event::Store { thread: 0, object: 0, at, bytes: vec![byte; 8], streamed, stack: 0 }
    }

    const FENCE: Event = Event::Fence { thread: 0, stack: 0 };
    const FLUSH: Event = Event::Flush { thread: 0, object: 0, at: 0, stack: 0 };

    /// What the first bytes of lines 0, 1 and of the second word of line 0 may be at the end.
    fn found(platform: Platform, events: Vec<Event>) -> Vec<[u8; 3]> {
        let mut content = Content::default();
        content.set_bytes(4096);
        let log = Log {
            base: Image { trees: Vec::new(), objects: vec![content] },
            events,
            crashed: None,
            shown: None,
            has_later_windows: false,
            stacks: Vec::new(),
        };
        let mut all = Vec::new();
        let end = log.events.len();
        let keep = |_: &Event| false;
        Replay::new(&log, platform, 1, &keep).run(Effort { exhaustive_max: 1000, sample: 256 }, |instant| {
            if instant.event == end {
                all.extend(instant.states.iter().map(|state| {
                    let image = state.image(instant.image);
                    [0, 64, 8].map(|at| image.objects[0].byte(at))
                }));
            }
            true
        });
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn lines_are_independent_until_they_are_certain() {
        let two = vec![store(0, 1, false), store(64, 2, false)];
        assert_eq!(found(Platform::Adr, two.clone()), [[0, 0, 0], [0, 2, 0], [1, 0, 0], [1, 2, 0]]);
        // A fence without a write-back makes nothing certain, nor does a write-back without a
        // fence.
        let with = |more: &[Event]| [&two[..], more].concat();
        assert_eq!(found(Platform::Adr, with(&[FENCE, store(512, 1, false)])).len(), 4);
        assert_eq!(found(Platform::Adr, with(&[FLUSH, store(512, 1, false)])).len(), 4);
        assert_eq!(found(Platform::Adr, with(&[FLUSH, FENCE, store(512, 1, false)])), [[1, 0, 0], [1, 2, 0]]);
        let streamed = vec![store(0, 1, true), FENCE, store(64, 2, true)];
        assert_eq!(found(Platform::Adr, streamed), [[1, 0, 0], [1, 2, 0]]);
    }

    #[test]
    fn what_is_in_the_page_cache_is_certain_once_its_pages_are_synced() {
        let put = |at: u64, byte: u8| Event::Put { object: 0, at, bytes: vec![byte; 8], stack: 0 };
        let sync = |start: u64, end: u64| Event::Sync { object: 0, start, end, stack: 0 };
        assert_eq!(found(Platform::Adr, vec![put(0, 1)]), [[0, 0, 0], [1, 0, 0]]);
        for (start, end) in [(0, u64::MAX), (0, 4096), (100, 101)] {
            assert_eq!(found(Platform::Adr, vec![put(0, 1), sync(start, end), put(64, 2)]), [[1, 0, 0], [1, 2, 0]]);
        }
        // Another page of the file.
        let other = vec![put(0, 1), sync(4096, 8192), put(64, 2)];
        assert_eq!(found(Platform::Adr, other), [[0, 2, 0], [1, 2, 0]]);
    }

    #[test]
    fn stores_to_one_line_are_there_in_their_order_unless_they_are_streamed() {
        assert_eq!(found(Platform::Adr, vec![store(0, 1, false), store(8, 2, false)]), [[0, 0, 0], [1, 0, 0], [1, 0, 2]]);
        let streamed: Vec<Event> = (0..8).map(|word| store(word * 8, 1, true)).collect();
        assert!(found(Platform::Adr, streamed).contains(&[0, 0, 1]));
    }

    #[test]
    fn where_caches_are_safe_ordinary_stores_keep_their_order() {
        let two = vec![store(64, 1, false), store(0, 2, false)];
        assert_eq!(found(Platform::Eadr, two), [[0, 0, 0], [0, 1, 0], [2, 1, 0]]);
        let streamed = vec![store(64, 1, false), store(0, 2, true)];
        assert_eq!(found(Platform::Eadr, streamed), [[0, 0, 0], [0, 1, 0], [2, 0, 0], [2, 1, 0]]);
        assert_eq!(found(Platform::Eadr, vec![store(64, 1, false), FENCE, store(0, 2, false)]), [[0, 1, 0], [2, 1, 0]]);
    }

    #[test]
    fn without_a_fence_only_what_it_made_certain_is_looked_for() {
        let mut content = Content::default();
        content.set_bytes(4096);
        let base = Image { trees: Vec::new(), objects: vec![content] };
        // The first store is overdue once the fence is left out, the second one never certain.
        let events = vec![store(0, 1, true), FENCE, store(64, 2, true)];
        let log = Log { base, events, crashed: None, shown: None, has_later_windows: false, stacks: Vec::new() };
        let without = |event: &Event| matches!(event, Event::Fence { .. });
        let mut all = Vec::new();
        Replay::focused(&log, Platform::Adr, 1, &without, &Focus::Overdue).run(
            Effort { exhaustive_max: 1000, sample: 256 },
            |instant| {
                let bytes = |state: &State| [0, 64].map(|at| state.image(instant.image).objects[0].byte(at));
                all.extend(instant.states.iter().map(bytes));
                true
            },
        );
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, [[0, 0], [0, 2]]);
    }

    #[test]
    fn another_threads_fence_makes_nothing_certain() {
        let events = vec![store(0, 1, true), Event::Fence { thread: 1, stack: 0 }, store(512, 1, true)];
        assert_eq!(found(Platform::Adr, events), [[0, 0, 0], [1, 0, 0]]);
    }
}
