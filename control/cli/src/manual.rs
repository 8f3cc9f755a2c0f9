//! Man pages and shell completions, from the same definitions as the command line.

use crate::{args::Cli, failure::Failure};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

/// Prints the completion script.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cxlraid", &mut script);
    io::stdout().write_all(&script).map_err(|error| Failure::new("standard output", error, ""))
}

/// Writes cxlraid.1 and cxlraid-COMMAND.1 into `directory`.
pub(crate) fn pages(directory: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::new(directory.display(), error, "choose a directory that can be written");
    fs::create_dir_all(directory).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page() {
        let home = tempfile::tempdir().unwrap();
        pages(home.path()).unwrap();
        let page = |name: &str| fs::read_to_string(home.path().join(name)).unwrap();
        assert!(page("cxlraid.1").contains(".TH cxlraid 1"));
        assert!(page("cxlraid-create.1").contains("cxlraid create"));
        assert!(!home.path().join("cxlraid-man.1").exists());
    }
}
