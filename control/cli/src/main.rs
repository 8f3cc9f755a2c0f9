//! `cxlraid`: the operator's command. What it does is in the library beside this file, so that it
//! can be fuzzed.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cxlraid_cli::main()
}
