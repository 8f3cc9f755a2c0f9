//! The rounds, until the attacker has acted as often as asked for.

use crate::{
    options::Options,
    round::{Counts, Ground, Round},
    shape::Shape,
};
use stage::report::{Complaints, Report};
use std::time::Instant;

/// Runs what is wanted. Whether all passed; an error if nothing could be run.
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    if !crate::kernel::is_root() {
        println!("NOT RUN: the attack: it takes root, to be three users");
        println!("0 passed, 0 failed, 1 not run");
        return Ok(true);
    }
    options.check_library()?;
    let begun = Instant::now();
    println!("{} actions from seed {}", options.action_count, options.seed);
    let report = Report::default();
    let mut total = Counts::default();
    let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(|shape| options.wants(shape.label)).collect();
    let ground = Ground::new(&options.library, &options.command)?;
    for seed in options.seed.. {
        if total.actions >= options.action_count {
            break;
        }
        let shape = shapes[(seed % shapes.len() as u64) as usize];
        let (begun, mut counts, mut complaints) = (Instant::now(), Counts::default(), Complaints::new());
        let mut round = Round::new(&ground, seed, shape, options.forges)?;
        if let Err(message) = round.play(options.outages, &mut counts, &mut complaints) {
            complaints.push(message);
        }
        let failed = !complaints.is_empty();
        if failed {
            let forge = if options.forges { " --forge" } else { "" };
            let outages = if options.outages { " --outages" } else { "" };
            complaints.push(format!("again: cargo x attack --actions 1 --seed {seed} --level {}{forge}{outages}", shape.label));
        }
        report.result(shape.label, &format!("seed {seed}"), begun.elapsed(), &counts.note(), &complaints);
        total.add(&counts);
        if failed && options.keep {
            round.keep();
            break;
        }
    }
    drop(ground);
    println!("{}", total.note());
    if total.outages > 0 && !options.outages {
        println!(
            "NOT JUDGED: {} rounds ended early, since members went out by what the attacker did (docs/security.md); --outages judges that",
            total.outages
        );
    }
    if !options.forges {
        println!("NOT RUN: actions that forge attributes; --forge runs them");
    }
    Ok(report.finish("attack", begun.elapsed()))
}
