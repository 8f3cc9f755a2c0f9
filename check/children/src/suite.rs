//! Everything that is wanted: the cases, a few at a time, then the crowd.

use crate::{
    array::{Array, Shape},
    cases::{CASES, Case},
    crowd,
    ground::{Ground, Place},
    options::Options,
};
use stage::{
    process::find_program,
    report::{Complaints, Report, compare, with_output},
    run::{Output, Run},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long one run of a case may take; it takes a few seconds at most.
const LIMIT: Duration = Duration::from_secs(25);

/// Names, types, modes, sizes, names per file and sums of what lies in $1. The files of company
/// threads hold something else in each run: they are without sums.
const CONTENT: &str = r#"
cd "$1" || exit 90
find . \( -type d -printf '%y %m %P\n' \) -o \( -type f -printf '%y %m %s links %n %P\n' \) -o -printf '%y %m %P -> %l\n' | sort
find . -type f ! -name 'company-*' -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// Shows the table.
pub(crate) fn list(options: &Options) {
    for case in CASES.iter().filter(|case| options.wants_name(case.name)) {
        println!("{:<20} {}", case.name, case.about);
    }
    for crowd in crowd::CROWDS.iter().filter(|crowd| options.wants_name(crowd.name)) {
        println!("{:<20} {}", crowd.name, crowd.about);
    }
}

/// Runs it. Whether all passed; an error if nothing could be run.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    options.check_library()?;
    let begun = Instant::now();
    let report = Report::default();
    let wanted = |case: &Case| options.wants_name(case.name) && !(options.quick && case.is_long);
    let mut cases: Vec<(usize, &Case)> = CASES.iter().filter(|case| wanted(case)).enumerate().collect();
    if cases.is_empty() && !crowd::CROWDS.iter().any(|crowd| options.wants_name(crowd.name)) {
        return Err("no case has such a name; --list shows them".to_owned());
    }
    // The slow ones first.
    cases.sort_by_key(|(_, case)| case.needs.is_empty());
    let ground = Ground::new(&options.library, &options.command, options.keep)?;
    ground.prepare(find_program("javac").is_some() && cases.iter().any(|(_, case)| case.needs.contains(&"javac")))?;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(&(number, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(&ground, case, number, options, &report);
                }
            });
        }
    });
    for crowd in
        crowd::CROWDS.iter().filter(|crowd| options.wants_name(crowd.name) && (crowd.is_default || !options.names.is_empty()))
    {
        crowd::run(&ground, crowd, options, &report);
    }
    drop(ground);
    Ok(report.finish("children", begun.elapsed()))
}

fn one(ground: &Ground, case: &Case, number: usize, options: &Options, report: &Report) {
    let begun = Instant::now();
    let failed = |message: String| report.result("plain", case.name, begun.elapsed(), "", &vec![message]);
    if let Some(missing) = case.needs.iter().find(|program| find_program(program).is_none()) {
        return failed(format!("{missing} is not installed; check/setup test installs it"));
    }
    let place = match Place::new(ground, case.name) {
        Ok(place) => place,
        Err(error) => return failed(error.to_string()),
    };
    let reference = case_run(case, &place, place.run("env")).output();
    let content = content(&place, place.run("bash"));
    if !reference.succeeded() || !content.succeeded() {
        return failed(with_output("on a plain directory", if content.succeeded() { &reference } else { &content }));
    }
    if options.wants_level("plain") {
        report.result("plain", case.name, begun.elapsed(), "", &Vec::new());
    }
    for (index, shape) in Shape::ALL.iter().enumerate().filter(|(_, shape)| options.wants_level(shape.label)) {
        // A quick run has each case on one level, and each level under a third of them.
        if !options.quick || !options.levels.is_empty() || (number + index).is_multiple_of(Shape::ALL.len()) {
            on_array(&place, case, *shape, &[&reference, &content], report);
        }
    }
}

/// What a case runs; `env` finds its program.
fn case_run<'a>(case: &Case, place: &Place<'_>, env: Run<'a>) -> Run<'a> {
    let assets = place.ground.assets.to_string_lossy();
    let words = case.command.split(' ').map(|word| word.replace('@', &assets));
    // The directory under test stands for %.
    env.args(words.map(|word| if word == "%" { place.data.display().to_string() } else { word })).limit(LIMIT)
}

/// Names, modes and contents of the files in the directory under test, as the script `CONTENT`
/// prints them.
pub(crate) fn content(place: &Place<'_>, bash: Run<'_>) -> Output {
    bash.args(["-c", CONTENT, "content"]).arg(&place.data).output()
}

fn on_array(place: &Place<'_>, case: &Case, shape: Shape, expected: &[&Output; 2], report: &Report) {
    let begun = Instant::now();
    let mut complaints = Complaints::new();
    match Array::new(place, shape, case.name) {
        Ok(mut array) => {
            let found = case_run(case, place, array.run("env")).output();
            compare("the program", expected[0], &found, &mut complaints);
            // After a failure the files are what they are; whether the members are still good is
            // worth knowing.
            if complaints.is_empty() {
                compare("the files", expected[1], &content(place, array.run("bash")), &mut complaints);
            }
            array.check(&mut complaints);
            if !complaints.is_empty() && place.ground.keep {
                array.keep();
            }
        }
        Err(message) => complaints.push(message),
    }
    report.result(shape.label, case.name, begun.elapsed(), "", &complaints);
}
