//! The scene of one refusal: an array, settings that are wrong, and what programs are told.

use crate::{
    array::{Array, Shape},
    matrix,
    place::Place,
    process::{Output, Run, without_notices},
    report::{Complaints, compare, difference, with_output},
    snapshot,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

/// Who runs programs as somebody without rights, for tests of permissions.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// What a program prints that names nothing of the array, whatever the settings say.
const OUTSIDE: &str = "echo out; echo err >&2; cat \"$A/tree/one\" | wc -c; exit 7";

/// An array with its settings.
pub(super) struct Scene<'a> {
    pub(super) array: Array<'a>,
    /// Settings in place of the array's own; None: not set.
    settings: BTreeMap<&'static str, Option<OsString>>,
    /// Programs run without rights.
    pub(super) as_nobody: bool,
    /// Programs run as this user, of this group alone.
    pub(super) as_user: Option<(u32, u32)>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(place: &'a Place<'a>, shape: Shape) -> io::Result<Self> {
        let array = Array::new(place, shape, shape.label)?;
        Ok(Self { array, settings: BTreeMap::new(), as_nobody: false, as_user: None })
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.settings.insert(name, Some(value.into()));
    }

    pub(super) fn unset(&mut self, name: &'static str) {
        self.settings.insert(name, None);
    }

    /// The settings are the array's own again.
    pub(super) fn reset(&mut self) {
        self.settings.clear();
        self.as_nobody = false;
        self.as_user = None;
    }

    /// The members given are these.
    pub(super) fn set_members<'m>(&mut self, members: impl IntoIterator<Item = &'m Path>) {
        let members: Vec<_> = members.into_iter().map(Path::as_os_str).collect();
        self.set("CXLRAID_MOUNTS", members.join(":".as_ref()));
    }

    pub(super) fn member(&self, slot: usize) -> &Path {
        &self.array.members[slot]
    }

    /// A member's path as messages show it.
    pub(super) fn shown(&self, slot: usize) -> String {
        self.member(slot).display().to_string()
    }

    /// A path of the array.
    pub(super) fn data(&self, name: &str) -> PathBuf {
        self.array.place.data.join(name)
    }

    /// A directory beside the members.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.array.place.root.join(name)
    }

    /// A program that sees the array as the settings say.
    pub(super) fn run(&self, program: &str, arguments: &[&Path]) -> Output {
        let mut run = match self.as_user {
            Some((user, group)) => {
                let ids = [format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".into(), "--".into()];
                self.array.place.run("setpriv").args(ids).arg("env")
            }
            None if self.as_nobody => self.array.place.run("setpriv").args(NOBODY).arg("env"),
            None => self.array.place.run("env"),
        };
        // Given as arguments of env, so that setpriv itself is not intercepted.
        let mut variables: BTreeMap<&str, OsString> = self.array.variables().into_iter().collect();
        variables.insert("LD_PRELOAD", self.array.place.ground.library.clone().into());
        for (name, value) in &self.settings {
            match value {
                Some(value) => variables.insert(name, value.clone()),
                None => variables.remove(name),
            };
        }
        for (name, value) in variables {
            let mut assignment = OsString::from(name);
            assignment.push("=");
            assignment.push(value);
            run = run.arg(assignment);
        }
        let assets: &Path = &self.array.place.ground.assets;
        let program = if program == "probe" || program == "fill" { assets.join("bin").join(program) } else { program.into() };
        run.arg(program).args(arguments).output()
    }

    /// Appends to a file of the array, with one open and one write.
    pub(super) fn probe(&self, name: &str, text: &str) -> Output {
        self.run("probe", &[&self.data(name), Path::new(text)])
    }

    /// Makes the array and puts a file into it.
    pub(super) fn make(&self, complaints: &mut Complaints) {
        let made = self.probe("file", "before\n");
        if !made.succeeded() {
            complaints.push(with_output("a healthy start", &made));
        }
    }

    /// Reads a file of the array and compares.
    pub(super) fn expect_content(&self, name: &str, content: &str, complaints: &mut Complaints) {
        let found = without_notices(self.run("cat", &[&self.data(name)]));
        let expected = Output { stdout: content.into(), stderr: Vec::new(), status: "0".into() };
        compare(&format!("content of {name}"), &expected, &found, complaints);
    }

    fn state(&self) -> Output {
        snapshot::state(self.array.place, &[&self.array.place.root])
    }

    /// The start is refused: one line with all of `says`, the call fails with `errno`, nothing is
    /// changed, others do not notice.
    pub(super) fn expect_refusal(&self, errno: &str, says: &[&str], complaints: &mut Complaints) {
        let before = self.state();
        let output = self.probe("file", "must not arrive");
        if output.stdout != format!("open: {errno}\n").as_bytes() || output.status != "1" {
            complaints.push(with_output(&format!("the call must fail with {errno}"), &output));
        }
        check_line(&output, says, complaints);
        self.expect_unnoticed(complaints);
        let after = self.state();
        if before.stdout != after.stdout {
            complaints.push(format!("a refused start changed something\n{}", difference(&before.stdout, &after.stdout)));
        }
        matrix::check_host(&self.array, complaints);
    }

    /// The start goes on, after one line with all of `says`.
    pub(super) fn expect_warning(&self, text: &str, says: &[&str], complaints: &mut Complaints) {
        self.expect_unnoticed(complaints);
        let output = self.probe("file", text);
        if !output.succeeded() {
            complaints.push(with_output("the call must succeed", &output));
        }
        check_line(&output, says, complaints);
        matrix::check_host(&self.array, complaints);
    }

    /// A program that names nothing of the array prints what it always does.
    fn expect_unnoticed(&self, complaints: &mut Complaints) {
        let expected = Output { stdout: b"out\n1\n".into(), stderr: b"err\n".into(), status: "7".into() };
        let found = self.run("sh", &[Path::new("-c"), Path::new(OUTSIDE)]);
        compare("a program outside every prefix", &expected, &found, complaints);
    }

    /// Copies a file over a member's superblock.
    pub(super) fn replace_superblock(&self, slot: usize, content: &[u8]) -> io::Result<()> {
        fs::write(self.member(slot).join(".cxlraid/superblock"), content)
    }

    /// A second array of the same shape, beside the members; returns its member directories.
    pub(super) fn other_array(&mut self, complaints: &mut Complaints) -> io::Result<Vec<PathBuf>> {
        let others: Vec<PathBuf> = (0..self.array.members.len()).map(|slot| self.beside(&format!("other{slot}"))).collect();
        for other in &others {
            fs::create_dir(other)?;
        }
        self.set_members(others.iter().map(PathBuf::as_path));
        self.make(complaints);
        self.reset();
        Ok(others)
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        // Those of arrays that were put together from other directories; the array's own goes with
        // it.
        let Ok(entries) = fs::read_dir(&self.array.place.root) else { return };
        stage::segment::forget(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
}

/// Exactly one line of the library's, and nothing else, on standard error.
fn check_line(output: &Output, says: &[&str], complaints: &mut Complaints) {
    let text = output.stderr_text();
    let lines: Vec<&str> = text.lines().collect();
    match lines[..] {
        [line] if line.starts_with("cxlraid: ") => {
            for part in says.iter().filter(|part| !line.contains(**part)) {
                complaints.push(format!("the message lacks \"{part}\": {line}"));
            }
        }
        _ => complaints.push(format!("must be one line of cxlraid, are {}:\n{text}", lines.len())),
    }
}

/// Whether we may mount and become somebody else.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a program of the host that must succeed.
pub(super) fn must(run: Run<'_>) -> io::Result<()> {
    let output = run.output();
    if output.succeeded() { Ok(()) } else { Err(io::Error::other(with_output("host", &output))) }
}
