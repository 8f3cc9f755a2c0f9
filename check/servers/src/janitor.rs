//! Ends and removes what this process started and made, also when this process is killed.
//!
//! A shell waits on a pipe that only we hold open. Process groups are announced through it; when the pipe closes, because we are done, killed or
//! aborted, the shell ends the groups that are left, and removes runtime segments and directories. Children that made sessions of their own
//! (PostgreSQL's) end by themselves when the process that started them is gone.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Mutex,
};

/// $1.. are the directories to remove. docs/format/superblock.md: the array's UUID is at offset 40.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
groups=' '
while read -r word value; do
    case $word in
    begun) groups="$groups$value " ;;
    ended) groups="${groups%% $value *} ${groups#* $value }" ;;
    kept) set -- ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
for directory; do
    find "$directory" -path '*/.cxlraid/superblock' | while read -r superblock; do
        uuid=$(od -An -v -tx1 -j40 -N16 "$superblock" | tr -d ' \n' | sed -E 's/^(.{8})(.{4})(.{4})(.{4})(.{12})$/\1-\2-\3-\4-\5/')
        [ ${#uuid} -eq 36 ] && rm -f "/dev/shm/cxlraid-$uuid"
    done
    chmod -R u+rwX "$directory"
    rm -rf "$directory"
done
"#;

/// The waiting shell.
pub(crate) struct Janitor {
    shell: Child,
    pipe: Mutex<Option<ChildStdin>>,
}

impl Janitor {
    /// Starts it; `directories` are removed in the end.
    pub(crate) fn new(directories: &[&Path]) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "janitor"])
            .args(directories)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = Mutex::new(shell.stdin.take());
        Ok(Self { shell, pipe })
    }

    fn tell(&self, word: &str, value: &str) {
        let Ok(mut pipe) = self.pipe.lock() else { return };
        if let Some(pipe) = pipe.as_mut() {
            // Without a janitor there is nobody to tell; the run itself is still right.
            let _ = pipe.write_all(format!("{word} {value}\n").as_bytes());
        }
    }

    /// A process group was started.
    pub(crate) fn begun(&self, group: u32) {
        self.tell("begun", &group.to_string());
    }

    /// All of it is gone.
    pub(crate) fn ended(&self, group: u32) {
        self.tell("ended", &group.to_string());
    }

    /// The directories are to stay.
    pub(crate) fn keep(&self) {
        self.tell("kept", "");
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        if let Ok(mut pipe) = self.pipe.lock() {
            *pipe = None;
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_are_left_are_ended_and_directories_removed() {
        let directory = std::env::temp_dir().join(format!("cxlraid-servers-janitor-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("a/b")).unwrap();
        let janitor = Janitor::new(&[&directory]).unwrap();
        let mut left = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let mut ended = Command::new("sleep").arg("0.3").process_group(0).spawn().unwrap();
        janitor.begun(ended.id());
        janitor.begun(left.id());
        janitor.ended(ended.id());
        drop(janitor);
        assert!(!directory.exists());
        assert!(!left.wait().unwrap().success());
        assert!(ended.wait().unwrap().success());
    }
}
