//! The runs: each has a seed, and that decides scene, array and events.

use crate::{
    ground::{Ground, Place},
    judge::{Array, content},
    options::Options,
    scenes::{SCENES, Scene},
    shape::{Event, Random, Shape, What, events},
};
use stage::{
    report::{Complaints, Report, compare, with_output},
    run::{Output, Run},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a scene may take; it takes a second or two.
const LIMIT: Duration = Duration::from_secs(60);

/// What a scene's variant printed on a plain directory, and left there.
type Reference = (Output, Output);

/// One run, as its seed has it.
struct Plan {
    seed: u64,
    scene: &'static Scene,
    variant: u64,
    shape: &'static Shape,
    events: Vec<Event>,
}

impl Plan {
    /// The scenes and shapes take turns, so that few runs have met all of them.
    fn new(seed: u64, mounts: bool) -> Self {
        let mut random = Random::new(seed);
        let scene = &SCENES[(seed % SCENES.len() as u64) as usize];
        let shape = &Shape::ALL[((seed / SCENES.len() as u64) % Shape::ALL.len() as u64) as usize];
        let variant = random.below(scene.variant_count as usize) as u64;
        let mut events = events(shape, scene, &mut random);
        if !mounts {
            events.iter_mut().filter(|event| event.what.needs_mount()).for_each(|event| event.what = What::Away);
        }
        Self { seed, scene, variant, shape, events }
    }

    /// What is said of it.
    fn note(&self) -> String {
        let events: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        format!("seed {} variant {} {}", self.seed, self.variant, events.join(", "))
    }
}

/// Runs what is wanted. Whether all passed; an error if nothing could be run.
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    if options.list {
        SCENES.iter().for_each(|scene| println!("{:<10} {}", scene.name, scene.about));
        return Ok(true);
    }
    options.check_built()?;
    let begun = Instant::now();
    println!("{} runs from seed {}", options.runs, options.seed);
    let wanted = |plan: &Plan| options.wants_scene(plan.scene.name) && options.wants_level(plan.shape.label);
    let plans: Vec<Plan> =
        (options.seed..).map(|seed| Plan::new(seed, options.mounts)).filter(wanted).take(options.runs as usize).collect();
    let report = Report::default();
    let ground = Ground::new(&options.library, &options.command)?;
    let next = AtomicUsize::new(0);
    let job = |number: usize| -> Result<(), String> {
        let place = Place::new(&ground, number).map_err(|error| error.to_string())?;
        let mut references = BTreeMap::new();
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let mut complaints = Complaints::new();
            if let Err(message) = one(&place, plan, options.keep, &mut references, &mut complaints) {
                complaints.push(message);
            }
            if !complaints.is_empty() {
                complaints.push(format!("again: cargo x trees --seed {} --runs 1", plan.seed));
            }
            report.result(plan.shape.label, plan.scene.name, begun.elapsed(), &plan.note(), &complaints);
        }
        Ok(())
    };
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let job = &job;
        let jobs: Vec<_> = (0..options.jobs).map(|number| scope.spawn(move || job(number))).collect();
        jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| Err("a job panicked".to_owned()))).collect()
    });
    let mounted = plans.iter().flat_map(|plan| &plan.events).filter(|event| event.what.needs_mount()).count();
    if mounted > 0 && !ground.can_mount {
        println!(
            "NOT RUN: {mounted} events on a file system of its own, which needs the right to mount ext4; those members were moved away instead"
        );
    }
    drop(ground);
    results.into_iter().collect::<Result<(), String>>()?;
    Ok(report.finish("trees", begun.elapsed()))
}

/// The scene, with events if the array has any.
fn played(place: &Place<'_>, plan: &Plan, python: Run<'_>, events: &[String]) -> Output {
    let director = python.arg(place.ground.director()).args([plan.scene.name, &plan.variant.to_string()]).arg(&place.data);
    director.arg(&place.notes).arg(plan.seed.to_string()).args(events).limit(LIMIT).output()
}

fn one(
    place: &Place<'_>,
    plan: &Plan,
    keep: bool,
    references: &mut BTreeMap<(&'static str, u64), Reference>,
    complaints: &mut Complaints,
) -> Result<(), String> {
    let cleared = || place.clear().map_err(|error| error.to_string());
    let (output, files) = match references.entry((plan.scene.name, plan.variant)) {
        Entry::Occupied(known) => &*known.into_mut(),
        Entry::Vacant(place_of_it) => {
            cleared()?;
            let output = played(place, plan, place.run("python3"), &[]);
            let files = content(place, place.run("bash"));
            if !output.succeeded() || !files.succeeded() || output.stdout.is_empty() {
                return Err(with_output("on a plain directory", &output));
            }
            &*place_of_it.insert((output, files))
        }
    };
    cleared()?;
    let mut array = Array::new(place, *plan.shape, &plan.events, &format!("array-{}", plan.seed))?;
    let events: Vec<String> = plan
        .events
        .iter()
        .map(|event| {
            // A run without the right to mount has no file system that could be shut down: its
            // members are moved away instead.
            let what = if event.what.needs_mount() && !place.ground.can_mount { What::Away } else { event.what };
            format!("{}:{}", what.word(), array.members[event.slot].display())
        })
        .collect();
    let found = played(place, plan, array.beside("python3").env("TREE_PRELOAD", &place.ground.library), &events);
    compare("the scene", output, &found, complaints);
    if !complaints.is_empty() && !found.notices.is_empty() {
        complaints.push(format!("told meanwhile:\n{}", found.notices.join("\n")));
    }
    if found.succeeded() && found.stderr != output.stderr {
        let said = Output { stdout: String::new(), ..found.clone() };
        complaints.push(with_output("standard error is not as on a plain directory", &said));
    }
    let told = |line: &&String| line.contains("; the array is degraded") || line.contains("is out of use");
    let lost: Vec<usize> =
        plan.events.iter().filter(|event| event.what.loses() || !place.ground.can_mount).map(|event| event.slot).collect();
    if found.notices.iter().filter(told).count() > lost.len() {
        complaints.push(format!("a loss was told of more than once:\n{}", found.notices.join("\n")));
    }
    let own = (!plan.scene.is_repeatable).then(|| content(place, array.run("bash")));
    if let Some(own) = own.as_ref().filter(|own| !own.succeeded() || !own.stdout.contains("f ")) {
        complaints.push(with_output("what the scene left", own));
    }
    array.check(&lost, own.as_ref().unwrap_or(files), complaints);
    if !complaints.is_empty() && keep {
        array.keep();
    }
    Ok(())
}
