//! `cxlraid policy`: which copies of an array's files are read; and the options of `create` that say
//! so. What it does with rules for new files is in [`crate::rules`].

use crate::{
    args::{ChecksumName, Create, Policy as Command, PolicyCommand, ReadPolicyName, VerifyName},
    commands::called,
    failure::{Exit, Failure},
    inspect, member, migrate, rules,
    spec::{ArraySpec, Source},
};
use array::{Array, shares::WHOLE};
use format::ReadPolicy;
use std::{fmt::Write as _, io, path::PathBuf};
use units::Slot;

/// Does what the command line says. Returns what is to be printed, and the exit status.
pub(crate) fn policy(source: &Source, command: &Command) -> Result<(String, Exit), Failure> {
    let said = |text| (text, Exit::Fine);
    match &command.rules {
        None => reads(source, command).map(said),
        Some(_) if command.read.is_some() || command.verify.is_some() => {
            let todo = "give two commands";
            let option = if command.read.is_some() { "--read" } else { "--verify" };
            Err(Failure::new(option, "does not go with a command about rules", todo).with_exit(Exit::Usage))
        }
        Some(PolicyCommand::Rules(command)) => rules::rules(source, command).map(said),
        Some(PolicyCommand::Apply(command)) => migrate::apply(source, command).map(|exit| (String::new(), exit)),
    }
}

/// Shows which copies are read, or changes that. Returns what is to be printed.
fn reads(source: &Source, command: &Command) -> Result<String, Failure> {
    let thing = called(source);
    let array = Array::attach(&inspect::config(source)?).map_err(|error| inspect::refused(thing, &error.to_string()))?;
    if let Some(wanted) = command.read {
        member::require_copies_in(thing, &array, "a read policy")?;
        set(&array, thing, wanted.policy())?;
    }
    if let Some(wanted) = command.verify {
        require_sums_in(thing, &array)?;
        set_verify(&array, thing, wanted)?;
    }
    let mut text = format!("{thing}: read {}\n", array.read_policy().name());
    if array.read_policy() == ReadPolicy::Latency {
        for member in array.members() {
            let (kept, cost) = array.runtime().shares().of(member.slot);
            let cost = cost.map_or_else(|| "not timed yet".to_owned(), |cost| format!("{} ticks a line", cost / 256));
            let _ =
                writeln!(text, "  {:>2}  {}  keeps {}% of its turns, {cost}", member.slot, member.shown(), kept * 100 / WHOLE);
        }
    }
    if array.has_sums() {
        let what = if array.verifies_reads() { "are compared with their checksums" } else { "do not look at checksums" };
        let _ = writeln!(text, "  reads {what}");
    }
    text += &rules::summary(&array, thing);
    Ok(text)
}

/// How an array that is made is to be read.
pub(crate) struct Reads {
    write_mostly: Vec<Slot>,
    policy: Option<ReadPolicy>,
    verify: Option<VerifyName>,
}

impl Reads {
    /// What the options of `create` say, of members of the array that is to be made. Its backing is
    /// written mostly.
    pub(crate) fn of(arguments: &Create, backing: &[PathBuf], spec: &ArraySpec) -> Result<Self, Failure> {
        if arguments.read_policy.is_some() {
            member::require_copies("--read-policy", spec.level, "a read policy")?;
        }
        if arguments.verify == Some(VerifyName::Read) && arguments.checksum != Some(ChecksumName::Crc32c) {
            let todo = "give --checksum crc32c as well, or leave --verify out";
            return Err(Failure::new("--verify", "reads have nothing to be compared with", todo).with_exit(Exit::Usage));
        }
        Ok(Self {
            write_mostly: member::slots_among(&spec.members, &[&*arguments.write_mostly, backing].concat(), spec.level)?,
            policy: arguments.read_policy.map(ReadPolicyName::policy),
            verify: arguments.verify,
        })
    }

    /// Says so of the array.
    pub(crate) fn set(&self, array: &Array, thing: &str) -> Result<(), Failure> {
        member::set_all(array, thing, &self.write_mostly)?;
        self.policy.map_or(Ok(()), |policy| set(array, thing, policy))?;
        match self.verify {
            Some(wanted) if array.has_sums() => set_verify(array, thing, wanted),
            // Under another name the members are an array that was made before.
            Some(VerifyName::Read) => require_sums_in(thing, array),
            _ => Ok(()),
        }
    }
}

fn set(array: &Array, thing: &str, policy: ReadPolicy) -> Result<(), Failure> {
    array.set_read_policy(policy).map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))
}

fn set_verify(array: &Array, thing: &str, wanted: VerifyName) -> Result<(), Failure> {
    let done = array.set_verifies_reads(wanted == VerifyName::Read);
    done.map_err(|error| inspect::refused(thing, &io::Error::from(error).to_string()))
}

/// Refuses what needs checksums for an array that has none.
fn require_sums_in(thing: &str, array: &Array) -> Result<(), Failure> {
    if array.has_sums() {
        return Ok(());
    }
    let todo = "checksums are given to an array when it is made ('cxlraid create --checksum crc32c')";
    Err(Failure::new(thing, "the array has no checksums that reads could be compared with", todo).with_exit(Exit::Usage))
}
