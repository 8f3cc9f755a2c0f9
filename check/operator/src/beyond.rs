//! More members are damaged than the level bears.

use crate::{
    case::{Case, Start},
    damage::{Damage, Sources, damage},
};
use oracle::Rng;
use stage::report::{Complaints, with_output};

/// What this mistake is called.
pub(crate) const BEYOND: &str = "beyond";
/// The damages that are done, one to each of the members. A member with any of them cannot pass for
/// one that works.
const WAYS: [&str; 12] = [
    "member Gone",
    "member EmptyDirectory",
    "member MetaRemoved",
    "member Locked",
    "member Unmounted",
    "inodes Deleted",
    "inodes CutToNothing",
    "inodes Zeroed",
    "lanes Deleted",
    "lanes CutInHalf",
    "superblock Zeroed",
    "superblock MadeDirectory",
];
/// How often a damage is drawn until there is one for a member.
const DRAWS: u32 = 2000;

impl Case<'_> {
    /// One member more is damaged than the array bears. A start is refused, names such a member,
    /// and changes nothing on any member; when the damages are taken back everything is there.
    pub(crate) fn damaged_beyond(
        &self,
        rng: &mut Rng,
        sources: &Sources<'_>,
        note: &mut String,
        complaints: &mut Complaints,
    ) -> Result<(), String> {
        let first = rng.below(self.members.len() as u64) as usize;
        let ways = WAYS.map(str::to_owned);
        let mut damages: Vec<Damage> = Vec::new();
        for slot in (0..=self.shape.bears).map(|index| (first + index) % self.members.len()) {
            let drawn = (0..DRAWS).find_map(|_| damage(rng, sources, slot, &ways, damages.is_empty()).transpose());
            damages.extend(drawn.transpose().map_err(|error| error.to_string())?);
        }
        *note = format!(
            "{BEYOND}: {}",
            damages.iter().map(|damage| format!("m{} {}", damage.slot, damage.what)).collect::<Vec<_>>().join(", ")
        );
        if damages.len() > self.shape.bears && self.is_array_known(&damages) {
            let before = self.everything();
            let status = self.status();
            let start = self.start("beyond what the array bears", &damages, complaints);
            let is_refused = matches!(start, Start::Refused(_));
            match start {
                // Two members of different mirrors may be lost without any byte being lost.
                Start::Right(_) if self.shape.has_several_mirrors() => {}
                Start::Right(_) => complaints.push("a start works without enough members".to_owned()),
                Start::Refused(notices) => {
                    let names = |line: &String| damages.iter().any(|damage| self.names_member(line, damage.slot));
                    if !notices.iter().any(names) {
                        complaints.push(format!("a refusal names no member that was damaged\n{}", notices.join("\n")));
                    }
                }
                Start::Wrong => {}
            }
            if is_refused {
                if status.status != "1" || !status.stdout.contains("no program can start") {
                    complaints.push(with_output("status does not tell that no program can start", &status));
                }
                self.compare_everything(&before, "a start that was refused", complaints);
            } else {
                self.stop()?;
            }
        }
        if !complaints.is_empty() {
            return Ok(());
        }
        damages.iter().rev().try_for_each(Damage::take_back).map_err(|error| error.to_string())?;
        self.start("after all was taken back", &[], complaints);
        self.change(self.seed << 8 | 0x20)?;
        self.start("after all was taken back, changed", &[], complaints);
        self.stop()?;
        let status = self.status();
        if status.status != "0" {
            complaints.push(with_output("after all was taken back", &status));
        }
        Ok(())
    }

    /// Tells whether a start can know that there is an array: it is told the UUID, or a superblock
    /// is left. Else a start makes a new array on empty directories, as README says.
    fn is_array_known(&self, damages: &[Damage]) -> bool {
        self.knows_uuid() || self.shape.member_count > damages.len() || damages.iter().any(|damage| damage.is_of_table())
    }
}
