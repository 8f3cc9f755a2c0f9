//! What an operator is shown of an array: plain data, as text and as JSON.
//!
//! The JSON form is an interface: keys are added within `version` 1, never renamed or removed.

mod job;

pub(crate) use job::JobView;

use format::ReadPolicy;
use layout::{Geometry, Level};
use serde::{Serialize, Serializer};
use std::path::PathBuf;
use units::{ChunkBytes, MemberSet, Shown};

use crate::failure::Exit;

/// The version of the JSON document.
const JSON_VERSION: u32 = 1;

/// One member, as found now.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberView {
    pub(crate) slot: usize,
    pub(crate) path: String,
    pub(crate) state: MemberState,
    /// Why it is not in sync, or what is worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    pub(crate) event_count: Option<u64>,
    /// What a store needs to survive power loss, such as "volatile".
    pub(crate) persistence: Option<String>,
    /// Whether the member is read from only where no other member has a copy of the bytes.
    pub(crate) write_mostly: bool,
    /// What the member is in a backed array; None in another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<MemberRole>,
    /// Tells whether it is fast and holds nothing, as after a restart of the machine.
    #[serde(skip)]
    pub(crate) is_blank: bool,
    /// Of the member's file system.
    pub(crate) bytes_total: Option<u64>,
    pub(crate) bytes_free: Option<u64>,
    /// Names of files that others have and this one has not, as far as names were compared.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) names_lost: usize,
}

impl MemberView {
    /// Returns what stands behind the member's state: how the member is used, if that is not as any
    /// other.
    const fn use_text(&self) -> &'static str {
        match (self.role, self.write_mostly) {
            (Some(MemberRole::Fast), false) => ", fast",
            (Some(MemberRole::Fast), true) => ", fast, write-mostly",
            (Some(MemberRole::Backing), false) => ", backing",
            (Some(MemberRole::Backing), true) => ", backing, write-mostly",
            (None, true) => ", write-mostly",
            (None, false) => "",
        }
    }
}

/// Whether a count says that there are none.
const fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The state of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemberState {
    /// Empty, part of an array that no program has used yet.
    New,
    /// Used for reads and writes.
    InSync,
    /// No superblock of this array is there.
    Missing,
    /// Used, and some of its bytes are still to be computed from the other members.
    Rebuilding,
    /// It was away while the others went on.
    Stale,
    /// It is there, and cannot be used.
    Failed,
}

impl MemberState {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::InSync => "in sync",
            Self::Missing => "missing",
            Self::Rebuilding => "rebuilding",
            Self::Stale => "stale",
            Self::Failed => "failed",
        }
    }

    pub(crate) const fn works(self) -> bool {
        matches!(self, Self::New | Self::InSync | Self::Rebuilding)
    }
}

/// What a member is in a backed array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemberRole {
    /// It is read, and a restart of the machine may empty it.
    Fast,
    /// It keeps what it holds.
    Backing,
}

/// The state of an array, which follows from its members'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ArrayState {
    /// Never used.
    New,
    /// All members are in sync.
    InSync,
    /// Works without some members.
    Degraded,
    /// More members are gone than the level bears.
    Failed,
}

impl ArrayState {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::InSync => "in sync",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// An array's journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct JournalSummary {
    /// `internal`, or a path.
    pub(crate) place: String,
    /// In words, and why.
    pub(crate) state: String,
    /// Writes that it can hold at once; 0 if that is not known.
    pub(crate) lanes: usize,
    /// Those among them that wait to be replayed, or are under way.
    pub(crate) lanes_waiting: usize,
}

impl JournalSummary {
    /// "clean, 0 of 32 lanes in use".
    pub(crate) fn state_text(&self) -> String {
        let full = || format!(", {} of {} lanes in use", self.lanes_waiting, self.lanes);
        format!("{}{}", self.state, if self.lanes == 0 { String::new() } else { full() })
    }
}

/// Memory mappings of an array's files.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct MappingsView {
    /// Processes that have some.
    pub(crate) processes: usize,
    /// Files they have some of.
    pub(crate) files: usize,
    /// The units in which what is stored through them is followed.
    pub(crate) units: Vec<UnitView>,
    /// Files whose mappings show a shared copy.
    pub(crate) copies: usize,
    /// The shared memory that these take.
    pub(crate) copy_bytes: u64,
}

/// A unit in which stores are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct UnitView {
    pub(crate) bytes: u64,
    /// Files with mappings for which it is the unit.
    pub(crate) files: usize,
}

impl MappingsView {
    fn text(&self) -> String {
        let files = counted(self.files, "file", "files");
        let mut text = format!("{files} in {}", counted(self.processes, "process", "processes"));
        let unit = |unit: &UnitView| format!("{} ({})", bytes_text(unit.bytes), counted(unit.files, "file", "files"));
        let units: Vec<String> = self.units.iter().map(unit).collect();
        if !units.is_empty() {
            text += &format!(", stores followed by {}", units.join(" and "));
        }
        if self.copies != 0 {
            text += &format!(", {} of {}", counted(self.copies, "shared copy", "shared copies"), bytes_text(self.copy_bytes));
        }
        text
    }
}

/// "1 file", "2 files".
fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// So many files are shown of those in which something is wrong.
const WRONG_SHOWN: usize = 20;

/// One array.
#[derive(Clone, Debug)]
pub(crate) struct ArrayView {
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) level: Level,
    pub(crate) chunk: ChunkBytes,
    /// Which copies are read; None where the level keeps none.
    pub(crate) read_policy: Option<ReadPolicy>,
    /// The checksum that blocks have; None without.
    pub(crate) checksum: Option<&'static str>,
    /// Tells whether reads compare what they return with its checksums.
    pub(crate) verifies_reads: bool,
    pub(crate) members: Vec<MemberView>,
    pub(crate) paths: Vec<String>,
    /// Processes attached now.
    pub(crate) processes: Vec<u32>,
    /// Where it is mounted.
    pub(crate) mounted: Vec<PathBuf>,
    /// Processes that serve mounts which only one program and what it starts see.
    pub(crate) private: Vec<u32>,
    /// What they have of its files in memory mappings; None for nothing.
    pub(crate) mappings: Option<MappingsView>,
    /// Why no program can start with it; None if programs can.
    pub(crate) refused: Option<String>,
    /// Where its journal is, and in which state; None for an array without one.
    pub(crate) journal: Option<JournalSummary>,
    /// Directories that take the places of members that fail.
    pub(crate) spares: Vec<SpareView>,
    /// What runs on it: a rebuild, a replacement, a re-add or a scrub.
    pub(crate) jobs: Vec<JobView>,
    /// The last scrub that came to an end, as the log of events has it.
    pub(crate) last_scrub: Option<ScrubView>,
    /// Files in which something is wrong, as the log of events has it.
    pub(crate) wrong_files: Vec<WrongFileView>,
    /// Whether all names of the members were compared.
    pub(crate) names_compared: bool,
    /// Format version of the superblocks the array has or would get.
    pub(crate) format_version: String,
}

/// A file in which something is wrong: a read has told it since the last scrub of the whole array, or a
/// scrub has, and it was not mended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WrongFileView {
    pub(crate) path: String,
    /// Where in the file, of what was told last.
    pub(crate) offset: u64,
    /// The member that is wrong there, if one is known.
    pub(crate) member: Option<String>,
    /// Tells whether a program got EIO.
    pub(crate) is_unreadable: bool,
}

/// A directory that takes the place of a member that fails.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpareView {
    pub(crate) path: String,
    pub(crate) state: SpareState,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The state of a spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SpareState {
    /// An empty directory.
    Ready,
    /// It was being put in a member's place when that was cut short.
    Begun,
    /// It is not there.
    Missing,
    /// It is there, and cannot be used.
    Failed,
}

impl SpareState {
    const fn text(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Begun => "begun",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }

    /// Whether it can take a member's place.
    pub(crate) const fn works(self) -> bool {
        matches!(self, Self::Ready | Self::Begun)
    }
}

/// A scrub that ended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScrubView {
    /// When it ended, in nanoseconds since 1970 (UTC).
    pub(crate) ns: u64,
    /// The same for people (RFC 3339).
    pub(crate) time: String,
    /// How many things did not fit.
    pub(crate) wrong: u64,
    /// Its mode and its result.
    pub(crate) result: String,
}

impl ArrayView {
    fn out(&self) -> MemberSet {
        self.members.iter().filter(|member| !member.state.works()).map(|member| member.slot).collect()
    }

    /// The members that do not hold everything.
    fn lacking(&self) -> MemberSet {
        let lacks = |member: &&MemberView| !member.state.works() || member.state == MemberState::Rebuilding;
        self.members.iter().filter(lacks).map(|member| member.slot).collect()
    }

    /// The members that do not hold everything, and those that lack names.
    fn lacking_anything(&self) -> MemberSet {
        let lost = self.members.iter().filter(|member| member.names_lost != 0).map(|member| member.slot);
        self.lacking().union(lost.collect())
    }

    fn geometry(&self) -> Option<Geometry> {
        Geometry::new(self.level, self.members.len(), self.chunk).ok()
    }

    /// The state of the whole.
    pub(crate) fn state(&self) -> ArrayState {
        let out = self.lacking();
        if self.refused.is_some() {
            return ArrayState::Failed;
        }
        if out.is_empty() {
            let new = self.members.iter().all(|member| member.state == MemberState::New);
            // Who uses one of the names goes on without the member.
            if !self.lacking_anything().is_empty() {
                return ArrayState::Degraded;
            }
            return if new { ArrayState::New } else { ArrayState::InSync };
        }
        match self.geometry() {
            Some(geometry) if geometry.survives(out) => ArrayState::Degraded,
            _ => ArrayState::Failed,
        }
    }

    /// How many more members may fail, whichever they are.
    pub(crate) fn failures_left(&self) -> usize {
        let (out, Some(geometry)) = (self.lacking_anything(), self.geometry().filter(|_| self.refused.is_none())) else {
            return 0;
        };
        let bears_any_other =
            || (0..self.members.len()).filter(|&slot| !out.contains(slot)).all(|slot| geometry.survives(out.with(slot)));
        match self.level {
            Level::Raid10 | Level::Raid01 => usize::from(geometry.survives(out) && bears_any_other()),
            _ => self.level.failures_max(self.members.len()).saturating_sub(out.len()),
        }
    }

    /// The exit status that tells this state to scripts.
    pub(crate) fn exit(&self) -> Exit {
        match self.state() {
            ArrayState::New | ArrayState::InSync => Exit::Fine,
            ArrayState::Degraded => Exit::Degraded,
            ArrayState::Failed => Exit::Error,
        }
    }

    /// Returns what an operator can do about members that are not used. None if all are.
    fn todo(&self) -> Option<String> {
        let has = |states: &[MemberState]| self.members.iter().any(|member| states.contains(&member.state));
        let blank = self.members.iter().any(|member| member.is_blank);
        let blank = blank.then_some("'cxlraid rebuild' or 'cxlraid monitor' fills blank members again");
        let missing = self.members.iter().any(|member| member.state == MemberState::Missing && !member.is_blank);
        let missing = missing.then_some("bring missing members back, or 'cxlraid replace' puts others in their places");
        // The only durable state is not given up by a plain rebuild.
        let backing = self.members.iter().filter(|member| member.role == Some(MemberRole::Backing));
        let others = if backing.map(|member| member.state == MemberState::InSync).max() == Some(false) {
            "'cxlraid replace' fills another directory in the place of the backing, 'cxlraid rebuild --force' makes it anew"
        } else {
            "'cxlraid re-add' gives a stale or failed member what it lacks, 'cxlraid rebuild' makes it anew"
        };
        let others = has(&[MemberState::Stale, MemberState::Failed]).then_some(others);
        let todo: Vec<&str> = blank.into_iter().chain(missing).chain(others).collect();
        (!todo.is_empty()).then(|| todo.join("; "))
    }

    /// What `status` prints.
    pub(crate) fn status_text(&self) -> String {
        let title = shown(self.name.as_deref().unwrap_or("array of the environment"));
        let members = self.members.len();
        let working = members - self.out().len();
        let chunk =
            if self.level.has_chunks() { format!(", chunk {}", crate::spec::chunk_text(self.chunk)) } else { String::new() };
        let mut text = format!(
            "{title}: {}, RAID {}{chunk}, {working} of {members} members work, {} more may fail\n",
            self.state().text(),
            self.level,
            self.failures_left(),
        );
        let width = self.members.iter().map(|member| shown(&member.path).chars().count()).max().unwrap_or(0);
        for member in &self.members {
            let persistence = member.persistence.as_ref().map(|domain| format!(", {domain}")).unwrap_or_default();
            let note = member.note.as_ref().map(|note| format!(": {}", shown(note))).unwrap_or_default();
            let path = shown(&member.path);
            let used = member.use_text();
            text += &format!("  {:>2}  {path:width$}  {}{persistence}{used}{note}\n", member.slot, member.state.text());
        }
        if let Some(policy) = self.read_policy.filter(|policy| *policy != ReadPolicy::default()) {
            text += &format!("  read policy: {}\n", policy.name());
        }
        if let Some(checksum) = self.checksum {
            let verified = if self.verifies_reads { ", reads are verified" } else { "" };
            text += &format!("  checksum: {checksum}{verified}\n");
        }
        if let Some(todo) = self.todo().filter(|_| self.refused.is_none()) {
            text += &format!("  to do: {todo}\n");
        }
        for spare in &self.spares {
            let note = spare.note.as_ref().map(|note| format!(": {}", shown(note))).unwrap_or_default();
            text += &format!("  spare: {}, {}{note}\n", shown(&spare.path), spare.state.text());
        }
        if !self.names_compared {
            text += "  names: not all were compared; 'cxlraid scrub' compares them\n";
        }
        if let Some(refused) = &self.refused {
            text += &format!("  no program can start: {}\n", shown(refused));
        }
        if let Some(journal) = &self.journal {
            text += &format!("  journal: {}, {}\n", shown(&journal.place), shown(&journal.state_text()));
        }
        for directory in &self.mounted {
            text += &format!("  mounted: {}\n", shown(&directory.to_string_lossy()));
        }
        for pid in &self.private {
            text += &format!("  mounted for a program alone: served by process {pid}\n");
        }
        if let Some(mappings) = &self.mappings {
            text += &format!("  mapped: {}\n", mappings.text());
        }
        for job in &self.jobs {
            text += &format!("  {}\n", job.text());
        }
        if let Some(scrub) = &self.last_scrub {
            text += &format!("  last scrub: {}, {}, {} wrong\n", scrub.time, shown(&scrub.result), scrub.wrong);
        }
        for file in self.wrong_files.iter().take(WRONG_SHOWN) {
            let place = file.member.as_ref().map(|member| format!(" of {}", shown(member))).unwrap_or_default();
            let what = if file.is_unreadable { "cannot be read (EIO)" } else { "does not fit" };
            text += &format!("  wrong: {}: what is at offset {}{place} {what}\n", shown(&file.path), file.offset);
        }
        if let Some(more) = self.wrong_files.len().checked_sub(WRONG_SHOWN).filter(|&more| more > 0) {
            text += &format!("  wrong: {more} files more; 'cxlraid status --json' has all\n");
        }
        text
    }

    /// What `info` prints: the sections of the thesis (A.2).
    pub(crate) fn info_text(&self) -> String {
        let chunk = if self.level.has_chunks() {
            format!("{} bytes", self.chunk.bytes())
        } else {
            format!("not used by RAID {}", self.level)
        };
        let processes = match self.processes.as_slice() {
            [] => "none".to_owned(),
            pids => pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        };
        let mut status = vec![
            format!("State: {}", self.state().text()),
            format!("More Failures Borne: {}", self.failures_left()),
            format!("Journal Status: {}", self.journal.as_ref().map_or_else(|| "none".to_owned(), JournalSummary::state_text)),
        ];
        if let Some(name) = &self.name {
            status.insert(0, format!("Name: {name}"));
        }
        if let Some(refused) = &self.refused {
            status.push(format!("No Program Can Start: {refused}"));
        }
        let configuration = vec![
            format!("RAID Level: {}", self.level),
            format!("Configured Members: {}", self.members.len()),
            format!("Configured Paths: {}", self.paths.len()),
            format!("Journal: {}", self.journal.as_ref().map_or("none", |journal| &journal.place)),
            format!("Stripe Size: {chunk}"),
            format!("Read Policy: {}", self.read_policy.map_or("none, there are no copies", ReadPolicy::name)),
            format!("Checksum: {}", self.checksum.unwrap_or("none")),
        ];
        let runtime = vec![
            format!("UUID: {}", self.uuid.as_deref().unwrap_or("none yet")),
            format!("Attached Processes: {processes}"),
            format!("Mappings: {}", self.mappings.as_ref().map_or_else(|| "none".to_owned(), MappingsView::text)),
            format!("Page Size: {} bytes", units::PAGE_BYTES),
        ];
        let build = vec![
            format!("cxlraid Version: {}", env!("CARGO_PKG_VERSION")),
            format!("Build Type: {}", if cfg!(debug_assertions) { "debug" } else { "release" }),
            format!("Superblock Version: {}", self.format_version),
        ];
        let members = self.members.iter().map(member_line).collect();
        let sections = [
            ("Status", status),
            ("Configuration", configuration),
            ("Runtime", runtime),
            ("Build", build),
            ("Members", members),
            ("Paths", self.paths.clone()),
        ];
        sections.map(|(title, lines)| tree(title, &lines)).join("\n")
    }
}

fn member_line(member: &MemberView) -> String {
    let mut line = format!("{}: {}", member.path, member.state.text());
    if let Some(note) = &member.note {
        line += &format!(" ({note})");
    }
    if let Some(persistence) = &member.persistence {
        line += &format!(", {persistence}");
    }
    line += member.use_text();
    if let (Some(free), Some(total)) = (member.bytes_free, member.bytes_total) {
        line += &format!(", {} of {} free", bytes_text(free), bytes_text(total));
    }
    line
}

/// Text for a terminal: names and paths are whatever somebody made them. JSON has escapes of its
/// own.
pub(crate) fn shown(text: &str) -> String {
    Shown(text.as_bytes()).to_string()
}

/// A titled list with box characters.
pub(crate) fn tree(title: &str, lines: &[String]) -> String {
    let mut text = format!("{}\n", shown(title));
    for (index, line) in lines.iter().enumerate() {
        text += if index + 1 == lines.len() { "└─ " } else { "├─ " };
        text += &shown(line);
        text.push('\n');
    }
    text
}

/// "1.5 GiB": one decimal, binary units.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    if power == 0 {
        return format!("{bytes} B");
    }
    // Truncated, so that 1023.99 MiB is not shown as 1024.0.
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    format!("{}.{} {}", tenths / 10, tenths % 10, units[power - 1])
}

/// The document that `status --json` prints.
pub(crate) fn json(arrays: &[ArrayView]) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        version: u32,
        arrays: &'a [ArrayView],
    }
    // Strings, numbers and lists only: there is nothing that could fail.
    serde_json::to_string_pretty(&Document { version: JSON_VERSION, arrays }).unwrap_or_default()
}

impl Serialize for ArrayView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Keys<'a> {
            name: &'a Option<String>,
            uuid: &'a Option<String>,
            state: ArrayState,
            level: String,
            chunk_bytes: Option<u64>,
            read_policy: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            checksum: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            verify: Option<&'static str>,
            failures_left: usize,
            paths: &'a [String],
            processes: &'a [u32],
            mounts: Vec<std::borrow::Cow<'a, str>>,
            private_mounts: &'a [u32],
            mappings: &'a MappingsView,
            journal: &'a Option<JournalSummary>,
            members: &'a [MemberView],
            spares: &'a [SpareView],
            jobs: &'a [JobView],
            last_scrub: &'a Option<ScrubView>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            wrong_files: &'a [WrongFileView],
            #[serde(skip_serializing_if = "Option::is_none")]
            refused: &'a Option<String>,
        }
        Keys {
            name: &self.name,
            uuid: &self.uuid,
            state: self.state(),
            level: self.level.to_string(),
            chunk_bytes: self.level.has_chunks().then_some(self.chunk.bytes()),
            read_policy: self.read_policy.map(ReadPolicy::name),
            checksum: self.checksum,
            verify: self.checksum.map(|_| if self.verifies_reads { "read" } else { "none" }),
            failures_left: self.failures_left(),
            paths: &self.paths,
            processes: &self.processes,
            mounts: self.mounted.iter().map(|directory| directory.to_string_lossy()).collect(),
            private_mounts: &self.private,
            mappings: self.mappings.as_ref().unwrap_or(&MappingsView::default()),
            journal: &self.journal,
            members: &self.members,
            spares: &self.spares,
            jobs: &self.jobs,
            last_scrub: &self.last_scrub,
            wrong_files: &self.wrong_files,
            refused: &self.refused,
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn member(slot: usize, state: MemberState) -> MemberView {
        let there = state == MemberState::InSync;
        MemberView {
            slot,
            path: format!("/mnt/{}", ["a", "bb", "c", "d"][slot]),
            state,
            note: (state == MemberState::Missing).then(|| "no such directory".to_owned()),
            event_count: there.then_some(7),
            persistence: there.then(|| "volatile".to_owned()),
            write_mostly: false,
            role: None,
            is_blank: false,
            bytes_total: there.then_some(3 << 30),
            bytes_free: there.then_some((3 << 30) - 1),
            names_lost: 0,
        }
    }

    pub(crate) fn array(level: Level, states: &[MemberState]) -> ArrayView {
        ArrayView {
            name: Some("db".to_owned()),
            uuid: Some("6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001".to_owned()),
            level,
            chunk: ChunkBytes::DEFAULT,
            read_policy: level.keeps_copies().then(ReadPolicy::default),
            checksum: None,
            verifies_reads: false,
            members: states.iter().enumerate().map(|(slot, &state)| member(slot, state)).collect(),
            paths: vec!["/data".to_owned()],
            processes: vec![41, 42],
            mappings: None,
            refused: None,
            journal: None,
            spares: Vec::new(),
            jobs: Vec::new(),
            last_scrub: None,
            wrong_files: Vec::new(),
            names_compared: true,
            mounted: Vec::new(),
            private: Vec::new(),
            format_version: "1.0".to_owned(),
        }
    }

    use MemberState::{InSync, Missing, New};

    #[test]
    fn a_member_that_lacks_names_is_one_that_may_not_fail_any_more() {
        let mut view = array(Level::Raid6, &[InSync; 4]);
        assert_eq!((view.state(), view.failures_left()), (ArrayState::InSync, 2));
        view.members[1].names_lost = 1;
        assert_eq!((view.state(), view.failures_left(), view.exit()), (ArrayState::Degraded, 1, Exit::Degraded));
        // A start works, whoever lacks names.
        (0..4).for_each(|slot| view.members[slot].names_lost = 1);
        assert_eq!((view.state(), view.failures_left()), (ArrayState::Degraded, 0));
    }

    fn journal() -> JournalSummary {
        JournalSummary { place: "internal".to_owned(), state: "clean".to_owned(), lanes: 32, lanes_waiting: 1 }
    }

    #[test]
    fn status_names_state_and_members() {
        let view = array(Level::Raid5, &[InSync, Missing, InSync]);
        let expected = "\
db: degraded, RAID 5, chunk 64K, 2 of 3 members work, 0 more may fail
   0  /mnt/a   in sync, volatile
   1  /mnt/bb  missing: no such directory
   2  /mnt/c   in sync, volatile
  to do: bring missing members back, or 'cxlraid replace' puts others in their places
";
        assert_eq!(view.status_text(), expected);
        assert_eq!(view.exit(), Exit::Degraded);
        let with_journal = ArrayView { journal: Some(journal()), ..view };
        assert_eq!(with_journal.status_text(), expected.to_owned() + "  journal: internal, clean, 1 of 32 lanes in use\n");
    }

    #[test]
    fn names_and_paths_direct_no_terminal() {
        let mut view = array(Level::Raid5, &[InSync, Missing, InSync]);
        view.name = Some("d\u{202e}b".to_owned());
        view.members[0].path = "/mnt/\u{1b}[2J\n".to_owned();
        view.members[1].note = Some("\r".to_owned());
        view.paths = vec!["/da\tta".to_owned()];
        let expected = "\
d\\u{202e}b: degraded, RAID 5, chunk 64K, 2 of 3 members work, 0 more may fail
   0  /mnt/\\x1b[2J\\n  in sync, volatile
   1  /mnt/bb         missing: \\x0d
   2  /mnt/c          in sync, volatile
  to do: bring missing members back, or 'cxlraid replace' puts others in their places
";
        assert_eq!(view.status_text(), expected);
        let text = view.info_text();
        let lines = ["├─ Name: d\\u{202e}b", "├─ /mnt/\\x1b[2J\\n: in sync", "├─ /mnt/bb: missing (\\x0d)", "└─ /da\\tta\n"];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }

    #[test]
    fn mappings_are_counted() {
        let text = |processes, files, copies, copy_bytes| {
            let mappings = Some(MappingsView { processes, files, copies, copy_bytes, units: Vec::new() });
            ArrayView { mappings, ..array(Level::Raid0, &[]) }.status_text().lines().last().unwrap().to_owned()
        };
        assert_eq!(text(1, 1, 0, 0), "  mapped: 1 file in 1 process");
        assert_eq!(text(3, 2, 1, 5 << 20), "  mapped: 2 files in 3 processes, 1 shared copy of 5.0 MiB");
        assert_eq!(text(0, 0, 2, 4096), "  mapped: 0 files in 0 processes, 2 shared copies of 4.0 KiB");
        let units = [(4096, 1), (2 << 20, 2)].map(|(bytes, files)| UnitView { bytes, files }).to_vec();
        let text = MappingsView { processes: 1, files: 3, copies: 1, copy_bytes: 4096, units }.text();
        let followed = "stores followed by 4.0 KiB (1 file) and 2.0 MiB (2 files)";
        assert_eq!(text, format!("3 files in 1 process, {followed}, 1 shared copy of 4.0 KiB"));
    }

    #[test]
    fn info_is_the_thesis_tree() {
        let expected = "\
Status
├─ Name: db
├─ State: degraded
├─ More Failures Borne: 0
└─ Journal Status: clean, 1 of 32 lanes in use

Configuration
├─ RAID Level: 5
├─ Configured Members: 3
├─ Configured Paths: 1
├─ Journal: internal
├─ Stripe Size: 65536 bytes
├─ Read Policy: none, there are no copies
└─ Checksum: none

Runtime
├─ UUID: 6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001
├─ Attached Processes: 41, 42
├─ Mappings: 1 file in 2 processes
└─ Page Size: 4096 bytes

Build
├─ cxlraid Version: 0.1.0
├─ Build Type: debug
└─ Superblock Version: 1.0

Members
├─ /mnt/a: in sync, volatile, 2.9 GiB of 3.0 GiB free
├─ /mnt/bb: missing (no such directory)
└─ /mnt/c: in sync, volatile, 2.9 GiB of 3.0 GiB free

Paths
└─ /data
";
        let mappings = Some(MappingsView { processes: 2, files: 1, ..MappingsView::default() });
        let text =
            ArrayView { mappings, journal: Some(journal()), ..array(Level::Raid5, &[InSync, Missing, InSync]) }.info_text();
        let text = text.replace("release", "debug").replace(env!("CARGO_PKG_VERSION"), "0.1.0");
        assert_eq!(text, expected);
        assert!(
            array(Level::Raid1, &[InSync])
                .info_text()
                .contains("├─ Stripe Size: not used by RAID 1\n├─ Read Policy: round-robin\n")
        );
    }

    #[test]
    fn an_array_that_no_program_can_start_with_has_failed() {
        let view = ArrayView { refused: Some("/mnt/a: why\u{1b}".to_owned()), ..array(Level::Raid1, &[InSync, InSync]) };
        assert_eq!((view.state(), view.exit(), view.failures_left()), (ArrayState::Failed, Exit::Error, 0));
        assert_eq!(view.status_text().lines().last(), Some("  no program can start: /mnt/a: why\\x1b"));
        assert!(view.info_text().contains("No Program Can Start: /mnt/a: why"));
    }

    #[test]
    fn json_has_the_documented_keys() {
        let mut view = ArrayView { journal: Some(journal()), ..array(Level::Raid1, &[InSync, Missing]) };
        view.processes.clear();
        view.mounted = vec!["/mnt/db".into()];
        view.private = vec![77];
        let expected = r#"{
  "version": 1,
  "arrays": [
    {
      "name": "db",
      "uuid": "6f1c0f5e-7a0b-4a53-9c8e-3f0f4be0a001",
      "state": "degraded",
      "level": "1",
      "chunk_bytes": null,
      "read_policy": "round-robin",
      "failures_left": 0,
      "paths": [
        "/data"
      ],
      "processes": [],
      "mounts": [
        "/mnt/db"
      ],
      "private_mounts": [
        77
      ],
      "mappings": {
        "processes": 0,
        "files": 0,
        "units": [],
        "copies": 0,
        "copy_bytes": 0
      },
      "journal": {
        "place": "internal",
        "state": "clean",
        "lanes": 32,
        "lanes_waiting": 1
      },
      "members": [
        {
          "slot": 0,
          "path": "/mnt/a",
          "state": "in-sync",
          "event_count": 7,
          "persistence": "volatile",
          "write_mostly": false,
          "bytes_total": 3221225472,
          "bytes_free": 3221225471
        },
        {
          "slot": 1,
          "path": "/mnt/bb",
          "state": "missing",
          "note": "no such directory",
          "event_count": null,
          "persistence": null,
          "write_mostly": false,
          "bytes_total": null,
          "bytes_free": null
        }
      ],
      "spares": [],
      "jobs": [],
      "last_scrub": null
    }
  ]
}"#;
        assert_eq!(json(&[view]), expected);
    }

    #[test]
    fn states_follow_from_members() {
        let state = |level, states: &[MemberState]| {
            let view = array(level, states);
            (view.state(), view.failures_left())
        };
        assert_eq!(state(Level::Raid0, &[InSync, InSync]), (ArrayState::InSync, 0));
        assert_eq!(state(Level::Raid0, &[InSync, Missing]), (ArrayState::Failed, 0));
        assert_eq!(state(Level::Raid1, &[New, New, New]), (ArrayState::New, 2));
        assert_eq!(state(Level::Raid1, &[InSync, Missing, Missing]), (ArrayState::Degraded, 0));
        assert_eq!(state(Level::Raid5, &[InSync, Missing, Missing]), (ArrayState::Failed, 0));
        assert_eq!(state(Level::Raid6, &[InSync, InSync, Missing, InSync]), (ArrayState::Degraded, 1));
        assert_eq!(state(Level::Raid10, &[InSync; 4]), (ArrayState::InSync, 1));
        assert_eq!(state(Level::Raid10, &[InSync, Missing, Missing, InSync]), (ArrayState::Degraded, 0));
        assert_eq!(state(Level::Raid10, &[Missing, Missing, InSync, InSync]), (ArrayState::Failed, 0));
        assert_eq!(array(Level::Raid0, &[Missing]).exit(), Exit::Error);
    }

    #[test]
    fn sizes_are_short_and_never_rounded_up() {
        let texts = [0, 1023, 1024, 1536, (1 << 30) - 1, u64::MAX].map(bytes_text);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 MiB", "15.9 EiB"]);
    }
}
