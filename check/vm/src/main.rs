//! `cxlraid-vm`: arrays on hardware that is not there: NVDIMMs and a CXL memory device, emulated by
//! QEMU, under DAX file systems.
//!
//! The program is both sides. On the host ([`host`]) it puts a small system together from Debian
//! packages and the host's programs, boots it, cuts its power by copying the NVDIMMs of a stopped
//! QEMU, and boots every copy. In the guest ([`guest`]) it is process 1, does the one job that the
//! kernel's command line names ([`job`]), and switches the machine off.
//!
//! QEMU emulates in software and has no processor cache: every store reaches the NVDIMM at once and
//! in program order. So these runs show what the kernel's file systems, the detection of hardware
//! and recovery do; a missing flush they cannot show.

mod array;
mod guest;
mod host;
mod job;
mod options;

use std::process::ExitCode;

/// Why something failed, in words for the reader of the report.
type Outcome<T = ()> = Result<T, String>;

/// An error of the system with what it is about.
fn about<E: std::fmt::Display>(thing: impl std::fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{thing}: {error}")
}

fn main() -> ExitCode {
    if std::process::id() == 1 {
        guest::run();
    }
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|argument| argument == guest::digest::COMMAND).is_some() {
        return guest::digest::command(arguments);
    }
    let options = match options::Options::from_arguments(arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if options.help {
        println!("{}", options::HELP);
        return ExitCode::SUCCESS;
    }
    match host::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("cxlraid-vm: {message}");
            ExitCode::FAILURE
        }
    }
}
