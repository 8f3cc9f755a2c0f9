//! `cargo x`: every task of the repository, in one place.
//!
//! A task is a list of steps, each a command of its own; the first that fails ends the task.
//! Anything after the task's name is passed on to its last command.

mod fuzz;
mod panics;
mod steps;
mod tasks;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo x TASK [ARGUMENTS]

  fmt [--check]   rustfmt over the workspace
  lint            clippy, warnings are errors
  tidy            dependency arrows, purpose comments, file lengths, forbidden words
  panics          builds libcxlraid.so and counts the calls in it that would end a program; there may not be more than there were
  build           libcxlraid.so and cxlraid, optimised
  test            everything that must be green
  mount           programs on both doors of an array, the mount and interception, with a member lost or the mount killed
  posix           pjdfstest on arrays, compared with a plain directory
  servers [NAMES] [--level L] [--rounds N]
                  databases, compilers and file tools on arrays: load, kill -9, recovery, a member missing
  watched [NAMES] programs and servers with every system call under watch: none on an array may come from an instruction
                  that was not patched
  soak [--operations N] [--seed S] [--level L]
                  random operations by threads and processes against a model; a million per level
  children [--spawns N] [--seed S] [--level L] [NAMES]
                  children of every kind, started while other threads work on files: nothing of the parent may change
  trees [--runs N] [--seed S] [--level L] [SCENES]
                  shells, make, git, SQLite, daemons, servers while members of their array are lost: as on a plain directory
  attack [--actions N] [--seed S] [--level L] [--forge] [--outages]
                  a user without rights does what the kernel lets him, while others use the array: nothing of theirs is read or changed
  differ [--calls N] [--seed S] [--level L] [--steps A,B,..] [--only CALLS]
                  random programs of system calls on arrays and on a plain directory: what each call answers, and what is left
  differ --suites [NAMES] [--level L] [--list]
                  CPython's tests, stress-ng, dbench and others, case by case as on a plain directory
  operator [--cases N] [--seed S] [--level L]
                  members and files of .cxlraid damaged, swapped, emptied, put back from copies: nothing acknowledged is lost, no wrong byte read
  crash [--level L] [--workload W] [--mutations]
                  every state a crash of the machine may leave, recovered and compared with a model
  fuzz [TARGETS] [--runs N] [--quick]
                  bytes of members, environments and paths, fuzzed with coverage
  loom            every interleaving of a few threads in the locks between processes
  vm [SCENES] [--images N] [--seed S]
                  NVDIMMs and CXL memory in a virtual machine: MAP_SYNC, power cuts under load, recovery
  bench [--json]  limits, kernel and cxlraid in one run
  bench scale     how costs grow with files, processes, members, sizes; --help has the rest
  report [--quick | --full] [--only PART...] [--resume]
                  the seeds' figures on this machine, beside other file systems: target/report/index.html; exit status 3 if
                  some of those are not there
  demo            a RAID 5 array loses a member under running programs
  man             man pages and completions into target/dist
  dist            what an installation consists of, into target/dist";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match task.as_str() {
        "report" => match tasks::report(&rest) {
            Ok(status) => return ExitCode::from(status),
            Err(message) => Err(message),
        },
        "fmt" => tasks::fmt(&rest),
        "lint" => tasks::lint(&rest),
        "tidy" => tasks::tidy(),
        "panics" => tasks::panics(),
        "build" => tasks::build(&rest),
        "test" => tasks::test(&rest),
        "loom" => tasks::loom(),
        "posix" => tasks::posix(&rest),
        "mount" => tasks::mount(&rest),
        "servers" => tasks::servers(&rest),
        "watched" => tasks::watched(&rest),
        "soak" => tasks::soak(&rest),
        "children" => tasks::children(&rest),
        "trees" => tasks::trees(&rest),
        "operator" => tasks::operator(&rest),
        "attack" => tasks::attack(&rest),
        "differ" => tasks::differ(&rest),
        "crash" => tasks::crash(&rest),
        "fuzz" => fuzz::fuzz(&rest),
        "vm" => tasks::vm(&rest),
        "bench" => tasks::bench(&rest),
        "demo" => tasks::demo(&rest),
        "man" => tasks::man(),
        "dist" => tasks::dist(),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo x {task}: {message}");
            ExitCode::FAILURE
        }
    }
}
