//! rsync both ways, tar, and find: trees that must come out as they went in.

use super::{Numbers, Scene, postgresql::lose_one};
use crate::{Outcome, array::Array, audit::same};
use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    time::{Duration, SystemTime},
};

/// A script of bash that prints everything about the tree in $1 but inode numbers and the sizes of
/// directories.
const TREE: &str = r#"
cd "$1"
find . \( -type d -printf '%y %m %T@ %P\n' \) -o \( -type l -printf '%y %P -> %l\n' \) -o -printf '%y %m %n %s %T@ %P\n' | sort
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
"#;

/// Returns what [`TREE`] prints of a directory, as a program inside the array or outside sees it.
fn tree(array: &Array<'_>, inside: bool, directory: &Path) -> Outcome<String> {
    let run = if inside { array.inside("bash") } else { array.outside("bash") };
    run.args(["-e", "-c", TREE, "tree"]).arg(directory).text()
}

/// Makes a tree: files of many sizes and modes with old times, a sparse file, hard and symbolic
/// links, empty directories, odd names.
fn generate(directory: &Path, count: u64) -> io::Result<()> {
    let mut numbers = Numbers(99);
    for file in 0..count {
        let parent = directory.join(format!("d{}", file % 23)).join(format!("e{}", file % 5));
        fs::create_dir_all(&parent)?;
        let path = parent.join(format!("f{file}"));
        let length = match file % 50 {
            0 => 300_000 + numbers.below(500_000),
            1 => 0,
            2 => 65_536,
            3 => 131_073,
            _ => numbers.below(9000),
        };
        fs::write(&path, numbers.text(usize::try_from(length).unwrap_or(0)))?;
        fs::set_permissions(
            &path,
            fs::Permissions::from_mode([0o644, 0o600, 0o755, 0o444, 0o640][usize::try_from(file % 5).unwrap_or(0)]),
        )?;
        let age =
            Duration::new(1_500_000_000 + numbers.below(200_000_000), u32::try_from(numbers.below(1_000_000_000)).unwrap_or(0));
        fs::File::open(&path)?.set_modified(SystemTime::UNIX_EPOCH + age)?;
        match file % 40 {
            7 => fs::hard_link(&path, parent.join(format!("hard{file}")))?,
            8 => symlink(format!("../e{}/f{}", file % 5, file), parent.join(format!("soft{file}")))?,
            9 => symlink("nowhere/at all", parent.join(format!("dangling{file}")))?,
            10 => fs::create_dir_all(parent.join(format!("empty {file}/ä\u{2014}ö")))?,
            _ => {}
        }
    }
    fs::write(directory.join("a name\nwith a line break"), "x")?;
    let mut sparse = fs::File::create(directory.join("sparse"))?;
    sparse.write_all(b"begin")?;
    sparse.set_len(3_000_000)?;
    Ok(())
}

/// Makes a tree on the host, and returns its directory.
fn prepared(scene: &Scene<'_>) -> Outcome<std::path::PathBuf> {
    let source = scene.array.host_directory("source")?;
    generate(&source, scene.sized(400, 3000)).map_err(|error| format!("making a tree: {error}"))?;
    Ok(source)
}

/// A script of bash that changes the tree in $1: contents (some keep their size and time), names,
/// modes and kinds of files.
const CHANGE: &str = r#"
set -e
cd "$1"
rm -r d3; mv d4 renamed; rm -f d5/e0/f5; mkdir d5/e0/f5; touch d5/e0/f5/inner
for file in d6/e*/f*; do
    case $file in
    *1) chmod u+w $file; head -c 20 /dev/zero | tr '\0' x | dd of=$file conv=notrunc status=none; touch -d @1600000000 $file ;;
    *2) chmod 700 $file ;;
    *4) rm $file; ln -s elsewhere $file ;;
    *9) chmod u+w $file; echo more >>$file ;;
    esac
done
"#;

pub(super) fn rsync(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let source = prepared(scene)?;
    let back = array.host_directory("back")?;
    let inside = array.data.join("copy");
    let sync = |from: &Path, to: &Path, words: &str| {
        let with_slash = |path: &Path| format!("{}/", path.display());
        array.inside("rsync").words(words).arg(with_slash(from)).arg(with_slash(to)).text()
    };
    let words = "-aH --checksum --delete --modify-window=-1";
    for pass in ["first", "changed"] {
        if pass == "changed" {
            array.outside("bash").args(["-c", CHANGE, "change"]).arg(&source).done()?;
        }
        sync(&source, &inside, words)?;
        let expected = tree(array, false, &source)?;
        same(&format!("{pass}: the copy in the array"), &expected, &tree(array, true, &inside)?)?;
        sync(&inside, &back, words)?;
        same(&format!("{pass}: the copy that came back"), &expected, &tree(array, false, &back)?)?;
        let again = sync(&source, &inside, &format!("{words} --itemize-changes"))?;
        same(&format!("{pass}: changes found by a second rsync"), "", &again)?;
    }
    // The other way round: the array's tree changes, blocks are compared, files are written in
    // place.
    array
        .inside("bash")
        .args([
            "-c",
            CHANGE.replace("d3", "d8").replace("d4", "d9").replace("d5/e0/f5", "d10/e0/f10").replace("renamed", "again").as_str(),
            "change",
        ])
        .arg(&inside)
        .done()?;
    sync(&inside, &back, words)?;
    same("the changed copy that came back", &tree(array, true, &inside)?, &tree(array, false, &back)?)?;
    sync(&source, &inside, "-aH --checksum --delete --modify-window=-1 --inplace --no-whole-file")?;
    let expected = tree(array, false, &source)?;
    same("the copy restored in place", &expected, &tree(array, true, &inside)?)?;
    let within = array.data.join("second");
    sync(&inside, &within, "-aHS --modify-window=-1")?;
    same("a copy within the array", &expected, &tree(array, true, &within)?)?;
    lose_one(scene)?;
    same("the copy with a member away", &expected, &tree(array, true, &inside)?)?;
    Ok(format!("{} entries, 6 copies", expected.lines().filter(|line| !line.contains("  ./")).count()))
}

pub(super) fn tar(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let source = prepared(scene)?;
    let expected = tree(array, false, &source)?;
    let script = |inside: bool, script: &str| {
        let run = if inside { array.inside("bash") } else { array.outside("bash") };
        run.args(["-e", "-o", "pipefail", "-c", script]).text()
    };
    // Archive from outside, archive inside, archives extracted on both sides.
    script(false, r#"tar -C "$W/source" --format=pax -cf "$W/first.tar" ."#)?;
    script(true, r#"mkdir "$D/one" "$D/two" "$D/three"; tar -C "$D/one" -xpf "$W/first.tar""#)?;
    same("extracted into the array", &expected, &tree(array, true, &array.data.join("one"))?)?;
    script(
        true,
        r#"tar -C "$D/one" --format=pax -czSf "$D/inner.tar.gz" .; tar -C "$D/two" -xpzf "$D/inner.tar.gz"; tar -C "$D/two" -dzf "$D/inner.tar.gz""#,
    )?;
    same("archived and extracted inside", &expected, &tree(array, true, &array.data.join("two"))?)?;
    script(
        true,
        r#"tar -C "$D/two" --format=pax -cf - . | tar -C "$D/three" -xpf -; mkdir "$W/out"; tar -C "$W/out" -xpzf "$D/inner.tar.gz""#,
    )?;
    same("through a pipe", &expected, &tree(array, true, &array.data.join("three"))?)?;
    same("extracted outside", &expected, &tree(array, false, &array.work.join("out"))?)?;
    // An archive that grows in place, and one that is extracted over what is there.
    let listed = script(
        true,
        r#"cd "$D"; tar --format=pax -cf grown.tar one/d1; tar -rf grown.tar one/d2; tar -uf grown.tar one/d1; tar --delete -f grown.tar one/d1/e1
        tar -tf grown.tar | sort | sha256sum; rm -r one/d2; tar -xpf grown.tar; touch -r two one; rm -r three; cp -a two three; cp -al two linked; du -s --apparent-size -l linked/d1 | cut -f1"#,
    )?;
    let outside = script(
        false,
        r#"cp -a "$W/out" "$W/one"; cp -a "$W/out" "$W/two"; cd "$W"; tar --format=pax -cf grown.tar one/d1; tar -rf grown.tar one/d2; tar -uf grown.tar one/d1
        tar --delete -f grown.tar one/d1/e1; tar -tf grown.tar | sort | sha256sum"#,
    )?;
    same("an archive that grew", &outside, &listed.lines().take(1).map(|line| format!("{line}\n")).collect::<String>())?;
    same("extracted over itself", &expected, &tree(array, true, &array.data.join("one"))?)?;
    same("cp -a", &expected, &tree(array, true, &array.data.join("three"))?)?;
    lose_one(scene)?;
    same("with a member away", &expected, &tree(array, true, &array.data.join("one"))?)?;
    Ok(format!("{} entries, 6 trees", expected.lines().filter(|line| !line.contains("  ./")).count()))
}

/// Questions whose answers do not depend on the file system.
const QUESTIONS: [&str; 14] = [
    "-newer d1/e1/f1",
    "-size +100k",
    "-size -2 -type f",
    "-size 65536c",
    "-empty",
    "-perm 600",
    "-perm -111 -type f",
    "-perm /022",
    "-type l -lname *nowhere*",
    "-xtype l",
    "-links +1 -type f",
    "-newermt 2020-01-01 -not -newermt 2021-01-01",
    "-regex .*/f[0-9]*7",
    "-depth -name e* -maxdepth 2",
];

pub(super) fn find(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let source = prepared(scene)?;
    let inside = array.data.join("tree");
    array.inside("cp").arg("-a").args([&source, &inside]).done()?;
    let ask = |inside: bool, directory: &Path, question: &str| {
        let run = if inside { array.inside("bash") } else { array.outside("bash") };
        let script = "cd \"$1\"; shift; find . \"$@\" | sort";
        run.args(["-e", "-o", "pipefail", "-c", script, "find"]).arg(directory).words(question).text()
    };
    let compare = |when: &str| {
        QUESTIONS.iter().try_for_each(|question| {
            let expected = ask(false, &source, question)?;
            if expected.is_empty() {
                return Err(format!("find {question}: nothing to be found, so nothing is shown"));
            }
            same(&format!("{when}: find {question}"), &expected, &ask(true, &inside, question)?)
        })
    };
    compare("copied")?;
    // Moved, changed and removed by find itself; what is left is the same.
    let act = r#"cd "$1"; find . -type f -name '*3' -delete; find . -type f -name '*5' -exec chmod 705 {} +; find . -type d -empty -delete
        find . -type f -name '*6' -execdir mv {} {}.moved \; ; find . -name '*4' -type f -exec touch -h -d @1234567890.5 {} +"#;
    array.outside("bash").args(["-e", "-c", act, "act"]).arg(&source).done()?;
    array.inside("bash").args(["-e", "-c", act, "act"]).arg(&inside).done()?;
    compare("changed")?;
    lose_one(scene)?;
    compare("with a member away")?;
    Ok(format!("{} questions, three times", QUESTIONS.len()))
}
