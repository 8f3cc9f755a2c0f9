//! `cxlraid-mount-check`: programs on both doors of an array at once.
//!
//! A static program uses the array through a mount, and the same program, linked dynamically, is
//! served by the library. Each scene is a list of calls of both, one after the other, with what
//! each must give: what one has done when its call returns, the other must see in its next call. In
//! between a member is lost, or the process that serves the mount is killed. In the end members
//! must hold what they must, and nothing is left in shared memory.

mod alone;
mod copies;
mod dying;
mod ground;
mod handed;
mod many;
mod mapped;
mod meanwhile;
mod peer;
mod rights;
mod scenes;

use peer::Programs;
use stage::options::{Words, beside_us, conclude, is_option, library, must_be_built};
use std::{path::PathBuf, process::ExitCode};

const HELP: &str = "\
cxlraid-mount-check [OPTIONS] [NAME...]

Runs the scenes whose name contains one of NAME; all of them without. Needs gcc. Without root or /dev/fuse nothing is run,
and a line says so.

  --lib PATH   libcxlraid.so (else CXLRAID_LIB, else beside this program)
  --list       names of scenes";

struct Options {
    library: PathBuf,
    command: PathBuf,
    lists: bool,
    names: Vec<String>,
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options { library: library(), command: beside_us("cxlraid"), lists: false, names: Vec::new() };
    let mut words = Words::new(std::env::args_os().skip(1), HELP);
    while let Some(word) = words.next_word() {
        match word.as_str() {
            "--lib" => options.library = words.value()?.into(),
            "--list" => options.lists = true,
            "--help" | "-h" => return Ok(None),
            option if is_option(option) => return Err(words.unknown()),
            _ => options.names.push(word),
        }
    }
    must_be_built(&options.library, "cxlraid-preload")?;
    must_be_built(&options.command, "cxlraid-cli")?;
    Ok(Some(options))
}

fn main() -> ExitCode {
    conclude("cxlraid-mount-check", HELP, options(), |options| {
        if options.lists {
            scenes::ALL.iter().for_each(|(name, _)| println!("{name}"));
            return Ok(true);
        }
        if let Err(message) = stage::door::may_mount() {
            println!("NOT RUN: the mount: {message}");
            return Ok(true);
        }
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let programs = Programs::build(directory.path())?;
        let is_wanted =
            |name: &str| options.names.is_empty() || options.names.iter().any(|wanted| name.contains(wanted.as_str()));
        let (mut failed, mut skipped) = (Vec::new(), Vec::new());
        for (name, scene) in scenes::ALL.iter().filter(|(name, _)| is_wanted(name)) {
            if options.names.is_empty() && *name == scenes::UNSOLVED {
                println!("{name}: NOT RUN: it fails now and then (docs/mount.md, What it does not do); name it to run it");
                continue;
            }
            match scene(options, &programs) {
                Ok(()) => println!("{name}: passed"),
                Err(why) if why.starts_with(alone::NOT_RUN) => {
                    println!("{name}: {why}");
                    skipped.push(*name);
                }
                Err(why) => {
                    println!("{name}: FAILED: {why}");
                    failed.push(*name);
                }
            }
        }
        if !skipped.is_empty() {
            println!("not run: {}", skipped.join(", "));
        }
        // A scene may have much to tell, and who reads a log sees its end first.
        if !failed.is_empty() {
            println!("failed: {}", failed.join(", "));
        }
        Ok(failed.is_empty())
    })
}
