//! Two halves of an array are used one after the other, each while the other is away.

use crate::{
    case::{CHANGES, Case, Start},
    damage::{Damage, copy},
    work::change,
};
use oracle::Rng;
use stage::report::{Complaints, with_output};
use std::fs;

/// What this mistake is called.
pub(crate) const APART: &str = "halves UsedApart";
/// The words with which a refusal names the way out.
const CHOOSE: &str = "assemble --prefer";

impl Case<'_> {
    /// Each half is changed alone; then both are there. Nobody but the operator can say which one
    /// counts: a start refuses and changes nothing until one is chosen, and then the array is as
    /// that half was.
    pub(crate) fn used_apart(
        &self,
        rng: &mut Rng,
        halves: [&[usize]; 2],
        note: &mut String,
        complaints: &mut Complaints,
    ) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let (first, chosen) = (rng.below(2) as usize, rng.below(2) as usize);
        let plains = ["plain", "plain-apart"].map(|name| self.place(name));
        *note = format!("{APART}, {:?} before {:?}, {:?} is chosen", halves[first], halves[1 - first], halves[chosen]);
        copy(&plains[0], &plains[1]).map_err(io)?;
        for half in [first, 1 - first] {
            let away = halves[1 - half].iter().map(|&slot| {
                let aside = self.place(&format!("aside/half-{slot}"));
                Damage::of_lost(&self.members[slot], &aside, slot, self.mounted)
            });
            let away = away.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
            let seed = self.seed << 8 | 0x10 | half as u64;
            self.changed(&self.members, seed)?;
            change(&plains[half], seed, CHANGES).map_err(io)?;
            self.stop()?;
            away.iter().try_for_each(Damage::take_back).map_err(io)?;
        }
        let before = self.undamaged(&[]);
        let status = self.status();
        if status.status != "1" || !status.stdout.contains(CHOOSE) {
            complaints.push(with_output("status does not tell that halves were used apart", &status));
        }
        match self.start("used apart", &[], complaints) {
            Start::Refused(notices) if notices.iter().any(|line| line.contains(CHOOSE)) => {}
            Start::Refused(notices) => complaints.push(format!("the refusal names no way out\n{}", notices.join("\n"))),
            Start::Right(_) => complaints.push("a start chooses between halves that were used apart".to_owned()),
            Start::Wrong => {}
        }
        if self.undamaged(&[]) != before {
            complaints.push("a start that was refused has changed a member".to_owned());
        }
        if !complaints.is_empty() {
            return Ok(());
        }
        if chosen == 1 {
            fs::remove_dir_all(&plains[0]).and_then(|()| fs::rename(&plains[1], &plains[0])).map_err(io)?;
        }
        let one = halves[chosen][rng.below(halves[chosen].len() as u64) as usize];
        let prefer = self.members[one].display().to_string();
        let output = self.command().args(["assemble", "--prefer", &prefer]).output();
        if !output.succeeded() {
            complaints.push(with_output(&format!("cxlraid assemble --prefer m{one}"), &output));
            return Ok(());
        }
        self.start("after the choice", &[], complaints);
        self.change(self.seed << 8 | 0x12)?;
        self.start("after the choice, changed", &[], complaints);
        self.stop()?;
        self.start("after the choice, changed and stopped", &[], complaints);
        self.check_redundancy("after the choice", complaints);
        self.stop()
    }
}
