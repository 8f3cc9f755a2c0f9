//! git with a large repository: a history made by fast-import, a clone over the protocol,
//! repacking, fsck, branches and worktrees switched; every step gives what it gives outside.

use super::{Numbers, Scene, postgresql::lose_one};
use crate::{Outcome, audit::same};
use std::fmt::Write as _;

/// What is done with it, and what is to be seen then. Identifiers depend on nothing but the
/// content.
const STEPS: &str = r#"
set -e
cd "$1"
git init -q --bare -b main origin.git
git -C origin.git fast-import --quiet --done <"$W/history"
git -C origin.git rev-parse main old
git clone -q --no-local origin.git work 2>&1
cd work
git rev-parse HEAD; git status --porcelain | wc -l; git ls-files | wc -l
git ls-tree -r HEAD | sha256sum
find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum
for branch in old main old main; do git checkout -q $branch; git status --porcelain; git rev-parse HEAD; done
git worktree add -q ../side old
git -C ../side status --porcelain | wc -l
cd ../side
for n in 1 2 3; do date >/dev/null; echo "line $n" >>new$n; mkdir -p deep/$n; echo $n >deep/$n/file; git add -A; git commit -q -m "side $n"; done 2>&1
git rm -q -r dir1; git mv dir2 moved; git commit -q -m moved
git rev-parse HEAD
cd ../work
git merge -q --no-edit HEAD~3 2>&1
git stash list
file=$(git ls-files dir3 | head -n 1); echo change >>"$file"; git stash -q; git status --porcelain; git stash pop -q; git diff | sha256sum; git checkout -q "$file"
git gc -q 2>&1
git fsck --full --strict 2>&1
git count-objects -v | grep -v '^size'
git repack -q -a -d -f 2>&1
git fsck --full 2>&1
git log --oneline --all | wc -l
git log --format=%H --all -- dir3 | sha256sum
git grep -c . | sha256sum
git push -q origin HEAD:pushed 2>&1
git -C ../origin.git fsck --full 2>&1
git -C ../origin.git rev-parse pushed
git worktree remove ../side
git archive HEAD | tar -tf - | sha256sum
git worktree list | wc -l
"#;

/// What must still be so with a member away.
const AGAIN: &str = r#"
set -e
cd "$1/work"
git fsck --full --strict
git status --porcelain | wc -l
git checkout -q old; git status --porcelain | wc -l; git checkout -q main; git rev-parse HEAD
"#;

/// A stream for fast-import: `files` files, then commits that change some, remove some and add
/// some.
fn history(files: u64, commits: u64) -> String {
    let mut numbers = Numbers(4);
    let mut stream = String::new();
    let path = |file: u64| format!("dir{}/{}file{file}", file % 40, if file.is_multiple_of(3) { "sub/" } else { "" });
    for commit in 0..commits {
        let time = 1_760_000_000 + commit * 3600;
        let message = format!("commit {commit}");
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter servers <servers@example.org> {time} +0000\ndata {}\n{message}\n",
            message.len()
        );
        let changed: Vec<u64> =
            if commit == 0 { (0..files).collect() } else { (0..25).map(|_| numbers.below(files + commit)).collect() };
        for file in changed {
            if commit > 0 && numbers.below(12) == 0 {
                let _ = writeln!(stream, "D {}", path(file));
                continue;
            }
            let length = if file % 500 == 1 { 60_000 } else { 40 + numbers.below(900) };
            let text = numbers.text(usize::try_from(length).unwrap_or(100));
            let mode = if file % 17 == 0 { "100755" } else { "100644" };
            let _ = write!(stream, "M {mode} inline {}\ndata {}\n{text}\n", path(file), text.len());
        }
        if commit == commits / 2 {
            let _ = write!(stream, "reset refs/heads/old\nfrom refs/heads/main\n\n");
        }
    }
    stream.push_str("done\n");
    stream
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let (files, commits) = scene.sized((400, 25), (5000, 200));
    let stream = array.work.join("history");
    std::fs::write(&stream, history(files, commits)).map_err(|error| format!("{}: {error}", stream.display()))?;
    let plain = array.host_directory("plain")?;
    let expected = array.outside("bash").args(["-c", STEPS, "git"]).arg(&plain).text()?;
    let done = array.inside("bash").args(["-c", STEPS, "git"]).arg(&array.data).text()?;
    same("what git says", &expected, &done)?;
    lose_one(scene)?;
    let expected = array.outside("bash").args(["-c", AGAIN, "git"]).arg(&plain).text()?;
    let done = array.inside("bash").args(["-c", AGAIN, "git"]).arg(&array.data).text()?;
    same("what git says with a member away", &expected, &done)?;
    Ok(format!("{files} files, {commits} commits, the same identifiers as outside"))
}
