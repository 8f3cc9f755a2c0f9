//! `cxlraid-attack`: a user without rights against an array that root and another user work on.
//!
//! Each round ([`round`]) has a seed, an array, and three users: the attacker, who acts on what is
//! his ([`actions`], [`attacker`]), and two victims ([`victim`]), who use the array through the
//! library, die, lose a member, add and retrieve. What they wrote is known ([`model`]), and what
//! lies outside the array ([`outside`]).
//!
//! Judged: the attacker can read no secret; outside the array nothing changed; the victims' files
//! are as they left them, on each member and with redundancy that fits; nobody hangs or crashes; no
//! member goes out by what the attacker did.
//!
//! This one program plays every part, each in a process of its own; the first argument names the
//! part.

mod actions;
mod attacker;
mod kernel;
mod model;
mod options;
mod outside;
mod places;
mod round;
mod run;
mod shape;
mod squat;
mod victim;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (role, rest) = words.split_first().map_or(("", &[][..]), |(role, rest)| (role.as_str(), rest));
    let played = match role {
        attacker::ROLE => Some(attacker::act(rest)),
        victim::ROLE => Some(victim::work(rest)),
        victim::PREPARE => Some(victim::prepare(rest)),
        model::ROLE => Some(model::list(rest)),
        squat::ROLE => Some(squat::squat(rest)),
        round::SCRUB => Some(round::scrub(rest)),
        _ => None,
    };
    match played {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("{role}: {error}");
            ExitCode::FAILURE
        }
        None => {
            let options = options::Options::from_arguments(std::env::args_os().skip(1));
            stage::options::conclude("cxlraid-attack", options::HELP, options, run::all)
        }
    }
}
