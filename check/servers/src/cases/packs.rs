//! git with large packs and small windows: repacked, verified, cloned and collected while git maps
//! hundreds of windows of its packs. Packs and their indices must be the same byte for byte as
//! outside, and a git at rest must have its windows mapped.

use super::{Numbers, Scene, postgresql::lose_one};
use crate::{Outcome, audit::same};
use std::{fs, io, io::Write as _, path::Path};

/// Windows of 32 KiB, at most 1 MiB of them at a time; with one thread deltas are found in the same
/// order each time.
const SETTINGS: &str = r#"
set -e -o pipefail
cd "$1"
export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=core.packedGitWindowSize GIT_CONFIG_VALUE_0=32k
export GIT_CONFIG_KEY_1=core.packedGitLimit GIT_CONFIG_VALUE_1=1m GIT_CONFIG_KEY_2=pack.threads GIT_CONFIG_VALUE_2=1
sums() { (cd "$1" && sha256sum objects/pack/*.pack objects/pack/*.idx); }
# Asks git for every object, and looks at what it has mapped then: read-only, private, packs. Copies, where a column is out, have a name of the library's.
windows() {
    git -C "$1" rev-list --objects --all | cut -d ' ' -f 1 >"$W/objects"
    git -C "$1" cat-file --batch <"$W/objects" >"$W/contents"
    sha256sum <"$W/contents"
    rm -f "$W/ask"; mkfifo "$W/ask"
    git -C "$1" cat-file --batch <"$W/ask" >"$W/again" & git=$!
    exec 9>"$W/ask"
    cat "$W/objects" >&9
    for n in $(seq 600); do
        if [[ $(stat -c %s "$W/again") == "$(stat -c %s "$W/contents")" ]]; then break; fi
        sleep 0.05
    done
    cmp "$W/contents" "$W/again"
    bytes=0
    while read -r range rights _ _ inode name; do
        if [[ $rights == r--p && ( $name == *.pack || $WITHOUT_NAME == yes && $name == /memfd:cxlraid-private-copy* ) ]]; then
            bytes=$((bytes + 0x${range#*-} - 0x${range%-*}))
        fi
    done <"/proc/$git/maps"
    exec 9>&-
    wait $git
    if ((bytes >= 512 << 10)); then echo "has many windows"; else echo "has $bytes bytes mapped"; fi
}
"#;

const STEPS: &str = r#"
git init -q --bare -b main origin.git
git -C origin.git -c fastimport.unpackLimit=1 fast-import --quiet --done <"$W/packs"
git -C origin.git rev-parse main
sums origin.git | wc -l
git -C origin.git repack -q -a -d -f -b
sums origin.git
git verify-pack -v origin.git/objects/pack/*.idx | grep -v ': ok$' | sha256sum
git -C origin.git fsck --full --strict 2>&1
git -C origin.git multi-pack-index write
git -C origin.git multi-pack-index verify 2>&1
windows origin.git
git clone -q --no-local origin.git work 2>&1
git -C work rev-parse HEAD; git -C work status --porcelain
(cd work && sha256sum * | sha256sum)
sums work/.git
git index-pack --threads=2 -o copied.idx work/.git/objects/pack/*.pack
cmp copied.idx work/.git/objects/pack/*.idx
cd work
for n in 1 2 3; do head -c $((n * 70000)) file0 >>file$n; git add -A; git commit -q -m "more $n"; done
git gc -q
sums .git | wc -l
git fsck --full 2>&1
git push -q origin HEAD:pushed 2>&1
git -C ../origin.git repack -q -a -d -f
git -C ../origin.git fsck --full 2>&1
"#;

/// What must still be so with a member away.
const AGAIN: &str = r#"
git -C origin.git fsck --full --strict
git -C origin.git rev-parse main pushed
windows origin.git
git -C work fsck --full
git -C work status --porcelain
git clone -q --no-local origin.git again
(cd again && sha256sum * | sha256sum)
git -C again repack -q -a -d -f
git -C again fsck --full
"#;

/// A stream for fast-import: `files` files of `length` bytes that cannot be packed any smaller,
/// each of which changes a little in each of `commits` commits.
fn history(path: &Path, files: usize, length: usize, commits: usize) -> io::Result<()> {
    let mut numbers = Numbers(11);
    let mut stream = io::BufWriter::new(fs::File::create(path)?);
    let random = |numbers: &mut Numbers, bytes: &mut [u8]| {
        bytes.chunks_mut(8).for_each(|piece| piece.copy_from_slice(&numbers.next().to_le_bytes()[..piece.len()]));
    };
    let mut contents = vec![vec![0; length]; files];
    contents.iter_mut().for_each(|content| random(&mut numbers, content));
    for commit in 0..commits {
        let time = 1_760_000_000 + commit * 3600;
        write!(stream, "commit refs/heads/main\ncommitter servers <servers@example.org> {time} +0000\ndata 1\nx\n")?;
        for (file, content) in contents.iter_mut().enumerate() {
            let from = usize::try_from(numbers.below(length as u64 - 2000)).unwrap_or(0);
            random(&mut numbers, &mut content[from..from + 2000]);
            write!(stream, "M 100644 inline file{file}\ndata {length}\n")?;
            stream.write_all(content)?;
            writeln!(stream)?;
        }
    }
    writeln!(stream, "done")?;
    stream.flush()
}

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let (files, length, commits) = scene.sized((8, 350_000, 2), (24, 2_000_000, 2));
    let stream = array.work.join("packs");
    history(&stream, files, length, commits).map_err(|error| format!("{}: {error}", stream.display()))?;
    let plain = array.host_directory("plain")?;
    let compare = |what: &str, steps: &str| {
        let script = format!("{SETTINGS}{steps}");
        let without_name = if array.present().len() < array.members.len() { "yes" } else { "no" };
        let expected = array.outside("bash").args(["-c", &script, "packs"]).arg(&plain).env("WITHOUT_NAME", "no").text()?;
        if !expected.contains("has many windows") {
            return Err(format!("{what}: outside, git maps no packs\n{expected}"));
        }
        let run = array.inside("bash").args(["-c", &script, "packs"]).arg(&array.data);
        same(what, &expected, &run.env("WITHOUT_NAME", without_name).text()?)
    };
    compare("what git says and packs", STEPS)?;
    lose_one(scene)?;
    compare("what git says with a member away", AGAIN)?;
    Ok(format!("{} MB in packs, the same bytes as outside", files * length / 1_000_000))
}
