//! What was damaged is made anew by the command that messages advise.

use crate::{
    case::{Case, Start},
    damage::Damage,
};
use stage::remove;
use stage::report::{Complaints, with_output};
use std::{fs, io, path::Path};

/// The words of a refused rebuild about a directory that it takes for somebody else's.
const EMPTY_IT: &str = "empty it";

/// Removes everything in a directory.
fn emptied(directory: &Path) -> io::Result<()> {
    fs::read_dir(directory)?.try_for_each(|entry| {
        let entry = entry?;
        if entry.file_type()?.is_dir() { remove(&entry.path()) } else { fs::remove_file(entry.path()) }
    })
}

impl Case<'_> {
    /// `cxlraid rebuild` makes the members anew that are out; then nothing is told of them any
    /// more, and all files are right.
    pub(crate) fn rebuilt(&self, damages: &[Damage], complaints: &mut Complaints) -> Result<(), String> {
        let status = self.status();
        if status.status == "0" {
            // Nothing is out.
            return Ok(());
        }
        let mut output = self.command().arg("rebuild").output();
        if !output.succeeded()
            && damages.iter().any(Damage::is_of_superblock)
            && output.notices.iter().any(|line| line.contains(EMPTY_IT))
        {
            // Nothing says that what lies there may be given up: that is for the operator to say.
            for member in damages.iter().filter_map(|damage| self.members.get(damage.slot)) {
                emptied(member).map_err(|error| format!("{}: {error}", member.display()))?;
            }
            output = self.command().arg("rebuild").output();
        }
        if !output.succeeded() {
            complaints.push(with_output("cxlraid rebuild", &output) + &output.notices.join("\n"));
            return Ok(());
        }
        match self.start("after the rebuild", &[], complaints) {
            Start::Right(notices) if notices.is_empty() => {}
            Start::Right(notices) => complaints.push(format!("after the rebuild something is told\n{}", notices.join("\n"))),
            Start::Refused(notices) => complaints.push(format!("after the rebuild a start is refused\n{}", notices.join("\n"))),
            Start::Wrong => {}
        }
        let status = self.status();
        if status.status != "0" {
            complaints.push(with_output("after the rebuild", &status));
        }
        self.change(self.seed << 8 | 0x30)?;
        self.stop()?;
        self.start("after the rebuild, changed", &[], complaints);
        self.check_redundancy("after the rebuild", complaints);
        self.stop()
    }
}
