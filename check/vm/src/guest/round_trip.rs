//! Unmodified programs write and read arrays on DAX file systems; every mapping of a member is a
//! synchronous one, the persistence domain is the one the platform has, and files outlive
//! unmounting and members that are missing.

use super::{Port, audit, devices, fio, members::Members, programs::Program};
use crate::{
    Outcome, about,
    array::{Array, FileSystem, PREFIX, Shape},
    job::Job,
};
use std::{fs, path::PathBuf};

pub(super) fn run(job: &Job, log: &Port) -> Outcome {
    let system: FileSystem = job.get("fs")?;
    let domain: String = job.get("persistence")?;
    let most = Shape::ALL.iter().map(|shape| shape.member_count).max().unwrap_or(0);
    let devices = devices::make_namespaces(most)?;
    for shape in Shape::ALL {
        let domains = vec![domain.as_str(); shape.member_count];
        let array = Array { shape, system, journal: false };
        let text = round_trip(array, &devices[..shape.member_count], &domains);
        log.line(&format!(
            "= RAID {} on {system}: {}",
            shape.level,
            text.map_err(|error| format!("RAID {}: {error}", shape.level))?
        ))?;
    }
    Ok(())
}

/// Two NVDIMMs whose platform flushes caches (eADR), and a CXL device, of which only the memory
/// controller's queues are flushed (ADR).
pub(super) fn cxl(log: &Port) -> Outcome {
    let mut devices = devices::make_namespaces(2)?;
    devices.push(devices::make_cxl_namespace()?);
    for shape in [Shape::of_level(5)?, Shape::of_level(1)?] {
        let array = Array { shape, system: FileSystem::Ext4, journal: false };
        let text = round_trip(array, &devices, &["eADR", "eADR", "ADR"])?;
        log.line(&format!("= RAID {} on two NVDIMMs and CXL memory: {text}", shape.level))?;
    }
    Ok(())
}

fn round_trip(array: Array, devices: &[PathBuf], domains: &[&str]) -> Outcome<String> {
    let members = Members::format(array, devices)?;
    let names: Vec<String> = (0..array.shape.member_count).map(|slot| members.place(slot).display().to_string()).collect();
    let create = format!("create array --level {} --chunk 64K --at {PREFIX} {}", array.shape.level, names.join(" "));
    Program::of_user("cxlraid").words(&create).done()?;
    write(&members)?;
    store(&members)?;
    let mappings = synchronous_mappings(&members)?;
    let status = members.cxlraid("status", 0)?;
    for (slot, domain) in domains.iter().enumerate() {
        let line = status.lines().find(|line| line.contains(&names[slot])).unwrap_or_default();
        if !line.ends_with(&format!("in sync, persistent ({domain})")) {
            return Err(format!("member {slot} must be in sync and persistent ({domain}); cxlraid status says\n{status}"));
        }
    }
    let contents = audit::contents(&members)?;
    members.cxlraid("stop", 0)?;
    members.unmount()?;
    let members = Members::mount_these(array, devices)?;
    audit::same("files before and after unmounting", &contents, &audit::contents(&members)?)?;
    let audited = audit::audit(&members, audit::Sets::All)?;
    members.cxlraid("stop", 0)?;
    members.without(&[0]).cxlraid("status", 3)?;
    Program::of_user("cxlraid").words("forget array").done()?;
    members.unmount()?;
    Ok(format!("{mappings} synchronous mappings, persistent ({}); {audited}", domains.join(", ")))
}

/// Large and small, aligned and not, appended and overwritten.
fn write(members: &Members) -> Outcome {
    let source = format!("{}/source", super::programs::HOME);
    Program::of_user("dd").words(&format!("if=/dev/urandom of={source} bs=64K count=24 status=none")).done()?;
    for words in [
        format!("if={source} of={PREFIX}/whole bs=1M conv=fsync status=none"),
        format!("if={source} of={PREFIX}/odd bs=10007 conv=fsync status=none"),
        format!("if={source} of={PREFIX}/odd bs=5003 seek=7 skip=3 count=40 conv=notrunc,fsync oflag=dsync status=none"),
        format!("if={source} of={PREFIX}/hole bs=4096 seek=300 count=3 conv=fsync status=none"),
    ] {
        Program::inside("dd", members).words(&words).done()?;
    }
    Program::inside("cmp", members).words(&format!("{source} {PREFIX}/whole")).done()?;
    // The same bytes by the kernel.
    let odd = format!("{}/odd", super::programs::HOME);
    for words in [
        format!("if={source} of={odd} bs=10007 status=none"),
        format!("if={source} of={odd} bs=5003 seek=7 skip=3 count=40 conv=notrunc status=none"),
    ] {
        Program::of_user("dd").words(&words).done()?;
    }
    Program::inside("cmp", members).words(&format!("{odd} {PREFIX}/odd")).done()?;
    Program::inside("cp", members).words(&format!("-r /etc {PREFIX}/directory")).done()
}

/// Through a mapping, over what write() put there.
fn store(members: &Members) -> Outcome {
    (0..2).try_for_each(|number| fio::pass(members, number))?;
    match fio::verify(members)? {
        (0, 1, 1) => Ok(()),
        (refused, low, high) => {
            Err(format!("fio refuses {refused} blocks stored through a mapping; passes {low} to {high} instead of 1"))
        }
    }
}

/// A program that has written to the array maps members with MAP_SYNC and no other way ("sf" in
/// VmFlags, proc(5)). How many mappings it has.
fn synchronous_mappings(members: &Members) -> Outcome<usize> {
    let mut session = Program::inside("sqlite3", members).words("-batch -bail").arg(format!("{PREFIX}/rows.db")).session()?;
    session.say("CREATE TABLE rows (n, bytes);")?;
    // Several stripes, so that every member holds some.
    session.expect("INSERT INTO rows VALUES (41, randomblob(700000)); SELECT n FROM rows;", "41")?;
    let path = format!("/proc/{}/smaps", session.pid());
    let smaps = fs::read_to_string(&path).map_err(about(&path))?;
    session.end()?;
    let mut count = 0;
    let mut mapped = vec![0; members.array.shape.member_count];
    let mut name = "";
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let slot = (0..mapped.len()).find(|&slot| name.starts_with(&format!("{}/", members.place(slot).display())));
            let Some(slot) = slot else { continue };
            if !flags.split_whitespace().any(|flag| flag == "sf") {
                return Err(format!("{name} is not mapped with MAP_SYNC:{flags}"));
            }
            mapped[slot] += usize::from(name.ends_with("/rows.db"));
            count += 1;
        } else if line.contains(" /") {
            name = &line[line.find('/').unwrap_or(0)..];
        } else if line
            .split_whitespace()
            .nth(1)
            .is_some_and(|permissions| permissions.len() == 4 && permissions.ends_with(['p', 's']))
        {
            name = "";
        }
    }
    match mapped.iter().position(|&count| count == 0) {
        Some(slot) => Err(format!("rows.db of member {slot} is not mapped")),
        None => Ok(count),
    }
}
