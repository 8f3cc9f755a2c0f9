//! `cxlraid-operator`: what an operator's mistakes do to data.
//!
//! Each case ([`case`]) has a seed: an array of some level is filled, stopped, and damaged
//! ([`damage`]) on as many members as its level bears; then it is read, written, stopped, the
//! damage is taken back, and it is read and written again. The same work ([`work`]) is done in a
//! plain directory.
//!
//! Judged: no wrong byte and no missing name is ever read; what was acknowledged is there; an array
//! that does not start says why, names the member and changes nothing, and no program learns of it
//! as "no such file"; members without damage are not changed by reading; what `cxlraid status` says
//! is what a start does.

mod beyond;
mod case;
mod damage;
mod mounts;
mod options;
mod rebuilt;
mod shape;
mod split;
mod tree;
mod work;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(played) = work::play(&words) {
        return match played {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    mounts::go_apart();
    let options = options::Options::from_arguments(std::env::args_os().skip(1));
    stage::options::conclude("cxlraid-operator", options::HELP, options, case::all)
}
