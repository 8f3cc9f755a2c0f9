//! The log of events: what an operator must hear of an array, one JSON object a line, appended to a
//! file.
//!
//! Programs and the operator's command write the same file; whoever watches it follows its end. It
//! lies in a state directory and not on the members, which may be what has failed. `cxlraid run`
//! makes it and names it to the library by CXLRAID_EVENTS.
//!
//! Invariants: a line is appended by one write(2) to a file that is opened for it, so it may be
//! renamed at any time; no file is made here; what cannot be written is not written, and the array
//! goes on.

use crate::regular::open_regular;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicPtr, Ordering};
use format::Uuid;
use sys::rustix::fs::{CWD, OFlags};
use sys::rustix::io::write;
use sys::{AsFd as _, OsError};

/// What happened. Where mdadm --monitor has a name for it, that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A member failed, or was taken out by hand.
    Fail,
    /// A program started with members out of use.
    DegradedArray,
    /// A rebuild began to compute what files held.
    RebuildStarted,
    /// A rebuild has come to its end: members are in sync.
    RebuildFinished,
    /// A scrub began.
    ScrubStarted,
    /// A scrub ended.
    ScrubFinished,
    /// A scrub has found something that does not fit.
    Mismatch,
    /// A read has met a block that does not fit its checksum, and has got its bytes elsewhere.
    Rotten,
    /// A read has met a block that does not fit its checksum, and nothing else gives its bytes.
    Unreadable,
    /// Damaged records of a member's tables were made anew from other members'.
    Healed,
    /// The place of a member was emptied.
    Removed,
    /// A spare takes the place of a member that is out.
    SpareUsed,
    /// A member that was away begins to come back.
    ReAdd,
}

impl EventKind {
    /// Its name in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::DegradedArray => "DegradedArray",
            Self::RebuildStarted => "RebuildStarted",
            Self::RebuildFinished => "RebuildFinished",
            Self::ScrubStarted => "ScrubStarted",
            Self::ScrubFinished => "ScrubFinished",
            Self::Mismatch => "Mismatch",
            Self::Rotten => "Rotten",
            Self::Unreadable => "Unreadable",
            Self::Healed => "Healed",
            Self::Removed => "Removed",
            Self::SpareUsed => "SpareUsed",
            Self::ReAdd => "ReAdd",
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// The array's name; empty if it has none.
    pub array: &'a str,
    /// The array.
    pub uuid: Uuid,
    /// The member that it is about.
    pub member: Option<&'a [u8]>,
    /// The file that it is about, by its logical path, and where in it.
    pub file: Option<(&'a [u8], u64)>,
    /// What happened, for people.
    pub what: &'a str,
    /// Of a scrub or a rebuild: how many things do not fit, or were computed.
    pub count: Option<u64>,
}

impl Event<'_> {
    /// The line, with its end; `now_ns` in nanoseconds since 1970 (UTC).
    #[must_use]
    pub fn line(&self, now_ns: u64) -> String {
        let mut line = String::new();
        // A String never fails.
        let _ = write!(line, "{{\"ns\":{now_ns},\"event\":\"{}\",\"array\":", self.kind.name());
        quote(&mut line, self.array);
        let _ = write!(line, ",\"uuid\":\"{}\"", self.uuid);
        if let Some(member) = self.member {
            line.push_str(",\"member\":");
            quote(&mut line, &String::from_utf8_lossy(member));
        }
        if let Some((file, offset)) = self.file {
            line.push_str(",\"file\":");
            quote(&mut line, &String::from_utf8_lossy(file));
            let _ = write!(line, ",\"offset\":{offset}");
        }
        if let Some(count) = self.count {
            let _ = write!(line, ",\"count\":{count}");
        }
        line.push_str(",\"what\":");
        quote(&mut line, self.what);
        line.push_str("}\n");
        line
    }
}

/// A JSON string (RFC 8259, section 7).
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => {
                line.push('\\');
                line.push(char);
            }
            char if u32::from(char) < 0x20 => {
                let _ = write!(line, "\\u{:04x}", u32::from(char));
            }
            char => line.push(char),
        }
    }
    line.push('"');
}

/// Appends an event to the log at `path`.
///
/// # Errors
/// What the kernel says. `MEDIUMTYPE` or `LOOP` if it is no regular file.
pub fn append(path: &[u8], event: &Event<'_>) -> Result<(), OsError> {
    let file = open_regular(CWD.as_fd(), path, OFlags::WRONLY | OFlags::APPEND)?;
    let line = event.line(sys::clock::realtime_coarse_ns());
    write(&file, line.as_bytes()).map(|_| ())
}

/// Where a process tells its events.
pub struct EventLog(AtomicPtr<Place>);

/// A log, and of which array the process tells.
struct Place {
    path: Vec<u8>,
    array: String,
    uuid: Uuid,
}

/// The log of this process.
pub static LOG: EventLog = EventLog(AtomicPtr::new(core::ptr::null_mut()));

impl EventLog {
    /// From now on events go to the file at `path`, as those of this array.
    pub fn begin(&self, path: &[u8], array: &str, uuid: Uuid) {
        let place = Place { path: path.to_vec(), array: String::from(array), uuid };
        self.0.store(Box::into_raw(Box::new(place)), Ordering::Release);
    }

    /// Tells an event, if there is a log.
    pub fn tell(&self, kind: EventKind, member: Option<&[u8]>, count: Option<u64>, what: &str) {
        self.append(|array, uuid| Event { kind, array, uuid, member, what, count, file: None });
    }

    /// Tells an event about bytes of a file, if there is a log.
    pub fn tell_of_file(&self, kind: EventKind, member: Option<&[u8]>, file: (&[u8], u64), what: &str) {
        self.append(|array, uuid| Event { kind, array, uuid, member, what, count: None, file: Some(file) });
    }

    fn append<'a>(&self, event: impl FnOnce(&'static str, Uuid) -> Event<'a>) {
        // SAFETY: null or a leaked place that nobody changes.
        if let Some(place) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            let event = event(&place.array, place.uuid);
            // There is nobody else to tell.
            let _ = append(&place.path, &event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let event = Event {
            kind: EventKind::Fail,
            array: "d\"b",
            uuid: Uuid::NIL,
            member: Some(b"/mnt/a\n\\"),
            what: "it failed",
            count: Some(3),
            file: Some((b"/data/a", 4096)),
        };
        let expected = "{\"ns\":17,\"event\":\"Fail\",\"array\":\"d\\\"b\",\"uuid\":\"00000000-0000-0000-0000-000000000000\",\
                        \"member\":\"/mnt/a\\u000a\\\\\",\"file\":\"/data/a\",\"offset\":4096,\"count\":3,\"what\":\"it failed\"}\n";
        assert_eq!(event.line(17), expected);
    }

    #[test]
    fn events_are_appended_to_a_file_that_is_there_and_to_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name).into_os_string().into_encoded_bytes();
        let event =
            Event { kind: EventKind::Healed, array: "", uuid: Uuid::NIL, member: None, what: "", count: None, file: None };
        assert_eq!(append(&path("none"), &event), Err(OsError::NOENT));
        std::fs::write(home.path().join("log"), "").unwrap();
        append(&path("log"), &event).unwrap();
        append(&path("log"), &event).unwrap();
        assert_eq!(std::fs::read_to_string(home.path().join("log")).unwrap().lines().count(), 2);
        std::os::unix::fs::symlink("log", home.path().join("link")).unwrap();
        assert!(append(&path("link"), &event).is_err());
        assert!(append(b"a\0b", &event).is_err());
    }
}
