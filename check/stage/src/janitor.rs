//! Ends and removes what this process started and made, however this process ends.
//!
//! A shell waits on a pipe that only we hold open. What needs cleaning up is announced through it;
//! when the pipe closes, because we are done, killed or aborted, the shell ends announced process
//! groups, unmounts, and removes runtime segments, shared copies of mapped files, and directories.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Mutex,
};

/// $1.. are the directories to remove.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
groups=' ' mounts=
while read -r word value; do
    case $word in
    begun) groups="$groups$value " ;;
    ended) groups="${groups%% $value *} ${groups#* $value }" ;;
    mounted) mounts="$value
$mounts" ;;
    unmounted) mounts="${mounts%%"$value
"*}${mounts#*"$value
"}" ;;
    kept) set -- ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
printf '%s' "$mounts" | while read -r mount; do umount -l "$mount"; done
for directory; do
    find "$directory" -type f -path '*/.cxlraid/superblock' | while read -r superblock; do
        uuid=$(od -An -v -tx1 -j40 -N16 "$superblock" | tr -d ' \n' | sed -E 's/^(.{8})(.{4})(.{4})(.{4})(.{12})$/\1-\2-\3-\4-\5/')
        [ ${#uuid} -eq 36 ] && rm -f "/dev/shm/cxlraid-$uuid" "/dev/shm/cxlraid-$uuid"-map-*
    done
    chmod -R u+rwX "$directory"
    rm -rf "$directory"
done
"#;

/// `rm -rf`; what is not there is no error.
pub fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The waiting shell.
pub struct Janitor {
    shell: Child,
    pipe: Mutex<Option<ChildStdin>>,
}

impl Janitor {
    /// Starts it; `directories` are removed in the end.
    pub fn new(directories: &[&Path]) -> std::io::Result<Self> {
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
    pub fn begun(&self, group: u32) {
        self.tell("begun", &group.to_string());
    }

    /// All of it is gone.
    pub fn ended(&self, group: u32) {
        self.tell("ended", &group.to_string());
    }

    /// A file system was mounted here.
    pub fn mounted(&self, at: &Path) {
        self.tell("mounted", &at.display().to_string());
    }

    /// What was mounted here last is unmounted.
    pub fn unmounted(&self, at: &Path) {
        self.tell("unmounted", &at.display().to_string());
    }

    /// The directories are to stay.
    pub fn keep(&self) {
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
    use std::fs;

    #[test]
    fn processes_and_directories_are_gone_afterwards() {
        let directory = std::env::temp_dir().join(format!("cxlraid-janitor-{}", std::process::id()));
        fs::create_dir_all(directory.join("a/b")).unwrap();
        let janitor = Janitor::new(&[&directory]).unwrap();
        let mut sleeping = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let mut kept = Command::new("sleep").arg("0.3").process_group(0).spawn().unwrap();
        janitor.begun(kept.id());
        janitor.begun(sleeping.id());
        janitor.ended(kept.id());
        drop(janitor);
        assert!(!directory.exists());
        assert!(!sleeping.wait().unwrap().success());
        assert!(kept.wait().unwrap().success());
    }
}
