//! What `top` shows: figures of an interval and totals, as a table and as JSON.
//!
//! The counters are not believed: any number may be any other. What is shown is wrong then, and
//! nothing else.

use super::Moment;
use crate::view::{ArrayState, ArrayView, MemberState, shown};
use array::{
    Way,
    runtime::counters::{Counted, Kind, MovedCounts, ProcessCounted, RANGE_COUNT, SHIFT},
};
use serde::Serialize;
use std::fs;

/// The version of the JSON document: keys are added within it, never renamed or removed.
const JSON_VERSION: u32 = 1;
/// Of the times of calls one is shown than which so many in a hundred are shorter.
const PERCENT: u64 = 99;

/// Calls and bytes, as totals or by the second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Flow<N> {
    reads: N,
    writes: N,
    /// Of a member nobody counts these.
    #[serde(skip_serializing_if = "Option::is_none")]
    syncs: Option<N>,
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<N>,
    bytes_read: N,
    bytes_written: N,
}

impl Flow<u64> {
    fn of(counted: &Counted) -> Self {
        Self {
            reads: counted.calls(Kind::Read),
            writes: counted.calls(Kind::Write),
            syncs: Some(counted.calls(Kind::Sync)),
            others: Some(counted.calls(Kind::Other)),
            bytes_read: counted.bytes(Way::Read),
            bytes_written: counted.bytes(Way::Write),
        }
    }

    const fn moved(MovedCounts { calls, bytes }: MovedCounts) -> Self {
        Self { reads: calls[0], writes: calls[1], syncs: None, others: None, bytes_read: bytes[0], bytes_written: bytes[1] }
    }

    fn per_second(self, seconds: f64) -> Flow<f64> {
        let rate = |number: u64| if seconds > 0.0 { number as f64 / seconds } else { 0.0 };
        Flow {
            reads: rate(self.reads),
            writes: rate(self.writes),
            syncs: self.syncs.map(rate),
            others: self.others.map(rate),
            bytes_read: rate(self.bytes_read),
            bytes_written: rate(self.bytes_written),
        }
    }
}

/// How long timed calls of the interval took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Times {
    /// How many were timed.
    timed: u64,
    mean_ns: f64,
    /// Longer than all but one in a hundred, as well as ranges of times tell.
    p99_ns: f64,
}

impl Times {
    /// None if no call was timed.
    fn of(counted: &Counted, way: Way, ns_per_tick: f64) -> Option<Self> {
        let ranges = counted.ranges(way);
        let timed = ranges.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
        (timed > 0).then(|| Self {
            timed,
            mean_ns: counted.ticks(way) as f64 / timed as f64 * ns_per_tick,
            p99_ns: below(ranges, timed) * ns_per_tick,
        })
    }
}

/// The ticks that [`PERCENT`] of the times are below, by the ranges that the times lie in.
fn below(ranges: &[u64], timed: u64) -> f64 {
    let wanted = timed as f64 * PERCENT as f64 / 100.0;
    let mut before = 0.0;
    for (range, &count) in ranges.iter().enumerate().filter(|(_, count)| **count > 0) {
        let end = (1_u64 << (SHIFT as usize + range.min(RANGE_COUNT))) as f64;
        let start = if range == 0 { 0.0 } else { end / 2.0 };
        if before + count as f64 >= wanted {
            return start + (end - start) * (wanted - before) / count as f64;
        }
        before += count as f64;
    }
    0.0
}

#[derive(Clone, PartialEq, Debug, Serialize)]
struct Latency {
    read: Option<Times>,
    write: Option<Times>,
}

impl Latency {
    fn of(counted: &Counted, ns_per_tick: f64) -> Self {
        Self { read: Times::of(counted, Way::Read, ns_per_tick), write: Times::of(counted, Way::Write, ns_per_tick) }
    }
}

#[derive(Debug, Serialize)]
struct MemberFigures {
    slot: usize,
    path: String,
    state: MemberState,
    /// A member's figures are estimates from the calls that were timed.
    estimated: bool,
    total: Flow<u64>,
    per_second: Flow<f64>,
}

#[derive(Debug, Serialize)]
struct ProcessFigures {
    pid: u32,
    command: String,
    total: Flow<u64>,
    per_second: Flow<f64>,
    latency: Latency,
}

/// What was done between two moments.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    version: u32,
    name: String,
    uuid: Option<String>,
    state: ArrayState,
    level: String,
    /// The length of the interval.
    seconds: f64,
    /// False if more threads ran at once than can be counted: the figures are too low then.
    complete: bool,
    total: Flow<u64>,
    per_second: Flow<f64>,
    latency: Latency,
    members: Vec<MemberFigures>,
    processes: Vec<ProcessFigures>,
}

impl Figures {
    pub(super) fn new(thing: &str, view: &ArrayView, earlier: &Moment, later: &Moment) -> Self {
        let elapsed = later.time.saturating_duration_since(earlier.time);
        let (seconds, ticks) = (elapsed.as_secs_f64(), later.ticks.saturating_sub(earlier.ticks));
        let ns_per_tick = if ticks > 0 { elapsed.as_nanos() as f64 / ticks as f64 } else { 0.0 };
        let (counted, before) = (&later.counted, &earlier.counted);
        let since = counted.all.since(&before.all);
        let member = |member: &crate::view::MemberView| {
            let known = (
                counted.on_member(member.slot, &array::runtime::counters::AllCounted::default()),
                counted.on_member(member.slot, before),
            );
            MemberFigures {
                slot: member.slot,
                path: member.path.clone(),
                state: member.state,
                estimated: true,
                total: Flow::moved(known.0),
                per_second: Flow::moved(known.1).per_second(seconds),
            }
        };
        let process = |process: &ProcessCounted| {
            let former = before.processes.iter().find(|former| former.owner == process.owner);
            let since = process.counted.since(&former.map(|former| former.counted).unwrap_or_default());
            ProcessFigures {
                pid: process.pid,
                command: command(process.pid),
                total: Flow::of(&process.counted),
                per_second: Flow::of(&since).per_second(seconds),
                latency: Latency::of(&since, ns_per_tick),
            }
        };
        Self {
            version: JSON_VERSION,
            name: view.name.clone().unwrap_or_else(|| thing.to_owned()),
            uuid: view.uuid.clone(),
            state: view.state(),
            level: view.level.to_string(),
            seconds,
            complete: !counted.is_incomplete,
            total: Flow::of(&counted.all),
            per_second: Flow::of(&since).per_second(seconds),
            latency: Latency::of(&since, ns_per_tick),
            members: view.members.iter().map(member).collect(),
            processes: counted.processes.iter().map(process).collect(),
        }
    }

    /// The figures as a JSON document, on one line or `pretty`.
    pub(super) fn json(&self, pretty: bool) -> String {
        // Strings, numbers and lists only: there is nothing that could fail.
        if pretty { serde_json::to_string_pretty(self) } else { serde_json::to_string(self) }.unwrap_or_default()
    }

    /// The figures as a table. Processes that do most stand first.
    pub(super) fn table(&self) -> String {
        let mut table = Table::default();
        let state = self.state.text();
        table.line(&format!("{}: {state}, RAID {}, {:.1} s", shown(&self.name), self.level, self.seconds));
        if !self.complete {
            table.line("more threads run than can be counted: the figures are too low");
        }
        table.line("");
        let title = "              calls a second                MB a second      us a read        us a write";
        let names = "    read   write    sync   other      read   written      mean     99%      mean     99%";
        table.row(title, "");
        table.row(names, "");
        table.row(&(flow(&self.per_second) + &times(&self.latency)), "array");
        for member in &self.members {
            let state = if member.state.works() { "" } else { &format!(", {}", member.state.text()) };
            table.row(&flow(&member.per_second), &format!("{}  {}{state}", member.slot, shown(&member.path)));
        }
        table.line("");
        if self.processes.is_empty() {
            table.line("no process that runs has done anything on the array");
            return table.text;
        }
        table.row(names, "  PID  COMMAND");
        let busy = |process: &ProcessFigures| {
            let Flow { reads, writes, syncs, others, .. } = process.per_second;
            reads + writes + syncs.unwrap_or_default() + others.unwrap_or_default()
        };
        let mut processes: Vec<&ProcessFigures> = self.processes.iter().collect();
        processes.sort_by(|one, other| busy(other).total_cmp(&busy(one)).then(one.pid.cmp(&other.pid)));
        for process in processes {
            let name = format!("{:>5}  {}", process.pid, shown(&process.command));
            table.row(&(flow(&process.per_second) + &times(&process.latency)), &name);
        }
        table.text
    }
}

/// What a process is called (proc(5)); it may have ended meanwhile.
fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()
}

#[derive(Default)]
struct Table {
    text: String,
}

impl Table {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Figures, and whose they are.
    fn row(&mut self, figures: &str, name: &str) {
        /// The width of all figures.
        const WIDTH: usize = 86;
        self.line(&format!("{figures:WIDTH$}  {name}"));
    }
}

fn flow(flow: &Flow<f64>) -> String {
    let call = |number: f64| format!("{:>8}", short(number));
    let of = |number: Option<f64>| number.map_or_else(|| format!("{:>8}", "-"), call);
    let bytes = |number: f64| format!("{:>10.1}", number / 1e6);
    let calls = [call(flow.reads), call(flow.writes), of(flow.syncs), of(flow.others)].concat();
    calls + &bytes(flow.bytes_read) + &bytes(flow.bytes_written)
}

fn times(latency: &Latency) -> String {
    let one = |times: Option<Times>| match times {
        None => format!("{:>10}{:>8}", "-", "-"),
        Some(Times { mean_ns, p99_ns, .. }) => format!("{:>10.2}{:>8.2}", mean_ns / 1e3, p99_ns / 1e3),
    };
    one(latency.read) + &one(latency.write)
}

/// A rate in at most seven characters.
fn short(number: f64) -> String {
    match number {
        ..99_999.5 => format!("{number:.0}"),
        ..9_999_950.0 => format!("{:.1}k", number / 1e3),
        ..9_999_950_000.0 => format!("{:.1}M", number / 1e6),
        _ => format!("{:.1e}", number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_takes_longer() {
        let mut ranges = [0; RANGE_COUNT];
        ranges[0] = 100;
        assert!((below(&ranges, 100) - 126.72).abs() < 0.01);
        ranges[3] = 900;
        // From 512 to 1024 ticks lie 900 of 1000, the first 890 of them below.
        assert!((below(&ranges, 1000) - (512.0 + 512.0 * 890.0 / 900.0)).abs() < 0.01);
        assert!(below(&[u64::MAX; RANGE_COUNT], 5) > 0.0);
        assert!(below(&[0; RANGE_COUNT], 0) < 1.0);
    }

    #[test]
    fn rates_stay_in_their_columns() {
        let texts = [0.0, 0.4, 99_999.4, 100_000.0, 9_999_949.0, 12_345_678.9, 9.9e9, 1e19].map(short);
        assert_eq!(texts, ["0", "0", "99999", "100.0k", "9999.9k", "12.3M", "9900.0M", "1.0e19"]);
    }
}
