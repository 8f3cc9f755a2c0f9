//! The parts of the report. A part says what figures it has, in what groups it measures them, and
//! measures a group.

mod bench;
mod configurations;
mod growth;
mod maildir;
mod matrix;
mod postgresql;
mod raid;
mod redis;
mod rocksdb;
mod sizes;

use crate::figure::Figure;
use crate::ground::Ground;
use crate::plan::Plan;
use crate::record::Sample;

/// Systems that are measured together, by turns.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its name in the part.
    pub(crate) name: String,
    /// What it is thought to take.
    pub(crate) seconds: f64,
}

/// A part of the report.
pub(crate) trait Part {
    /// The word by which the part is asked for.
    fn name(&self) -> &'static str;

    /// The heading of its section.
    fn title(&self) -> &'static str;

    fn figures(&self) -> Vec<Figure>;

    /// Bytes of memory that its largest group takes.
    fn needs_bytes(&self, plan: &Plan) -> u64;

    fn groups(&self, plan: &Plan) -> Vec<Group>;

    /// Measures a group. `group` is the index of one of [`Part::groups`].
    fn measure(&self, ground: &Ground, plan: &Plan, group: usize) -> Result<Vec<Sample>, String>;
}

/// Every part, in the order of the report.
pub(crate) fn all() -> Vec<Box<dyn Part>> {
    vec![
        Box::new(matrix::Matrix),
        Box::new(sizes::Sizes),
        Box::new(redis::Redis),
        Box::new(raid::Raid),
        Box::new(postgresql::PostgreSql),
        Box::new(rocksdb::RocksDb),
        Box::new(maildir::Maildir),
        Box::new(bench::Applications),
        Box::new(bench::Safety),
        Box::new(growth::Growth),
    ]
}

/// Measurements of a quick run that go on at the same time: its times mean nothing.
const AT_ONCE: usize = 4;

/// Runs `contender` for each index below `count` by turns, as many rounds as the plan has. Each
/// round begins with another one. Returns the values by index and round. In a quick run there is one
/// round, in which several run at the same time.
pub(crate) fn by_turns<T: Send>(
    plan: &Plan,
    count: usize,
    contender: impl Fn(usize) -> Result<T, String> + Sync,
) -> Result<Vec<Vec<T>>, String> {
    let mut values: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    if plan.is_quick() {
        let indices: Vec<usize> = (0..count).collect();
        for some in indices.chunks(AT_ONCE) {
            let found: Vec<Result<T, String>> = std::thread::scope(|scope| {
                let contender = &contender;
                let started: Vec<_> = some.iter().map(|&index| scope.spawn(move || contender(index))).collect();
                let ended = started.into_iter().map(|one| one.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())));
                ended.collect()
            });
            for (&index, value) in some.iter().zip(found) {
                values[index].push(value?);
            }
        }
        return Ok(values);
    }
    for round in 0..plan.rounds {
        for turn in 0..count {
            let index = (turn + round) % count;
            values[index].push(contender(index)?);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Extent;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn rounds_are_interleaved() {
        let order = Mutex::new(Vec::new());
        let plan = Plan::new(Extent::Usual);
        let values = by_turns(&plan, 2, |index| {
            let mut order = order.lock().unwrap();
            order.push(index);
            Ok(order.len())
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 1, 0, 0, 1]);
        assert_eq!(values, Ok(vec![vec![1, 4, 5], vec![2, 3, 6]]));
        let quick = by_turns(&Plan::new(Extent::Quick), 6, Ok);
        assert_eq!(quick, Ok((0..6).map(|index| vec![index]).collect()));
        assert_eq!(by_turns(&plan, 1, |_| Err::<(), _>("no".to_owned())), Err("no".to_owned()));
    }

    #[test]
    fn names_are_given_once_and_can_be_names_of_files() {
        let (mut figures, mut parts) = (BTreeSet::new(), BTreeSet::new());
        let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !name.is_empty();
        for part in all() {
            assert!(is_plain(part.name()) && parts.insert(part.name()), "{}", part.name());
            for figure in part.figures() {
                assert!(is_plain(&figure.id) && figures.insert(figure.id.clone()), "{}", figure.id);
                assert!(!figure.measured.is_empty() && !figure.differs.is_empty(), "{} has no caption", figure.id);
            }
            for extent in [Extent::Quick, Extent::Usual, Extent::Full] {
                let groups = part.groups(&Plan::new(extent));
                let names: BTreeSet<String> = groups.iter().map(|group| group.name.clone()).collect();
                assert!(names.len() == groups.len() && names.iter().all(|name| is_plain(name)), "{}", part.name());
            }
        }
    }
}
