//! The report of a scrub: what the scrub has found, as lines and as JSON.
//!
//! The JSON form is an interface: keys are added within `version` 1, never renamed or removed.

use super::tables::Fault;
use crate::{events, view::bytes_text};
use array::{Mismatch, Role, Verdict, events::EventKind};
use file::{Mended, ScrubMode};
use namespace::{Difference, NameMismatch};
use serde::Serialize;
use std::{collections::BTreeSet, io, path::Path};
use units::{Shown, Slot};

/// The version of the JSON document.
const JSON_VERSION: u32 = 1;

/// The result of a scrub.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: u32,
    pub(crate) array: String,
    pub(crate) uuid: String,
    /// "check" or "repair".
    pub(crate) mode: &'static str,
    /// Whether the scrub was ended before everything was compared.
    pub(crate) interrupted: bool,
    pub(crate) files: u64,
    /// Bytes of files that were compared.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) mismatches: Vec<DataView>,
    pub(crate) names: Vec<NameView>,
    pub(crate) tables: Vec<TableView>,
    /// The paths that could not be read.
    pub(crate) unread: Vec<Unread>,
    /// Members that are out, whose contents were not compared.
    pub(crate) out: Vec<Slot>,
    /// Files that wait to be rebuilt on some member.
    pub(crate) waiting_files: u64,
    /// Bytes whose redundancy did not fit and that are no mismatch: programs store to them through
    /// mappings, or a resync of them is still to be made.
    pub(crate) unsettled_bytes: u64,
}

/// What the log of events is told: the wrong member, if one is known, what is wrong, and, if it is
/// bytes of a file, which.
type MismatchEvent<'r> = (Option<Slot>, String, Option<&'r DataView>);

/// A range of a file whose redundancy does not fit.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct DataView {
    pub(crate) path: String,
    /// The first byte of the range, as an offset in the file. The range lies in the wrong chunk if
    /// one is known to be wrong, otherwise in the first chunk of the stripe.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// How many bytes of the range do not fit.
    pub(crate) differing: u64,
    /// The members that hold the stripe.
    pub(crate) members: Vec<Slot>,
    /// The members that are known to be wrong.
    pub(crate) wrong: Vec<Slot>,
    /// What the wrong member holds of the stripe: "data", "P" or "Q"; "checksum" if its bytes are
    /// right and their checksum is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<&'static str>,
    /// Whether the wrong members are known ("located"), whether it cannot be known which are wrong
    /// ("unknown"), whether more than one is wrong ("several"), or whether checksums say which are
    /// wrong and the others do not give what they were ("rotten").
    pub(crate) verdict: &'static str,
    /// What was done: "no" (nothing), "rewritten" (the wrong members' bytes, from the others),
    /// "recomputed" (copies and parity, from the data), "failed", or "waits" (for the resync by the
    /// next program that opens the file for writing).
    pub(crate) mended: &'static str,
    /// Why mending has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// A difference between members in a name or in its attributes.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct NameView {
    pub(crate) path: String,
    pub(crate) slot: Slot,
    pub(crate) difference: String,
    /// Whether it is known that this member is wrong, since most members agree on something else.
    pub(crate) known: bool,
    pub(crate) mended: bool,
}

/// A fault in a file under `.cxlraid`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct TableView {
    pub(crate) slot: Option<Slot>,
    pub(crate) file: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) what: String,
    pub(crate) mended: bool,
}

/// A path that could not be read, and the reason.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Unread {
    pub(crate) path: String,
    pub(crate) why: String,
}

impl DataView {
    pub(crate) fn new(path: &[u8], mismatch: &Mismatch, mended: Mended, mode: ScrubMode) -> Self {
        let (wrong, holds, verdict) = match &mismatch.verdict {
            Verdict::Located(wrong) => {
                let holds = wrong.first().map(|(_, role, _)| match role {
                    Role::Data => "data",
                    Role::P => "P",
                    Role::Q => "Q",
                });
                (wrong.iter().map(|&(slot, ..)| slot).collect(), holds, "located")
            }
            Verdict::Unknown => (Vec::new(), None, "unknown"),
            Verdict::Several => (Vec::new(), None, "several"),
            Verdict::Rotten(wrong) => (wrong.clone(), None, "rotten"),
            Verdict::Sums(wrong) => (wrong.clone(), Some("checksum"), "located"),
        };
        let (mended, why) = match mended {
            Mended::No if matches!(mode, ScrubMode::CheckWaiting | ScrubMode::RepairWaiting) => ("waits", None),
            Mended::No | Mended::AlreadyRight => ("no", None),
            Mended::Rewritten => ("rewritten", None),
            Mended::Recomputed => ("recomputed", None),
            Mended::Failed(error) => ("failed", Some(crate::failure::without_numbers(io::Error::from(error).to_string()))),
        };
        Self {
            path: text(path),
            offset: mismatch.file.start,
            bytes: mismatch.file.end - mismatch.file.start,
            differing: mismatch.bytes,
            members: mismatch.members.iter().collect(),
            wrong,
            holds,
            verdict,
            mended,
            why,
        }
    }

    /// Joins `next` to this range if `next` begins where this range ends and both are alike
    /// otherwise. Returns whether it was joined.
    fn absorb(&mut self, next: &Self) -> bool {
        let same = |a: &Self, b: &Self| {
            (&a.path, &a.members, &a.wrong, a.holds, a.verdict, a.mended, &a.why)
                == (&b.path, &b.members, &b.wrong, b.holds, b.verdict, b.mended, &b.why)
        };
        if !same(self, next) || self.offset + self.bytes != next.offset {
            return false;
        }
        self.bytes += next.bytes;
        self.differing += next.differing;
        true
    }

    pub(crate) fn line(&self, members: &[String]) -> String {
        let paths = |slots: &[Slot]| {
            slots.iter().filter_map(|&slot| members.get(slot).map(String::as_str)).collect::<Vec<_>>().join(", ")
        };
        let said = match (self.verdict, self.holds) {
            ("located", Some("data")) => format!("{} is wrong", paths(&self.wrong)),
            ("located", Some("checksum")) => format!("the checksum on {} is wrong", paths(&self.wrong)),
            ("rotten", _) => format!("{} is wrong by its checksum, and the others do not give what it was", paths(&self.wrong)),
            ("located", holds) => format!("{} of the stripe on {} is wrong", holds.unwrap_or("parity"), paths(&self.wrong)),
            ("several", _) => format!("more than one of {} is wrong", paths(&self.members)),
            _ => format!("which of {} is wrong cannot be known without checksums", paths(&self.members)),
        };
        let done = match (self.mended, &self.why) {
            ("rewritten", _) if self.holds == Some("checksum") => "; made anew".to_owned(),
            ("rewritten", _) => "; rewritten from the others".to_owned(),
            ("recomputed", _) => "; copies and parity made from the data".to_owned(),
            ("waits", _) => "; it waits for resync, which makes copies and parity from the data".to_owned(),
            ("failed", why) => format!("; cannot be mended: {}", why.as_deref().unwrap_or("unknown")),
            _ => String::new(),
        };
        let noun = if self.differing == 1 { "byte does" } else { "bytes do" };
        format!(
            "{}: {} {noun} not fit in {} from {}: {said}{done}",
            self.path,
            self.differing,
            bytes_text(self.bytes),
            self.offset
        )
    }
}

impl NameView {
    pub(crate) fn new(found: &NameMismatch) -> Self {
        let difference = match &found.difference {
            Difference::Missing => "missing".to_owned(),
            Difference::Extra => "extra".to_owned(),
            Difference::Kind => "kind".to_owned(),
            Difference::File => "file".to_owned(),
            Difference::Target => "target".to_owned(),
            Difference::Mode => "mode".to_owned(),
            Difference::Owner => "owner".to_owned(),
            Difference::Links => "links".to_owned(),
            Difference::Attribute(name) => format!("attribute {}", text(name)),
            Difference::Modified => "modified".to_owned(),
            Difference::Short => "short".to_owned(),
        };
        Self { path: text(&found.path), slot: found.slot, difference, known: found.is_known, mended: found.is_mended }
    }

    /// Tells whether this difference is that a member lacks a file, or bytes at its end.
    fn is_lack(&self) -> bool {
        matches!(self.difference.as_str(), "missing" | "short")
    }

    pub(crate) fn line(&self, members: &[String]) -> String {
        let member = members.get(self.slot).map_or("a member", String::as_str);
        let what = match self.difference.as_str() {
            "missing" => format!("is missing on {member}"),
            "extra" => format!("is on {member}, and not on the others"),
            "kind" => format!("is something else on {member}"),
            "file" => format!("is another file on {member}"),
            "target" => format!("leads elsewhere on {member}"),
            "short" => format!("is shorter on {member} than its size asks for"),
            "links" => format!("has another number of names on {member}"),
            "modified" => format!("was modified at another time on {member}"),
            other => format!("has another {other} on {member}"),
        };
        let known = if self.known { "" } else { "; which is right cannot be known" };
        let mended = if self.mended { "; made that of the others" } else { "" };
        format!("{}: {what}{known}{mended}", self.path)
    }
}

impl TableView {
    pub(crate) fn new(fault: Fault, mended: bool) -> Self {
        let Fault { slot, file, offset, bytes, what } = fault;
        let what = what.split_once("; ").map_or(what.as_str(), |(what, _)| what).to_owned();
        Self { slot, file: text(file.as_bytes()), offset, bytes, what, mended }
    }

    pub(crate) fn line(&self) -> String {
        let mended = if self.mended { "; mended" } else { "" };
        format!("{}: {} bytes from {}: {}{mended}", self.file, self.bytes, self.offset, Shown(self.what.as_bytes()))
    }
}

/// Adds a range that does not fit to those of its file. A range that continues the last one is
/// joined to it.
pub(crate) fn add(ranges: &mut Vec<DataView>, found: DataView) {
    if !ranges.last_mut().is_some_and(|last| last.absorb(&found)) {
        ranges.push(found);
    }
}

impl Report {
    pub(crate) fn new(array: &str, uuid: String, repair: bool) -> Self {
        Self {
            version: JSON_VERSION,
            array: array.to_owned(),
            uuid,
            mode: if repair { "repair" } else { "check" },
            interrupted: false,
            files: 0,
            bytes: 0,
            seconds: 0.0,
            mismatches: Vec::new(),
            names: Vec::new(),
            tables: Vec::new(),
            unread: Vec::new(),
            out: Vec::new(),
            waiting_files: 0,
            unsettled_bytes: 0,
        }
    }

    /// Brings what was found into the order of paths: several threads have found it.
    pub(crate) fn sort(&mut self) {
        self.mismatches.sort_by(|one, other| one.path.cmp(&other.path));
        self.unread.sort_by(|one, other| one.path.cmp(&other.path));
    }

    /// Notes that members have been given what they lacked of a file, as far as `left`, which a
    /// later look has found at this path, does not say that they lack it.
    pub(crate) fn note_given_back(&mut self, path: &[u8], left: &[NameView]) {
        let path = text(path);
        let is_left = |name: &NameView| left.iter().any(|other| other.slot == name.slot && other.is_lack());
        let told = self.names.iter_mut().filter(|name| name.path == path && name.is_lack());
        told.for_each(|name| name.mended |= !is_left(name));
    }

    /// How many ranges, names and tables do not fit.
    pub(crate) const fn wrong(&self) -> usize {
        self.mismatches.len() + self.names.len() + self.tables.len()
    }

    /// Whether everything that could be compared was compared and fits. Bytes that programs store
    /// to just now (`unsettled_bytes`) do not count.
    pub(crate) const fn is_fine(&self) -> bool {
        self.wrong() == 0 && self.unread.is_empty() && self.out.is_empty() && self.waiting_files == 0 && !self.interrupted
    }

    /// All lines of the report but the last, which is [`Report::summary`].
    pub(crate) fn lines(&self, members: &[String]) -> Vec<String> {
        let mut lines: Vec<String> = self.tables.iter().map(TableView::line).collect();
        lines.extend(self.names.iter().map(|name| name.line(members)));
        lines.extend(self.mismatches.iter().map(|data| data.line(members)));
        lines.extend(self.unread.iter().map(|unread| format!("{}: not compared: {}", unread.path, unread.why)));
        lines.extend(self.out.iter().filter_map(|&slot| Some(format!("{}: out of use; not compared", members.get(slot)?))));
        if self.waiting_files > 0 {
            let noun = if self.waiting_files == 1 { "file waits" } else { "files wait" };
            lines.push(format!("{} {noun} to be rebuilt; 'cxlraid rebuild' goes on", self.waiting_files));
        }
        if self.unsettled_bytes > 0 {
            let bytes = bytes_text(self.unsettled_bytes);
            lines.push(format!("{bytes} are being stored to through mappings, or wait to be made good: not compared"));
        }
        lines
    }

    /// The result of the scrub in one line.
    pub(crate) fn summary(&self) -> String {
        let files = if self.files == 1 { "1 file".to_owned() } else { format!("{} files", self.files) };
        let compared = format!("{}: {files}, {} compared in {:.1} s", self.array, bytes_text(self.bytes), self.seconds);
        let end = if self.interrupted { "; interrupted" } else { "" };
        match self.wrong() {
            0 if self.is_fine() => format!("{compared}; everything fits"),
            0 => format!("{compared}; nothing that was compared is wrong{end}"),
            1 => format!("{compared}; 1 thing does not fit{end}"),
            count => format!("{compared}; {count} things do not fit{end}"),
        }
    }

    /// What the log of events is told of things that do not fit: the wrong member, if one is known,
    /// and what is wrong. A file's bytes that were mended, those that were not, each kind of difference
    /// in its names, and a table are told once for the same wrong members.
    fn mismatch_events<'r>(&'r self) -> Vec<MismatchEvent<'r>> {
        let (mut told, mut events) = (BTreeSet::new(), Vec::new());
        let mut tell_at = |kind: &str, path: &str, slots: &[Slot], what: &str, at: Option<&'r DataView>| {
            if told.insert((kind.to_owned(), path.to_owned(), slots.to_vec())) {
                let slot = slots.first().copied().filter(|_| slots.len() == 1);
                events.push((slot, format!("{path}: {what}"), at));
            }
        };
        let mut tell = |kind: &str, path: &str, slots: &[Slot], what: &str| tell_at(kind, path, slots, what, None);
        self.tables.iter().for_each(|table| tell("table", &table.file, table.slot.as_slice(), &table.what));
        for name in &self.names {
            tell(
                &format!("name: {}", name.difference),
                &name.path,
                &[name.slot],
                &format!("members differ: {}", name.difference),
            );
        }
        let done = |data: &DataView| if data.mended == "no" { String::new() } else { format!("; {}", data.mended) };
        // What is left comes last: whoever reads the log takes the last word of a file.
        let (left, mended): (Vec<_>, Vec<_>) =
            self.mismatches.iter().partition(|data| !matches!(data.mended, "rewritten" | "recomputed"));
        for (kind, all) in [("mended data", mended), ("data", left)] {
            for data in all {
                tell_at(kind, &data.path, &data.wrong, &format!("redundancy does not fit{}", done(data)), Some(data));
            }
        }
        events
    }

    /// Writes into the log of events what does not fit. If `is_whole`, also how the scrub of the
    /// whole array ended.
    pub(crate) fn tell(&self, is_whole: bool, members: &[String]) {
        for (slot, what, data) in self.mismatch_events() {
            let member = slot.and_then(|slot| members.get(slot)).map(String::as_bytes);
            match data {
                Some(data) => events::tell_of_file(EventKind::Mismatch, member, (data.path.as_bytes(), data.offset), &what),
                None => events::tell(EventKind::Mismatch, member, None, &what),
            }
        }
        if is_whole {
            let end = match (self.interrupted, self.is_fine(), self.wrong()) {
                (true, ..) => "interrupted",
                (_, true, _) => "everything fits",
                (.., 0) => "not everything could be compared",
                _ => "something does not fit",
            };
            let what = format!("{}: {end}", self.mode);
            events::tell(EventKind::ScrubFinished, None, Some(self.wrong() as u64), &what);
        }
    }

    pub(crate) fn json(&self) -> String {
        // The report holds only strings, numbers and lists, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn text(bytes: &[u8]) -> String {
    Shown(bytes).to_string()
}

/// The entry for a path that could not be read.
pub(crate) fn unread(path: &Path, error: &io::Error) -> Unread {
    use std::os::unix::ffi::OsStrExt as _;
    Unread { path: text(path.as_os_str().as_bytes()), why: crate::failure::without_numbers(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::MemberSet;

    fn mismatch(offset: u64, verdict: Verdict) -> Mismatch {
        let members = MemberSet::first(3);
        Mismatch { file: offset..offset + 4096, rows: offset, member_offset: offset, bytes: 3, members, verdict }
    }

    #[test]
    fn lines_say_what_is_known() {
        let members: Vec<String> = ["/mnt/a", "/mnt/b", "/mnt/c"].map(str::to_owned).to_vec();
        let line =
            |verdict, mended| DataView::new(b"/data/f\n", &mismatch(8192, verdict), mended, ScrubMode::Check).line(&members);
        let located = Verdict::Located(vec![(1, Role::Data, Vec::new())]);
        assert_eq!(
            line(located.clone(), Mended::Rewritten),
            "/data/f\\n: 3 bytes do not fit in 4.0 KiB from 8192: /mnt/b is wrong; rewritten from the others"
        );
        assert!(
            line(Verdict::Located(vec![(2, Role::Q, Vec::new())]), Mended::No).ends_with(": Q of the stripe on /mnt/c is wrong")
        );
        let unknown = line(Verdict::Unknown, Mended::No);
        assert!(unknown.ends_with("which of /mnt/a, /mnt/b, /mnt/c is wrong cannot be known without checksums"), "{unknown}");
        assert!(line(Verdict::Several, Mended::Recomputed).contains("more than one of"));
    }

    #[test]
    fn the_log_is_told_of_bytes_beside_a_difference_in_the_same_files_names() {
        let mut report = Report::new("db", String::new(), false);
        let name = |difference: &str| NameView {
            path: "/data/f".to_owned(),
            slot: 1,
            difference: difference.to_owned(),
            known: true,
            mended: false,
        };
        report.names = vec![name("modified"), name("mode"), name("modified")];
        for offset in [0, 8192] {
            let located = Verdict::Located(vec![(1, Role::Data, Vec::new())]);
            report.mismatches.push(DataView::new(b"/data/f", &mismatch(offset, located), Mended::No, ScrubMode::Check));
        }
        let told = ["members differ: modified", "members differ: mode", "redundancy does not fit"];
        let events = report.mismatch_events().into_iter().map(|(slot, what, _)| (slot, what));
        assert_eq!(events.collect::<Vec<_>>(), told.map(|what| (Some(1), format!("/data/f: {what}"))));
    }

    #[test]
    fn what_goes_on_is_one_thing() {
        let mut report = Report::new("db", String::new(), false);
        for offset in [0, 4096, 12288] {
            add(
                &mut report.mismatches,
                DataView::new(b"/data/f", &mismatch(offset, Verdict::Unknown), Mended::No, ScrubMode::Check),
            );
        }
        assert_eq!(
            report.mismatches.iter().map(|found| (found.offset, found.bytes)).collect::<Vec<_>>(),
            [(0, 8192), (12288, 4096)]
        );
        assert!(report.summary().ends_with("2 things do not fit"));
        assert!(report.json().contains("\"verdict\": \"unknown\""));
    }
}
