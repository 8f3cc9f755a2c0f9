//! `cxlraid-crash`: what the engine makes of every state in which a crash of the machine may leave
//! the members.
//!
//! A run of the engine is recorded, store by store (`record`), on members that look like a DAX file
//! system. From the log follow the states that the members may be in after a crash at any instant
//! (`states`). Each is laid out in shared memory and recovered by the same code that a program runs
//! when it starts (`recovery`), and what comes back is compared with what the program knows
//! (`model`). The engine is not built for this in any way: what is recorded is what the processor
//! executes.
//!
//! Everything follows from a seed, which is printed, but for the numbers of files and the clock.

mod case;
mod child;
mod explore;
mod image;
mod log;
mod model;
mod mutation;
mod options;
mod perform;
mod proof;
mod readd;
mod record;
mod recovery;
mod states;
mod suite;
mod workload;

use std::process::ExitCode;

/// What the kernel gives new files and open files to this process.
fn settle_limits() {
    // SAFETY: these take integers and a limit that is ours.
    unsafe {
        libc::umask(0o022);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

fn main() -> ExitCode {
    settle_limits();
    let options = match options::Options::from_arguments(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if options.help || options.list {
        println!("{}", if options.help { options::HELP.to_owned() } else { workload::NAMES.join("\n") });
        return ExitCode::SUCCESS;
    }
    match suite::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cxlraid-crash: {message}");
            ExitCode::FAILURE
        }
    }
}
