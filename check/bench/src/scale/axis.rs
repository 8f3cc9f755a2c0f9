//! What an axis is: points, measures, what a point needs of the machine, and how it is taken.

use crate::library::Library;
use crate::scale::limits::Needs;
use std::collections::BTreeMap;

/// How far the points of an axis go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// The smallest points: everything runs, times mean little.
    Quick,
    Full,
    /// Also what takes hours or very much memory.
    Long,
}

/// What all axes are given.
pub(crate) struct Bench {
    pub(crate) library: Library,
    pub(crate) rounds: usize,
    pub(crate) extent: Extent,
}

impl Bench {
    /// A count of calls that is enough to be timed, or enough to see that they work.
    pub(crate) fn calls(&self, full: usize) -> usize {
        if self.extent == Extent::Quick { full.div_ceil(16) } else { full }
    }
}

/// One thing that is measured at every point of an axis.
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    /// What it is, in words, with its unit.
    pub(crate) what: &'static str,
    /// The exponent that its growth may have. None for what is no cost.
    pub(crate) expected: Option<f64>,
}

/// A measure that should cost the same at every point.
pub(crate) const fn flat(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, expected: Some(0.0) }
}

/// A measure that may cost in proportion to the axis.
pub(crate) const fn linear(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, expected: Some(1.0) }
}

/// Something of which there is more and more.
pub(crate) trait Axis {
    /// The word by which it is asked for.
    fn name(&self) -> &'static str;

    /// What there is more and more of.
    fn what(&self) -> &'static str;

    /// How much of it, ascending.
    fn points(&self, extent: Extent) -> Vec<u64>;

    fn measures(&self) -> &'static [Measure];

    /// What the point needs of the machine.
    fn needs(&self, x: u64) -> Needs;

    /// About how long the point takes. It is for saying how long the rest takes.
    fn seconds(&self, x: u64) -> f64;

    /// Takes all wanted measures at a point. Points come in ascending order, and what one has made
    /// the next may go on with.
    fn point(&mut self, bench: &Bench, x: u64, record: &mut Record) -> Result<(), String>;
}

/// On what something is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum On {
    Array,
    Plain,
}

impl On {
    /// Both, the array first in every other round.
    pub(crate) const fn turns(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) { [Self::Array, Self::Plain] } else { [Self::Plain, Self::Array] }
    }
}

/// By measure, point and side: what the rounds gave.
type Values = BTreeMap<(&'static str, u64, On), Vec<f64>>;

/// Collects what was measured along one axis.
pub(crate) struct Record {
    wanted: Vec<String>,
    x: u64,
    pub(crate) xs: Vec<u64>,
    values: Values,
}

impl Record {
    pub(crate) fn new(wanted: Vec<&str>) -> Self {
        let wanted = wanted.into_iter().map(str::to_owned).collect();
        Self { wanted, x: 0, xs: Vec::new(), values: BTreeMap::new() }
    }

    /// What is added from now on belongs to this point.
    pub(crate) fn begin(&mut self, x: u64) {
        self.x = x;
        self.xs.push(x);
    }

    pub(crate) fn wants(&self, measure: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted == measure)
    }

    /// Tells whether any of these measures is wanted.
    pub(crate) fn wants_any(&self, measures: &[&str]) -> bool {
        measures.iter().any(|measure| self.wants(measure))
    }

    /// Adds what one round gave. What is not wanted is dropped.
    pub(crate) fn add(&mut self, measure: &'static str, on: On, value: f64) {
        if self.wants(measure) {
            self.values.entry((measure, self.x, on)).or_default().push(value);
        }
    }

    /// What the rounds gave.
    pub(crate) fn values(&self, measure: &'static str, x: u64, on: On) -> &[f64] {
        self.values.get(&(measure, x, on)).map_or(&[], Vec::as_slice)
    }
}
