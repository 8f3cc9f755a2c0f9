//! Two at a time: what two threads, or two processes, do in the time of one; on the array, on a
//! plain tmpfs, and in a bare loop on mapped memory, so that it can be seen what the machine itself
//! gives.

use crate::library::worker;
use crate::party::{self, Board, Ground, Job, On, PARTY_COUNT};
use crate::plan::{Plan, Task};
use crate::report::{Check, Row};
use crate::rounds::Times;
use std::io;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

/// By what the work is shared out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Threads,
    Processes,
}

/// Those who work.
enum Parties {
    Threads(Vec<JoinHandle<io::Result<()>>>),
    Processes(Vec<Child>),
}

impl Parties {
    fn start(kind: Kind, ground: &Ground) -> io::Result<Self> {
        let thread = |index| {
            let ground = ground.clone();
            std::thread::spawn(move || party::work(&ground, index))
        };
        let process = |index| {
            let mut command = worker(&Task::Party { ground: ground.clone(), index }).map_err(io::Error::other)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
        };
        Ok(match kind {
            Kind::Threads => Self::Threads((0..PARTY_COUNT).map(thread).collect()),
            Kind::Processes => Self::Processes((0..PARTY_COUNT).map(process).collect::<io::Result<_>>()?),
        })
    }

    /// Whether nobody has ended yet.
    fn live(&mut self) -> bool {
        match self {
            Self::Threads(threads) => threads.iter().all(|thread| !thread.is_finished()),
            Self::Processes(children) => children.iter_mut().all(|child| matches!(child.try_wait(), Ok(None))),
        }
    }

    fn join(self) -> io::Result<()> {
        match self {
            Self::Threads(threads) => threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))),
            Self::Processes(children) => children.into_iter().try_for_each(|mut child| match child.wait()? {
                status if status.success() => Ok(()),
                status => Err(io::Error::other(format!("a process of two: {status}"))),
            }),
        }
    }
}

/// The rows, from a process that has the library: of threads, then of processes.
pub(crate) fn rows(plan: &Plan, ground: &Ground) -> io::Result<Vec<Row>> {
    party::prepare(ground)?;
    let mut rows = Vec::new();
    for kind in [Kind::Threads, Kind::Processes] {
        let _ = std::fs::remove_file(ground.directory.join("board"));
        let board = Board::open(&ground.directory)?;
        let mut parties = Parties::start(kind, ground)?;
        let measured = measure(plan, kind, ground, &board, &mut || parties.live());
        board.end();
        let joined = parties.join();
        rows.extend(measured?);
        joined?;
    }
    Ok(rows)
}

fn measure(plan: &Plan, kind: Kind, ground: &Ground, board: &Board, lives: &mut impl FnMut() -> bool) -> io::Result<Vec<Row>> {
    board.wait_for_parties(lives)?;
    let cases = [(false, false, 1.8), (false, true, 1.8), (true, false, 1.6), (true, true, 1.5)];
    cases
        .into_iter()
        .map(|(writes, same, goal)| {
            let times = times(plan, ground, board, writes, same, lives)?;
            Ok(row(kind, writes, same, goal, &times))
        })
        .collect()
}

/// By subject (ours, the kernel, memory), one party's time per call and two parties', by turns in
/// each round.
fn times(
    plan: &Plan,
    ground: &Ground,
    board: &Board,
    writes: bool,
    same: bool,
    lives: &mut impl FnMut() -> bool,
) -> io::Result<Times> {
    let mut times = vec![Vec::new(); 2 * 3];
    for round in 0..=plan.rounds_of_two {
        for (index, on) in [On::Ours, On::Kernel, On::Memory].into_iter().enumerate() {
            for parties in 1..=PARTY_COUNT {
                let nanoseconds = board.run(Job { on, writes, same, parties }, lives)?;
                // The first round warms up.
                if round > 0 {
                    times[2 * index + parties - 1].push(nanoseconds / ground.calls as f64);
                }
            }
        }
    }
    Ok(Times::new(times))
}

fn row(kind: Kind, writes: bool, same: bool, goal: f64, times: &Times) -> Row {
    let done_by_two = |on: usize| 2.0 * times.ratio(2 * on, 2 * on + 1);
    let (ours, kernel, memory) = (done_by_two(0), done_by_two(1), done_by_two(2));
    let (work, files) = (if writes { "write" } else { "read" }, if same { "one file" } else { "two files" });
    let (kind, one) = match kind {
        Kind::Threads => ("threads", "one thread's"),
        Kind::Processes => ("processes", "one process'"),
    };
    Row {
        ours_ns: Some(times.nanoseconds(1)),
        limit_ns: Some(times.nanoseconds(5)),
        kernel_ns: Some(times.nanoseconds(3)),
        limit_ratio: Some(times.ratio(1, 5)),
        kernel_ratio: Some(times.ratio(3, 1)),
        checks: vec![Check::at_least(&format!("times {one}"), ours, goal)],
        note: format!("plain tmpfs {kernel:.2}, bare memory loop {memory:.2}"),
        ..Row::new(format!("2 {kind}, {work} 4 KiB random, {files}"))
    }
}
