//! One case through all its runs: the plain one for reference, then each shape of array, healthy
//! and with a member missing, then traced.

use crate::{
    array::{Array, Shape},
    cases::Case,
    options::Options,
    place::{Ground, Place},
    process::{Output, Run, without_notices},
    report::{Complaints, Report, compare, difference, short, with_output},
    snapshot, trace,
};
use std::{fs, io, path::Path, time::Instant};

/// What a run on a plain directory gave.
struct Reference {
    /// Of the first run and of the second.
    outputs: [Output; 2],
    snapshots: [Output; 2],
}

const PARTS: [&str; 2] = ["first", "again"];

/// All runs of one case.
pub(crate) fn run(ground: &Ground, case: &Case, number: usize, options: &Options, report: &Report) -> io::Result<()> {
    let place = Place::new(ground, case.name)?;
    let begun = Instant::now();
    let mut complaints = Complaints::new();
    let reference = refer(&place, case, &mut complaints)?;
    if !complaints.is_empty() {
        report.result("plain", "", case.name, begun.elapsed(), &complaints);
        return Ok(());
    }
    if options.wants_level("plain") {
        let begun = Instant::now();
        let again = refer(&place, case, &mut complaints)?;
        for (part, name) in PARTS.iter().enumerate() {
            compare(name, &reference.outputs[part], &again.outputs[part], &mut complaints);
            compare_files("files", case, &reference.snapshots[part], &again.snapshots[part], &mut complaints);
        }
        report.result("plain", "", case.name, begun.elapsed(), &complaints);
    }
    for (index, shape) in case.shapes.iter().enumerate().filter(|(_, shape)| options.wants_level(shape.label)) {
        // Every member is the missing one for some case.
        let victim = (number + index) % shape.member_count;
        on_array(&place, case, *shape, victim, &reference, options, report)?;
    }
    if case.traceable && options.wants_level("traced") {
        let begun = Instant::now();
        let complaints = trace::run(&place, case)?;
        report.result(Shape::RAID5.label, "traced", case.name, begun.elapsed(), &complaints);
    }
    place.clear()
}

/// A case's script.
pub(crate) fn script<'a>(run: Run<'a>, place: &Place<'_>, case: &Case, part: &str) -> Run<'a> {
    let run = case.variables.iter().fold(run, |run, (name, value)| run.env(name, value));
    run.arg(place.ground.assets.join("cases").join(case.script)).arg(part)
}

fn refer(place: &Place<'_>, case: &Case, complaints: &mut Complaints) -> io::Result<Reference> {
    place.clear()?;
    let mut part = |part: &str| {
        let output = script(place.run("bash"), place, case, part).output();
        if !output.succeeded() {
            complaints.push(with_output(&format!("{part}, on a plain directory"), &output));
        }
        (output, snapshot::plain(place))
    };
    let (first, again) = (part(PARTS[0]), part(PARTS[1]));
    Ok(Reference { outputs: [first.0, again.0], snapshots: [first.1, again.1] })
}

fn on_array(
    place: &Place<'_>,
    case: &Case,
    shape: Shape,
    victim: usize,
    reference: &Reference,
    options: &Options,
    report: &Report,
) -> io::Result<()> {
    let mut array = Array::new(place, shape, shape.label)?;
    let begun = Instant::now();
    let mut complaints = Complaints::new();
    let healthy = healthy(&array, case, reference, &mut complaints);
    check_calls(&array, &mut complaints);
    report.result(shape.label, "healthy", case.name, begun.elapsed(), &complaints);
    let mut failed = !complaints.is_empty();

    let begun = Instant::now();
    let mut complaints = Complaints::new();
    match healthy {
        Some(healthy) if !failed => missing(&array, case, victim, reference, &healthy, &mut complaints)?,
        _ => complaints.push("not reached: the healthy run failed".to_owned()),
    }
    check_calls(&array, &mut complaints);
    report.result(shape.label, "missing", case.name, begun.elapsed(), &complaints);
    failed |= !complaints.is_empty();
    if failed && options.keep {
        place.ground.janitor.keep();
        println!("       kept: {}", array.members[0].display());
        array.keep();
    }
    Ok(())
}

/// No system call on the array may have come from an instruction that was not patched.
fn check_calls(array: &Array<'_>, complaints: &mut Complaints) {
    match array.seen() {
        Some(Err(missed)) => complaints.push(missed),
        Some(Ok(seen)) => println!("     {seen}"),
        None => {}
    }
}

/// Returns what the array holds in the end.
fn healthy(array: &Array<'_>, case: &Case, reference: &Reference, complaints: &mut Complaints) -> Option<Output> {
    // The first program makes the array, and may have something to say about its members.
    let made = array.run("ls").arg("-A").arg(&array.place.data).output();
    if !made.succeeded() || !made.stdout.is_empty() {
        complaints.push(with_output("ls on a new array", &made));
        return None;
    }
    let output = script(array.run("bash"), array.place, case, PARTS[0]).output();
    compare(PARTS[0], &reference.outputs[0], &output, complaints);
    check_host(array, complaints);
    if !complaints.is_empty() {
        return None;
    }
    let files = snapshot::array(array);
    compare_files("files", case, &reference.snapshots[0], &files, complaints);
    check_members(array, &files, complaints);
    check_redundancy(array, complaints);
    Some(files)
}

fn compare_files(what: &str, case: &Case, reference: &Output, found: &Output, complaints: &mut Complaints) {
    compare(what, &snapshot::without(reference, case.varies), &snapshot::without(found, case.varies), complaints);
}

fn missing(
    array: &Array<'_>,
    case: &Case,
    victim: usize,
    reference: &Reference,
    healthy: &Output,
    complaints: &mut Complaints,
) -> io::Result<()> {
    if array.shape.bears > 1 {
        let second = (victim + 1) % array.members.len();
        array.lose(victim)?;
        array.lose(second)?;
        let what = format!("files without members {victim} and {second}");
        compare(&what, healthy, &without_notices(snapshot::array(array)), complaints);
        array.bring_back(second)?;
    } else {
        array.lose(victim)?;
    }
    let what = format!("files without member {victim}");
    compare(&what, healthy, &without_notices(snapshot::array(array)), complaints);
    if !complaints.is_empty() {
        return Ok(());
    }
    let output = without_notices(script(array.run("bash"), array.place, case, PARTS[1]).output());
    compare(PARTS[1], &reference.outputs[1], &output, complaints);
    check_host(array, complaints);
    if complaints.is_empty() {
        let files = without_notices(snapshot::array(array));
        compare_files("files after more work", case, &reference.snapshots[1], &files, complaints);
        check_members(array, &files, complaints);
        check_redundancy(array, complaints);
        check_retrieved(array, &files, complaints);
    }
    Ok(())
}

/// Nothing may be in the host's directory of the prefix's name: a call was missed.
pub(crate) fn check_host(array: &Array<'_>, complaints: &mut Complaints) {
    let leaked = array.place.leaked();
    if !leaked.is_empty() {
        complaints.push(format!("on the host, beside the array: {}", leaked.join(", ")));
    }
    if !array.shape.prefix_exists && array.place.data.exists() {
        complaints.push("the prefix was made on the host".to_owned());
    }
}

/// All members hold the same names; of a mirror, the same files.
pub(crate) fn check_members(array: &Array<'_>, reference: &Output, complaints: &mut Complaints) {
    let members: Vec<_> = array.present().collect();
    let [first, rest @ ..] = &members[..] else { return };
    let names = |member: &Path| snapshot::names(array.place, &array.on_member(member));
    let expected = names(first);
    for member in rest {
        let found = names(member);
        if found != expected {
            let difference = difference(&expected.stdout, &found.stdout);
            complaints.push(format!("names on {} and {} differ\n{difference}", short(first), short(member)));
        }
    }
    if array.shape.plain_files {
        for member in members {
            let what = format!("plain files on {}", short(member));
            compare(&what, reference, &snapshot::directory(array.place, &array.on_member(member)), complaints);
        }
    }
}

/// Copies and parity fit the data, on all members that are there.
fn check_redundancy(array: &Array<'_>, complaints: &mut Complaints) {
    let output = without_notices(array.scrub().output());
    if !output.succeeded() || !output.stderr.is_empty() {
        complaints.push(with_output("redundancy", &output));
    }
}

/// The operator's copy holds the same.
fn check_retrieved(array: &Array<'_>, reference: &Output, complaints: &mut Complaints) {
    let copy = array.place.root.join("retrieved");
    let output = array.command().args(["retrieve", "-r"]).args([&array.place.data, &copy]).output();
    if output.succeeded() {
        let found = snapshot::directory(array.place, &copy);
        // A copy does not keep hard links.
        compare("retrieved files", &snapshot::without_links(reference), &snapshot::without_links(&found), complaints);
    } else {
        complaints.push(with_output("cxlraid retrieve", &output));
    }
    let removed = if copy.exists() { crate::place::remove(&copy) } else { Ok(()) };
    if let Err(error) = removed.and_then(|()| if copy.exists() { fs::remove_dir(&copy) } else { Ok(()) }) {
        complaints.push(format!("{}: {error}", copy.display()));
    }
}
