//! Coverage: a case under strace, where no call that concerns the array may reach the kernel.
//!
//! The kernel still sees the library's own calls on members. A call of the program that was missed
//! differs from them: it names the prefix itself, or a name below a member's copy of it relative to
//! the working directory, or it moves data through an *anchor*, a low descriptor that leads below a
//! member. Each call that moves data is also counted by the library (CXLRAID_TRACE) and compared
//! with the number of the same calls in the plain run.

use crate::{
    array::{Array, Shape},
    cases::Case,
    matrix,
    place::Place,
    process::Output,
    report::{Complaints, compare, first_lines},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Calls that read or write what is in a file, by the number of their descriptors' arguments.
const DATA_CALLS: [(&str, &[usize]); 14] = [
    ("read", &[0]),
    ("write", &[0]),
    ("pread64", &[0]),
    ("pwrite64", &[0]),
    ("readv", &[0]),
    ("writev", &[0]),
    ("preadv", &[0]),
    ("pwritev", &[0]),
    ("preadv2", &[0]),
    ("pwritev2", &[0]),
    ("sendfile", &[0, 1]),
    ("copy_file_range", &[0, 2]),
    ("splice", &[0, 2]),
    ("mmap", &[4]),
];

/// Calls that are filtered by their descriptor, so that the library counts exactly those on files
/// of the array; with their numbers.
const COUNTED: [(&str, usize); 13] = [
    ("read", 0),
    ("write", 1),
    ("pread64", 17),
    ("pwrite64", 18),
    ("readv", 19),
    ("writev", 20),
    ("fsync", 74),
    ("fdatasync", 75),
    ("ftruncate", 77),
    ("fallocate", 285),
    ("preadv", 295),
    ("pwritev", 296),
    ("pwritev2", 328),
];

/// Calls whose strings from this argument on are not paths that are looked up: contents of links,
/// or what the kernel answered.
const NOT_PATHS: [(&str, usize); 6] =
    [("readlink", 1), ("readlinkat", 2), ("getcwd", 1), ("execve", 1), ("execveat", 2), ("listxattr", 1)];

/// Above this number descriptors are the library's own (base/sys, `high_fd`).
const ANCHOR_MAX: u32 = 300;

/// One call, as strace prints it.
#[derive(Debug, PartialEq, Eq)]
struct Call<'a> {
    name: &'a str,
    arguments: Vec<&'a str>,
    line: &'a str,
}

impl<'a> Call<'a> {
    /// None for lines that are no call: signals, exits, the second half of an interrupted one.
    fn parse(line: &'a str) -> Option<Self> {
        // strace -f begins with the process' number.
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let (name, rest) = call.split_once('(')?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then(|| Self { name, arguments: split_arguments(rest), line })
    }

    /// The string at `index`, if that argument is one.
    fn string(&self, index: usize) -> Option<&'a str> {
        let argument = self.arguments.get(index)?;
        Some(argument.strip_prefix('"')?.trim_end_matches("...").trim_end_matches('"'))
    }

    /// Whether strace has cut the string at `index`: of paths only those longer than PATH_MAX,
    /// which the kernel refuses without looking anything up.
    fn is_cut(&self, index: usize) -> bool {
        self.arguments.get(index).is_some_and(|argument| argument.ends_with("\"..."))
    }

    /// Number and path of the descriptor at `index`.
    fn descriptor(&self, index: usize) -> Option<(u32, &'a str)> {
        let (number, path) = self.arguments.get(index)?.split_once('<')?;
        let path = path.trim_end_matches("(deleted)").trim_end_matches('>');
        Some((number.parse().ok()?, path))
    }

    /// The working directory, if that argument is AT_FDCWD.
    fn working_directory(&self, index: usize) -> Option<&'a str> {
        self.arguments.get(index)?.strip_prefix("AT_FDCWD<")?.strip_suffix('>')
    }
}

/// Splits at commas outside quotes and brackets, up to the closing bracket or an interruption.
fn split_arguments(text: &str) -> Vec<&str> {
    let text = text.split(" <unfinished").next().unwrap_or(text);
    let (mut arguments, mut start, mut depth, mut quoted, mut escaped) = (Vec::new(), 0, 0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                arguments.push(text[start..at].trim());
                return arguments;
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                arguments.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    arguments.push(text[start..].trim());
    arguments
}

/// What a call is judged by.
struct Judge {
    prefix: String,
    members: Vec<String>,
    /// Ends of the paths of fifos: their anchors carry no data of the array.
    fifos: Vec<String>,
    /// Addresses from which something was unmapped.
    unmapped: BTreeSet<String>,
}

impl Judge {
    fn new(array: &Array<'_>, trace: &str) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let made = trace.lines().filter(|line| line.contains("S_IFIFO")).filter_map(Call::parse);
        let fifos = made.filter(|call| call.name == "mknodat").filter_map(|call| call.string(1)).map(str::to_owned).collect();
        let unmapped = trace.lines().filter_map(|line| line.split_once("munmap(")?.1.split_once(','));
        Self {
            prefix: text(&array.place.data),
            members: array.members.iter().map(|member| text(member)).collect(),
            fifos,
            unmapped: unmapped.map(|(address, _)| address.to_owned()).collect(),
        }
    }

    fn is_below(path: &str, directory: &str) -> bool {
        path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether a path is a member's copy of something in the array.
    fn is_backing(&self, path: &str) -> bool {
        self.members
            .iter()
            .any(|member| path.strip_prefix(member.as_str()).is_some_and(|rest| Self::is_below(rest, &self.prefix)))
    }

    /// Why the kernel should not have seen this call; None if it is fine.
    fn complaint(&self, call: &Call<'_>) -> Option<&'static str> {
        if self.names_prefix(call) && !is_refused_name(call) {
            return Some("names the prefix");
        }
        if self.is_relative(call) {
            return Some("is relative to an anchor");
        }
        let (_, descriptors) = DATA_CALLS.iter().find(|(name, _)| *name == call.name)?;
        // The kernel refuses to read a directory or what is open for less; the library composes
        // mappings with MAP_FIXED. One byte is read so that the kernel notes the time of access and
        // tells those who watch the file. Of a call that another line comes into, this one does not
        // tell how much it reads.
        let tells = call.name == "pread64"
            && [", 1, 0) = 1", ">,  <unfinished ...>", ">(deleted),  <unfinished ...>"]
                .iter()
                .any(|end| call.line.ends_with(end));
        let harmless = tells
            || self.is_judgement(call)
            || call.line.contains(" EISDIR ")
            || call.line.contains(" EBADF ")
            || call.line.contains("|MAP_FIXED");
        let is_anchor = |&index: &usize| {
            let descriptor = call.descriptor(index).filter(|(number, path)| *number < ANCHOR_MAX && self.is_backing(path));
            descriptor.is_some_and(|(_, path)| !harmless && !self.fifos.iter().any(|fifo| path.ends_with(fifo)))
        };
        descriptors.iter().any(is_anchor).then_some("moves data through an anchor")
    }

    fn names_prefix(&self, call: &Call<'_>) -> bool {
        // The library's own way to resolve a name below a member's root.
        let below_member = call
            .arguments
            .first()
            .and_then(|_| call.descriptor(0))
            .is_some_and(|(_, path)| self.members.iter().any(|member| Self::is_below(path, member)));
        if call.name == "openat2" && below_member && call.line.contains("RESOLVE_IN_ROOT") {
            return false;
        }
        let end = NOT_PATHS.iter().find(|(name, _)| *name == call.name).map_or(call.arguments.len(), |(_, from)| *from);
        let begin = usize::from(matches!(call.name, "symlink" | "symlinkat"));
        let mut paths = (begin..end).filter(|&index| !call.is_cut(index)).filter_map(|index| call.string(index));
        paths.any(|path| Self::is_below(path, &self.prefix))
    }

    /// Whether the library had the kernel judge what a program asked for: a copy of no bytes, or a
    /// mapping that it refused or that was taken away again.
    fn is_judgement(&self, call: &Call<'_>) -> bool {
        let result = call.line.rsplit_once(" = ").map_or("", |(_, result)| result);
        let is_zero = |index: usize| call.arguments.get(index).is_some_and(|text| text.split(' ').next() == Some("0"));
        match call.name {
            "sendfile" => is_zero(3),
            "copy_file_range" => is_zero(4),
            "mmap" => result.starts_with("-1 ") || self.unmapped.contains(result),
            _ => false,
        }
    }

    fn is_relative(&self, call: &Call<'_>) -> bool {
        (0..call.arguments.len()).any(|index| {
            let directory = call.working_directory(index).or_else(|| match call.descriptor(index) {
                Some((number, path)) if number < ANCHOR_MAX => Some(path),
                _ => None,
            });
            let relative = call.string(index + 1).is_some_and(|path| !path.is_empty() && !path.starts_with('/'));
            // The library makes one look by a descriptor of the program's, and says so with a flag
            // that means nothing there (fstatat(2)) and that programs do not give. Of a call that
            // another thread's interrupts strace shows no flags.
            let is_own_look = call.name == "newfstatat"
                && (call.line.contains("AT_SYMLINK_NOFOLLOW|AT_NO_AUTOMOUNT") || call.line.ends_with("<unfinished ...>"));
            call.name.ends_with("at") && !is_own_look && relative && directory.is_some_and(|directory| self.is_backing(directory))
        })
    }
}

/// Whether the library had the kernel judge a name or target that it refuses: nothing was made or
/// opened.
fn is_refused_name(call: &Call<'_>) -> bool {
    let is_look = call.name == "openat2" && call.line.contains("O_PATH") && call.line.contains("RESOLVE_NO_SYMLINKS");
    (is_look || matches!(call.name, "symlink" | "symlinkat")) && call.line.contains(") = -1 ")
}

/// The traced runs of a case: on a plain directory, then on an array.
pub(crate) fn run(place: &Place<'_>, case: &Case) -> io::Result<Complaints> {
    let mut complaints = Complaints::new();
    place.clear()?;
    let log = place.root.join("trace.plain");
    let plain = traced(place, None, case, &log);
    let text = fs::read_to_string(&log)?;
    let expected = count_plain(&text, &place.data.to_string_lossy(), case.by_the_clock);
    fs::remove_file(&log)?;

    let array = Array::new(place, Shape::RAID5, "traced")?;
    array.run("ls").arg(&place.data).output();
    let log = place.root.join("trace.array");
    let found = traced(place, Some(&array), case, &log);
    compare("traced", &plain, &found, &mut complaints);
    matrix::check_host(&array, &mut complaints);
    let text = fs::read_to_string(&log)?;
    judge(&Judge::new(&array, &text), &text, &mut complaints);
    fs::remove_file(&log)?;
    // Where nothing was intercepted there is no file.
    let counters = read_counters(&counters_path(place)).unwrap_or_default();
    compare_counts(case, &expected, &counters, &mut complaints);
    Ok(complaints)
}

fn counters_path(place: &Place<'_>) -> PathBuf {
    place.root.join("counters")
}

fn traced(place: &Place<'_>, array: Option<&Array<'_>>, case: &Case, log: &Path) -> Output {
    let options = ["-f", "-y", "-s", "0", "--seccomp-bpf", "-e", "trace=%file,%desc,munmap", "-e", "signal=none", "-o"];
    let mut run = place.run("strace").limit(Duration::from_secs(120)).args(options).arg(log).env("TRACED", "traced");
    if let Some(array) = array {
        // Only the traced programs are to be intercepted, not strace itself.
        let preload = format!("LD_PRELOAD={}", place.ground.library.display());
        run = array.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value));
        run = run.env("STRICT", "strict").env("CXLRAID_TRACE", counters_path(place)).arg("-E").arg(preload);
    }
    matrix::script(run.arg("bash"), place, case, "first").output()
}

fn judge(judge: &Judge, text: &str, complaints: &mut Complaints) {
    let mut missed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for call in text.lines().filter_map(Call::parse) {
        if let Some(why) = judge.complaint(&call) {
            missed.entry(why).or_default().push(call.line);
        }
    }
    for (why, lines) in missed {
        complaints.push(format!("{} calls reached the kernel: {why}\n{}", lines.len(), first_lines(&lines.join("\n"))));
    }
}

/// Counts calls on files below `directory` whose paths contain none of `except`, by name.
fn count_plain<'a>(text: &'a str, directory: &str, except: &[&str]) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    let is_counted = |path: &str| Judge::is_below(path, directory) && !except.iter().any(|part| path.contains(part));
    for call in text.lines().filter_map(Call::parse) {
        if call.descriptor(0).is_some_and(|(_, path)| is_counted(path)) {
            *counts.entry(call.name).or_default() += 1;
        }
    }
    counts
}

fn read_counters(path: &Path) -> io::Result<Vec<u64>> {
    let bytes = fs::read(path)?;
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
}

fn compare_counts(case: &Case, expected: &BTreeMap<&str, u64>, counters: &[u64], complaints: &mut Complaints) {
    for (name, number) in COUNTED {
        let expected = expected.get(name).copied().unwrap_or(0);
        let found = counters.get(number).copied().unwrap_or(0);
        let uncounted = case.uncounted.iter().any(|(other, _)| *other == name);
        // The library also counts calls on numbers that were ours until a child closed them.
        if found < expected && !uncounted {
            complaints.push(format!("{name}: {found} calls seen by the library, {expected} in the plain run"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(line: &str) -> Option<&'static str> {
        let judge = Judge {
            prefix: "/t/data".into(),
            members: vec!["/t/m0".into(), "/t/m1".into()],
            fifos: vec!["t/data/fifo".into()],
            unmapped: BTreeSet::from(["0x7000".into()]),
        };
        judge.complaint(&Call::parse(line)?)
    }

    #[test]
    fn lines_are_taken_apart() {
        let call = Call::parse(r#"12 openat(AT_FDCWD</t/x y>, "a, \"b\"", O_RDONLY|O_CLOEXEC) = 3</t/x y/a>"#).unwrap();
        assert_eq!((call.name, call.arguments.len(), call.working_directory(0)), ("openat", 3, Some("/t/x y")));
        assert_eq!(Call::parse("12 read(3</t/a>,  <unfinished ...>").unwrap().descriptor(0), Some((3, "/t/a")));
        assert_eq!(Call::parse("12 read(3</t/a>(deleted), \"\"..., 5) = 5").unwrap().descriptor(0), Some((3, "/t/a")));
        assert_eq!(Call::parse("12 <... read resumed>\"\"..., 5) = 5"), None);
        assert_eq!(Call::parse("12 +++ exited with 0 +++"), None);
    }

    #[test]
    fn what_was_missed_is_told_from_what_the_library_does() {
        for line in [
            r#"1 openat(AT_FDCWD</w>, "/t/data/x", O_RDONLY) = 3"#,
            r#"1 stat("/t/data", {...}) = 0"#,
            r#"1 rename("/w/x", "/t/data/y") = 0"#,
            r#"1 openat(AT_FDCWD</t/m0/t/data>, "x", O_RDONLY) = 3"#,
            r#"1 unlinkat(5</t/m0/t/data/d>, "x", 0) = 0"#,
            r#"1 newfstatat(5</t/m0/t/data>, "x", {...}, AT_SYMLINK_NOFOLLOW) = 0"#,
            r#"1 read(3</t/m0/t/data/x>, ""..., 10) = 10"#,
            r#"1 mmap(NULL, 4096, PROT_READ, MAP_SHARED, 4</t/m1/t/data/x>, 0) = 0x1"#,
            r#"1 sendfile(1</w>, 3</t/m0/t/data/x>, NULL, 10) = 10"#,
        ] {
            assert!(complaint(line).is_some(), "{line}");
        }
        for line in [
            r#"1 openat(AT_FDCWD</w>, "/t/database", O_RDONLY) = 3"#,
            r#"1 openat2(512</t/m0>, "/t/data/x", {flags=O_RDONLY, resolve=RESOLVE_IN_ROOT}, 24) = 3"#,
            r#"1 openat(512</t/m0>, "t/data/x", O_RDONLY) = 3"#,
            r#"1 newfstatat(5</t/m0/t/data>, "x", {...}, AT_SYMLINK_NOFOLLOW|AT_NO_AUTOMOUNT) = 0"#,
            r#"1 read(700</t/m0/t/data/x>, ""..., 10) = 10"#,
            r#"1 read(3</t/m0/.cxlraid/lanes>, ""..., 10) = 10"#,
            r#"1 symlink("/t/data/x", "/w/link") = 0"#,
            r#"1 sendfile(1</w>, 3</t/m0/t/data/x>, NULL, 0) = 0"#,
            r#"1 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 4</t/m1/t/data/x>, 0) = 0x7000"#,
            r#"1 readlink("/w/link", "/t/data/x", 4096) = 9"#,
            r#"1 execve("/bin/cat", ["cat", "/t/data/x"], 0x1) = 0"#,
            r#"1 read(3</t/m0/t/data/fifo>, ""..., 10) = 10"#,
            r#"1 read(3</t/m0/t/data>, 0x1, 10) = -1 EISDIR (Is a directory)"#,
            r#"1 mmap(0x1000, 4096, PROT_READ, MAP_SHARED|MAP_FIXED, 4</t/m1/t/data/x>, 0) = 0x1000"#,
            r#"1 fstat(3</t/m0/t/data/x>, {...}) = 0"#,
            r#"1 pread64(3</t/m0/t/data/x>, "a", 1, 0) = 1"#,
            r#"1 pread64(3</t/m0/t/data/x>,  <unfinished ...>"#,
            r#"1 pread64(3</t/m0/t/data/x>(deleted),  <unfinished ...>"#,
            r#"1 mkdir("/t/data/././././."..., 0755) = -1 ENAMETOOLONG (File name too long)"#,
        ] {
            assert_eq!(complaint(line), None, "{line}");
        }
    }

    #[test]
    fn plain_calls_are_counted_below_the_directory() {
        let text = "1 read(3</d/x>, \"\", 1) = 1\n1 read(4</e>, \"\", 1) = 1\n1 read(3</d/x>,  <unfinished ...>\n";
        assert_eq!(count_plain(text, "/d", &[]).get("read"), Some(&2));
        assert_eq!(count_plain(text, "/d", &["/x"]).get("read"), None);
    }
}
