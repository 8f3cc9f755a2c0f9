//! `pause`, `resume` and `cancel`: a job is told what to do by another process; and how `status`
//! shows it.

use crate::{
    compute::noun,
    failure::Failure,
    inspect,
    job::{GIVING_WAY_BYTES, said_of},
    spec::Source,
    view::{JobView, MemberView},
};
use array::runtime::{Job, JobBoard, JobKind, JobState, JobWish, look_for_job};
use format::Uuid;
use jiff::Timestamp;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a command waits for the job to do what it was told. A job that copies names finishes
/// that first.
const PATIENCE: Duration = Duration::from_secs(20);
const PERIOD: Duration = Duration::from_millis(10);

/// Tells the job that runs on an array what to do, and waits until it does that. Returns what is to
/// be printed.
pub(crate) fn tell(source: &Source, thing: &str, wish: JobWish) -> Result<String, Failure> {
    let newest = inspect::newest(source, thing)?;
    let board = JobBoard::open(newest.array_uuid, newest.access);
    let Some((board, job)) = board.and_then(|board| board.job().map(|job| (board, job))) else {
        let holder = crate::repairing::holding_process(source, thing);
        let what = match holder {
            Some(pid) => format!("a job of process {pid} is about to begin, and cannot be told anything yet"),
            None => "no rebuild, replacement, re-add or scrub runs on the array".to_owned(),
        };
        let todo = if holder.is_some() { "try again" } else { "'cxlraid status' shows what runs" };
        return Err(Failure::new(thing, what, todo));
    };
    let said = said_of(&job);
    let is_paused = job.state == JobState::Paused;
    match wish {
        JobWish::Pause if is_paused => {
            return Ok(format!("{thing}: {said} is paused already; 'cxlraid resume {thing}' goes on\n"));
        }
        // A job that prepares may have been told to pause before: it is told to go on in any case.
        JobWish::Go if !is_paused && job.state != JobState::Preparing && board.wish_for(job.number) != Some(JobWish::Pause) => {
            return Ok(format!("{thing}: {said} is not paused\n"));
        }
        _ => board.tell(job.number, wish),
    }
    let begun = Instant::now();
    loop {
        let now = board.job().filter(|now| now.number == job.number);
        match (wish, now.map(|now| now.state)) {
            (JobWish::Cancel, None) => {
                let goes_on = match job.kind {
                    JobKind::Replace => "; the same command, given again, goes on".to_owned(),
                    JobKind::Rebuild | JobKind::ReAdd(_) => {
                        format!("; 'cxlraid rebuild {thing}' goes on, and so does 'cxlraid monitor' where it runs")
                    }
                    JobKind::Check | JobKind::Repair => String::new(),
                };
                return Ok(format!("{thing}: {said} is cancelled{goes_on}\n"));
            }
            (_, None) => return Ok(format!("{thing}: {said} has ended\n")),
            (JobWish::Pause, Some(JobState::Paused)) => {
                return Ok(format!("{thing}: {said} is paused; 'cxlraid resume {thing}' goes on\n"));
            }
            (JobWish::Go, Some(JobState::Running | JobState::GivingWay | JobState::Preparing)) => {
                return Ok(format!("{thing}: {said} goes on\n"));
            }
            (_, Some(JobState::Ending)) if wish != JobWish::Cancel => {
                return Err(Failure::new(thing, format!("{said} is about to end: somebody has cancelled it"), ""));
            }
            _ if begun.elapsed() > PATIENCE => {
                let what = format!("{said} was told, and has not done so within {} seconds", PATIENCE.as_secs());
                return Err(Failure::new(thing, what, "it does when it comes to it; 'cxlraid status' shows that"));
            }
            _ => thread::sleep(PERIOD),
        }
    }
}

/// Tells a scrub that runs on an array to end, and does not wait for that.
pub(crate) fn end_scrub(source: &Source, thing: &str) {
    let Ok(newest) = inspect::newest(source, thing) else { return };
    let Some(board) = JobBoard::open(newest.array_uuid, newest.access) else { return };
    if let Some(job) = board.job().filter(|job| matches!(job.kind, JobKind::Check | JobKind::Repair)) {
        board.tell(job.number, JobWish::Cancel);
        let what = format!("{} is ended, since a member is to be made anew", said_of(&job));
        say!("{}", Failure::new(thing, what, "scrub again when the array is in sync"));
    }
}

/// The jobs of an array, as others see them.
pub(crate) fn jobs(uuid: Uuid, members: &[MemberView]) -> Vec<JobView> {
    look_for_job(uuid).iter().map(|job| view(job, members)).collect()
}

fn view(job: &Job, members: &[MemberView]) -> JobView {
    let is_its = |member: &&MemberView| job.members.contains(member.slot);
    let bytes_left = job.bytes_total.saturating_sub(job.bytes_done);
    let works = matches!(job.state, JobState::Running | JobState::GivingWay) && job.bytes_per_second > 0;
    let mode = match job.kind {
        JobKind::Check => Some("check"),
        JobKind::Repair => Some("repair"),
        JobKind::ReAdd(None) => Some("changes"),
        JobKind::ReAdd(Some(_)) => Some("everything"),
        JobKind::Rebuild | JobKind::Replace => None,
    };
    let reason = if let JobKind::ReAdd(unproven) = job.kind { unproven.map(|unproven| unproven.to_string()) } else { None };
    let state = match job.state {
        JobState::Preparing => "preparing",
        JobState::Running => "running",
        JobState::GivingWay => "giving-way",
        JobState::Paused => "paused",
        JobState::Ending => "ending",
    };
    let time = Timestamp::from_nanosecond(i128::from(job.begun_ns));
    JobView {
        kind: noun(job.kind),
        mode,
        reason,
        state,
        paused: job.state == JobState::Paused,
        members: members.iter().filter(is_its).map(|member| member.path.clone()).collect(),
        files_done: job.files_done,
        files_total: job.files_total.max(job.files_done),
        bytes_done: job.bytes_done,
        bytes_total: job.bytes_done + bytes_left,
        bytes_left,
        bytes_per_second: job.bytes_per_second,
        seconds_left: works.then(|| bytes_left.div_ceil(job.bytes_per_second)),
        bytes_per_second_max: Some(job.bytes_per_second_max).filter(|&max| max != 0),
        gives_way: job.gives_way,
        workers: job.workers,
        pid: job.process.pid,
        uid: job.user,
        begun_ns: job.begun_ns,
        begun: time.map_or_else(|_| String::new(), |time| format!("{time:.0}")),
    }
}

// What a job is slowed down to stands in the help of --idle.
const _: () = assert!(GIVING_WAY_BYTES == 10 << 20);
