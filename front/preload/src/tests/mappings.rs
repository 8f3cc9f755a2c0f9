//! Shared mappings: what programs see, and that the members agree afterwards.

use super::{Array, FOLDER};
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::vec::Vec;
use std::{format, fs};

const FILE: &str = "/cxlraid-preload-test/file";
const BYTES: usize = 300_000;

/// An array and tests/mappings.c for it.
struct Scene {
    array: Array,
    shape: Shape,
    folder: std::path::PathBuf,
}

/// Level, members, chunk.
type Shape = (&'static str, usize, &'static str);

impl Scene {
    fn new(name: &str, shape: Shape) -> Self {
        let (level, members, chunk) = shape;
        let mut array = Array::of(&format!("mappings-{name}-{level}-{chunk}"), level, members);
        array.chunk = chunk;
        Self::on(array, shape)
    }

    fn on(array: Array, shape: Shape) -> Self {
        let folder = array.folder.clone();
        let program = folder.join("mappings");
        let source = Path::new(FOLDER).join("tests/mappings.c");
        assert!(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap().success());
        let scene = Self { array, shape, folder };
        let fill = format!("mkdir -p /cxlraid-preload-test && head -c {BYTES} /dev/urandom > {FILE}");
        assert!(scene.array.command(Path::new("/bin/sh")).args(["-c", &fill]).status().unwrap().success());
        scene
    }

    fn run(&self, what: &str) -> ExitStatus {
        self.run_with(what, "")
    }

    /// `tracking` as in CXLRAID_MAP_TRACKING.
    fn run_with(&self, what: &str, tracking: &str) -> ExitStatus {
        let mut command = self.array.command(&self.folder.join("mappings"));
        if what == "outsider" {
            // Only every few periods find that.
            command.env("CXLRAID_MAP_PERIOD_MS", "10");
        }
        if matches!(what, "at-length" | "direct" | "held") {
            command.env("CXLRAID_MAP_PERIOD_MS", "1");
        }
        if what.starts_with("reader") || what == "lent" {
            // The period does not help.
            command.env("CXLRAID_MAP_PERIOD_MS", "600000");
        }
        // The file is small: it would show a copy.
        command.env("CXLRAID_MAP_COPY_BYTES", "0");
        let output = command.args([FILE, what]).env("CXLRAID_MAP_TRACKING", tracking).output().unwrap();
        let said = std::string::String::from_utf8_lossy(&output.stdout);
        let complaints = std::string::String::from_utf8_lossy(&output.stderr);
        // The process that finds a member failing says so, once.
        let is_loss = |line: &&str| line.contains("member failed and is out of use; the array is degraded");
        let (losses, complaints): (std::vec::Vec<&str>, std::vec::Vec<&str>) = complaints.lines().partition(is_loss);
        assert_eq!(losses.len(), usize::from(what.ends_with("failure")), "{:?} {what}: {losses:?}", self.shape);
        let complaints = complaints.concat();
        assert!(said.is_empty() && complaints.is_empty(), "{:?} {what}: {}\n{said}{complaints}", self.shape, output.status);
        output.status
    }

    fn backing(&self) -> Vec<Vec<u8>> {
        let member = |slot: usize| fs::read(self.folder.join(format!("{slot}{FILE}"))).unwrap();
        (0..self.array.members).map(member).collect()
    }

    fn fits_or_has_none(&self) -> bool {
        self.shape.0 == "0" || self.fits()
    }

    /// Copies are equal, and the sum over the members of a stripe without Q is zero.
    fn fits(&self) -> bool {
        let members = self.backing();
        let (level, count, chunk) = self.shape;
        let chunk: usize = chunk.parse().unwrap();
        let longest = members.iter().map(Vec::len).max().unwrap();
        let byte = |member: usize, at: usize| members[member].get(at).copied().unwrap_or(0);
        let sum = |at: usize, without: usize| {
            (0..count).filter(|&member| member != without).fold(0, |sum, member| sum ^ byte(member, at))
        };
        match level {
            "1" => members.iter().all(|member| *member == members[0]),
            "10" => (0..count).step_by(2).all(|member| members[member] == members[member + 1]),
            "01" => (0..count / 2).all(|member| members[member] == members[member + count / 2]),
            // Q is on the member after P, which moves down by one with each stripe.
            "6" => (0..longest).all(|at| sum(at, (count - at / chunk % count) % count) == 0),
            // Files of megabytes come here: byte by byte through `sum` would take minutes.
            _ => {
                let mut total = std::vec![0u8; longest];
                members.iter().for_each(|member| total.iter_mut().zip(member).for_each(|(sum, byte)| *sum ^= byte));
                total.iter().all(|&byte| byte == 0)
            }
        }
    }
}

/// Of the last the chunks are too small to be mapped: it has a shared copy.
const SHAPES: [Shape; 3] = [("1", 3, "65536"), ("5", 3, "65536"), ("5", 3, "512")];

#[test]
fn redundancy_follows_stores() {
    for shape in SHAPES {
        for how in ["msync", "fsync", "munmap", "exit"] {
            let scene = Scene::new(how, shape);
            let before = scene.backing();
            assert!(scene.run(how).success());
            assert!(scene.backing() != before, "nothing was stored");
            assert!(scene.fits(), "{shape:?} after {how}");
        }
    }
}

#[test]
fn the_next_process_makes_good_what_a_killed_one_stored() {
    for shape in SHAPES {
        let scene = Scene::new("kill", shape);
        assert!(!scene.run("kill").success());
        let before = scene.backing();
        let open = format!("exec 3<>{FILE}");
        assert!(scene.array.command(Path::new("/bin/sh")).args(["-c", &open]).status().unwrap().success());
        assert!(scene.backing() != before, "{shape:?}: there was nothing to make good");
        assert!(scene.fits(), "{shape:?}");
    }
}

/// The last stripe ends behind the last page of the shared copy: making it good faults, which its
/// guard is there for.
#[test]
fn a_program_starts_with_a_descriptor_of_what_a_killed_one_stored_to() {
    let scene = Scene::new("inherited", ("5", 6, "2048"));
    let start = format!("exec 3<>{FILE}; {} {FILE} kill 2>/dev/null; exec env true", scene.folder.join("mappings").display());
    assert!(scene.array.command(Path::new("/bin/bash")).args(["-c", &start]).status().unwrap().success());
    assert!(scene.fits());
}

#[test]
fn redundancy_follows_stores_by_itself() {
    for shape in SHAPES {
        let scene = Scene::new("wait", shape);
        assert!(!scene.run("wait").success());
        assert!(scene.fits(), "{shape:?}");
    }
}

fn behaves(what: &str) {
    for shape in SHAPES {
        let scene = Scene::new(what, shape);
        assert!(scene.run(what).success(), "{shape:?}");
        assert!(scene.fits(), "{shape:?}");
    }
}

#[test]
fn calls_and_mappings_agree() {
    behaves("agreement");
}

#[test]
fn the_end_of_the_file_is_that_of_any_mapping() {
    behaves("ends");
}

#[test]
fn a_cut_is_seen_by_every_mapping_at_once() {
    for shape in SHAPES.into_iter().chain([("0", 3, "65536"), ("6", 5, "4096")]) {
        let scene = Scene::new("cut", shape);
        assert!(scene.run("cut").success(), "{shape:?}");
        assert!(scene.fits_or_has_none(), "{shape:?}");
    }
}

#[test]
fn who_only_reads_a_mapping_sees_cuts_at_once() {
    for shape in SHAPES.into_iter().chain([("0", 3, "65536"), ("6", 5, "4096")]) {
        let scene = Scene::new("reader-cut", shape);
        assert!(scene.run("reader-cut").success(), "{shape:?}");
        assert!(scene.fits_or_has_none(), "{shape:?}");
    }
}

#[test]
fn who_only_reads_a_mapping_comes_to_a_shared_copy_at_once() {
    for (shape, journal) in [(("5", 3, "4096"), ""), (("0", 3, "4096"), ""), (("5", 3, "65536"), "internal")] {
        let mut array = Array::of(&format!("mappings-reader-copy-{}-{journal}", shape.0), shape.0, shape.1);
        (array.chunk, array.journal) = (shape.2, journal);
        let scene = Scene::on(array, shape);
        assert!(scene.run("reader-copy").success(), "{shape:?} {journal}");
        assert!(scene.fits_or_has_none(), "{shape:?} {journal}");
    }
}

#[test]
fn who_only_reads_a_mapping_leaves_a_lost_member_at_once() {
    for shape in SHAPES.into_iter().chain([("6", 5, "4096"), ("10", 4, "4096"), ("01", 4, "65536")]) {
        assert!(Scene::new("reader-failure", shape).run("reader-failure").success(), "{shape:?}");
    }
}

#[test]
fn readers_that_are_gone_are_not_waited_for() {
    for shape in &SHAPES[..2] {
        assert!(Scene::new("reader-gone", *shape).run("reader-gone").success(), "{shape:?}");
    }
}

#[test]
fn a_mapping_of_too_many_pieces_brings_all_to_a_shared_copy() {
    for shape in [("5", 3, "4096"), ("0", 3, "4096")] {
        let scene = Scene::new("wide", shape);
        assert!(scene.run("wide").success(), "{shape:?}");
        assert!(scene.fits_or_has_none(), "{shape:?}");
    }
}

#[test]
fn a_shared_copy_is_kept_for_the_next_mapping() {
    behaves("copy-kept");
}

#[test]
fn children_store_for_themselves() {
    behaves("children");
}

#[test]
fn locks_outlive_mappings() {
    behaves("locks");
}

#[test]
fn shared_memory_may_take_the_place_of_a_mapping() {
    behaves("attached");
}

#[test]
fn pages_are_those_of_any_mapping() {
    behaves("pages");
}

#[test]
fn the_kernel_stores_into_mappings() {
    for tracking in ["", "protect"] {
        for shape in SHAPES {
            let scene = Scene::new(&format!("calls-{tracking}"), shape);
            assert!(scene.run_with("calls", tracking).success(), "{shape:?} {tracking}");
            assert!(scene.fits(), "{shape:?} {tracking}");
        }
    }
}

#[test]
fn mappings_are_changed_as_any() {
    behaves("changes");
}

#[test]
fn threads_and_processes_store_while_others_synchronise() {
    let more = [("4", 3, "4096"), ("6", 4, "65536"), ("6", 5, "1024"), ("10", 4, "4096"), ("01", 4, "65536")];
    for shape in SHAPES.into_iter().chain(more) {
        let scene = Scene::new("crowd", shape);
        assert!(scene.run("crowd").success(), "{shape:?}");
        assert!(scene.fits(), "{shape:?}");
    }
}

#[test]
fn threads_that_meet_growth_at_once_all_go_on() {
    let scene = Scene::new("together", SHAPES[0]);
    for what in ["together", "together-reads"] {
        for tracking in ["", "protect"] {
            assert!(scene.run_with(what, tracking).success(), "{what} {tracking}");
            assert!(scene.fits(), "{what} {tracking}");
        }
    }
}

/// Runs the part `what` of the program on arrays of these shapes, with each way to notice stores.
fn succeeds_and_fits(what: &str, shapes: &[Shape]) {
    for shape in shapes {
        for tracking in ["", "protect"] {
            let scene = Scene::new(&format!("{what}-{tracking}"), *shape);
            assert!(scene.run_with(what, tracking).success(), "{shape:?} {tracking}");
            assert!(scene.fits(), "{shape:?} {tracking}");
        }
    }
}

#[test]
fn a_call_stores_into_a_mapping_for_longer_than_the_period() {
    succeeds_and_fits("at-length", &SHAPES[..2]);
}

#[test]
fn what_holds_a_lock_can_be_stored_to_when_the_file_has_grown() {
    for shape in &SHAPES[..2] {
        let scene = Scene::new("held", *shape);
        assert!(scene.run_with("held", "protect").success(), "{shape:?}");
        assert!(scene.fits(), "{shape:?}");
    }
}

/// By chance: where no thread waited for a mapping that takes the place of the only one, nearly every
/// run ended with SIGSEGV.
#[test]
fn a_mapping_is_replaced_while_other_threads_use_it() {
    succeeds_and_fits("in-place", &SHAPES);
}

/// By chance: where a call was tried again eight times, and stores that another thread had just let
/// through counted as kept out, 4 of 20 runs found that a call had failed (EFAULT).
#[test]
fn calls_store_into_a_mapping_that_is_replaced_meanwhile() {
    succeeds_and_fits("in-place-calls", &SHAPES[..2]);
}

/// By chance: without protection of what is lent before it is followed, most runs fail.
#[test]
fn what_is_lent_is_followed_when_the_file_grows_and_locks_outlive_a_change_of_protection() {
    for shape in &SHAPES[..2] {
        let scene = Scene::new("lent", *shape);
        assert!(scene.run_with("lent", "protect").success(), "{shape:?}");
        assert!(scene.fits(), "{shape:?}");
    }
}

/// The file's owner cuts its backing file on the member that a read-only mapping shows. Another
/// process makes it anew before the mapping becomes writable. Needs root, for an owner that the
/// array does not trust.
#[test]
fn a_mapping_that_becomes_writable_shows_the_member_that_is_back() {
    if !::sys::rustix::process::geteuid().is_root() {
        return;
    }
    for tracking in ["", "protect"] {
        let scene = Scene::new(&format!("writable-later-{tracking}"), SHAPES[0]);
        let shell = |script: &str| {
            assert!(scene.array.command(Path::new("/bin/sh")).args(["-c", script, FILE]).status().unwrap().success());
        };
        shell("chown 65534 $0");
        let mut command = scene.array.command(&scene.folder.join("mappings"));
        command.args([FILE, "writable-later"]).env("CXLRAID_MAP_TRACKING", tracking).env("CXLRAID_MAP_COPY_BYTES", "0");
        command.env("CXLRAID_MAP_PERIOD_MS", "600000");
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut from) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        from.read_exact(&mut [0]).unwrap();
        let backing = fs::OpenOptions::new().write(true).open(scene.folder.join(format!("0{FILE}"))).unwrap();
        backing.set_len(0).unwrap();
        to.write_all(b"\n").unwrap();
        from.read_exact(&mut [0]).unwrap();
        shell("exec 3<>$0");
        // If the program has ended, it has said why.
        let _ = to.write_all(b"\n");
        let mut said = std::string::String::new();
        from.read_to_string(&mut said).unwrap();
        assert!(program.wait().unwrap().success(), "{tracking}: {said}");
        assert!(said.is_empty() && scene.fits(), "{tracking}: {said}");
    }
}

/// By chance: without what follows such a read once more, one run in some ten fails.
#[test]
fn what_is_read_past_the_page_cache_into_a_mapping_is_followed() {
    let scene = Scene::new("direct", SHAPES[0]);
    for _ in 0..4 {
        let _ = scene.run("direct");
        assert!(scene.fits());
    }
}

#[test]
fn a_living_process_makes_good_what_a_killed_one_stored() {
    for shape in &SHAPES[..2] {
        let scene = Scene::new("survivor", *shape);
        assert!(!scene.run("survivor").success());
        assert!(scene.fits(), "{shape:?}");
    }
}

#[test]
fn what_is_quiet_is_not_scanned_and_what_others_store_is_followed() {
    for shape in &SHAPES[..2] {
        let scene = Scene::new("quiet", *shape);
        assert!(scene.run("quiet").success(), "{shape:?}");
        for what in ["outsider", "sharer"] {
            // Killed: nothing was followed at its end.
            assert_eq!(scene.run(what).code(), None, "{shape:?} {what}");
            assert!(scene.fits(), "{shape:?} {what}");
        }
    }
}

#[test]
fn a_mapping_is_as_it_was_when_nothing_could_be_put_over_it() {
    for shape in SHAPES {
        for tracking in ["", "protect"] {
            let scene = Scene::new(&format!("refused-{tracking}"), shape);
            assert_eq!(scene.run_with("refused", tracking).code(), None, "{shape:?} {tracking}");
            assert!(scene.fits(), "{shape:?} {tracking}");
        }
    }
}

/// Needs root, to give files to others.
#[test]
fn who_may_not_open_a_file_may_not_open_its_shared_copy() {
    if sys::rustix::process::geteuid().is_root() {
        behaves("guarded");
    }
}

#[test]
fn holes_get_their_space_when_stored_to() {
    behaves("holes");
}

#[test]
fn what_is_never_stored_to_of_a_large_hole_costs_nothing() {
    behaves("untouched");
}

/// Calls at random. Children of fork that were killed have left something to whoever opens the file
/// next.
#[test]
fn a_sparse_file_holds_what_was_stored_to_it_whatever_else_is_done() {
    for shape in SHAPES {
        for tracking in ["", "protect"] {
            for what in ["sparse", "sparse-killed", "sparse-failure"] {
                let scene = Scene::new(&format!("{what}-{tracking}"), shape);
                assert!(scene.run_with(what, tracking).success(), "{shape:?} {tracking} {what}");
                let open = format!("exec 3<>{FILE}");
                assert!(scene.array.command(Path::new("/bin/sh")).args(["-c", &open]).status().unwrap().success());
                assert!(what == "sparse-failure" || scene.fits(), "{shape:?} {tracking} {what}");
            }
        }
    }
}

#[test]
fn the_next_program_of_a_process_finds_nothing_left() {
    behaves("executed");
}

#[test]
fn without_userfaultfd_stores_are_noticed_by_protection() {
    for what in ["munmap", "exit", "agreement", "ends", "changes", "crowd", "holes", "untouched"] {
        let scene = Scene::new(&format!("protect-{what}"), SHAPES[1]);
        assert!(scene.run_with(what, "protect").success(), "{what}");
        assert!(scene.fits(), "{what}");
    }
}

/// RAID 1, of which one member's file is mapped in one piece: rights split it.
#[test]
fn stores_succeed_though_the_kernel_splits_no_mapping_further() {
    let scene = Scene::new("areas", SHAPES[0]);
    assert!(scene.run_with("areas", "protect").success());
    assert!(scene.fits());
}

#[test]
fn mappings_do_with_few_descriptors() {
    for shape in SHAPES {
        for what in ["agreement", "ends", "holes"] {
            let scene = Scene::new(&format!("descriptors-{what}"), shape);
            let mut shell = scene.array.command(Path::new("/bin/sh"));
            shell.args(["-c", "ulimit -n 64; exec $0 $@"]).arg(scene.folder.join("mappings")).args([FILE, what]);
            let output = shell.env("CXLRAID_MAP_COPY_BYTES", "0").output().unwrap();
            assert!(output.status.success() && scene.fits(), "{shape:?} {what}: {output:?}");
        }
    }
}

/// A mapping that would need more pieces than there is room for shows a copy.
#[test]
fn files_can_be_mapped_where_the_program_has_nearly_all_areas_of_memory() {
    for shape in SHAPES {
        for tracking in ["", "protect"] {
            let scene = Scene::new(&format!("crowded-areas-{tracking}"), shape);
            assert!(scene.run_with("crowded-areas", tracking).success(), "{shape:?} {tracking}");
            assert!(scene.fits(), "{shape:?} {tracking}");
        }
    }
}

#[test]
fn with_a_journal_stores_reach_the_members_through_it_alone() {
    let journaled = |what: &str| {
        let mut array = Array::of(&format!("mappings-journal-{what}"), "5", 3);
        array.journal = "internal";
        Scene::on(array, SHAPES[1])
    };
    let scene = journaled("kill");
    let before = scene.backing();
    assert!(!scene.run("kill").success());
    assert!(scene.backing() == before, "what nobody had followed is on the members");
    let open = format!("exec 3<>{FILE}");
    assert!(scene.array.command(Path::new("/bin/sh")).args(["-c", &open]).status().unwrap().success());
    assert!(scene.backing() != before && scene.fits());
    for what in ["agreement", "ends", "cut", "children", "pages", "calls", "changes", "crowd", "holes", "executed", "failure"] {
        let scene = journaled(what);
        assert!(scene.run(what).success(), "{what}");
        assert!(what == "failure" || scene.fits(), "{what}");
    }
}

#[test]
fn a_member_may_fail_while_mapped() {
    for shape in SHAPES {
        assert!(Scene::new("failure", shape).run("failure").success(), "{shape:?}");
    }
}

#[test]
fn a_member_may_fail_while_mapped_privately() {
    for shape in [("5", 3, "65536"), ("5", 3, "4096"), ("6", 4, "4096"), ("1", 2, "65536"), ("10", 4, "4096")] {
        assert!(Scene::new("private-failure", shape).run("private-failure").success(), "{shape:?}");
    }
}

#[test]
fn what_is_stored_to_a_private_page_stays_when_a_call_may_not_use_it() {
    behaves("private-closed");
}

/// By chance: with other memory put there first, every run saw zeros. Of the last shape the chunks
/// are too small to be mapped, so that the mapping is a copy.
#[test]
fn a_private_mapping_takes_a_place_in_which_other_threads_load() {
    for shape in [("1", 2, "65536"), ("5", 3, "4096"), ("5", 3, "512")] {
        assert!(Scene::new("private-in-place", shape).run("private-in-place").success(), "{shape:?}");
    }
}

/// By chance: without the look whether the page is there by now most runs lose a store.
#[test]
fn what_is_stored_to_a_private_page_that_growth_has_brought_stays() {
    for shape in [("1", 2, "65536"), ("5", 3, "4096")] {
        assert!(Scene::new("private-growth", shape).run("private-growth").success(), "{shape:?}");
    }
}

#[test]
fn the_unit_is_what_the_program_advises() {
    for shape in [("5", 3, "2097152"), ("1", 2, "65536"), ("5", 3, "65536")] {
        let scene = Scene::new("unit", shape);
        assert_eq!(scene.run("huge").code(), None, "{shape:?}");
        assert!(scene.fits(), "{shape:?}");
    }
}

/// Without huge pages in the members too: what matters is what is asked of the kernel.
#[test]
fn the_unit_is_told_to_who_looks() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let (pages, granules, both) = ([1, 0, 0], [0, 1, 0], [1, 0, 1]);
    let cases = [(("", ""), [pages, both, pages]), (("protect", ""), [granules; 3]), (("", "2M"), [[0, 0, 1]; 3])];
    for (index, ((tracking, unit), expected)) in cases.into_iter().enumerate() {
        let scene = Scene::new(&format!("units-{index}"), ("5", 3, "2097152"));
        let mut command = scene.array.command(&scene.folder.join("mappings"));
        command.args([FILE, "units"]).env("CXLRAID_MAP_TRACKING", tracking).env("CXLRAID_MAP_UNIT", unit);
        command.env("CXLRAID_MAP_COPY_BYTES", "0");
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut from) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        for (step, expected) in expected.into_iter().enumerate() {
            from.read_exact(&mut [0]).unwrap();
            let counts = ::array::runtime::count_mappings(scene.array.uuid().unwrap()).unwrap();
            assert_eq!((counts.files, counts.files_by_unit), (1, expected), "{tracking} {unit} {step}");
            to.write_all(b"\n").unwrap();
        }
        assert!(program.wait().unwrap().success(), "{tracking} {unit}");
        assert!(scene.fits(), "{tracking} {unit}");
    }
}

/// Needs the right to mount: members with huge pages are file systems of their own.
#[test]
fn huge_pages_are_kept_where_they_are_wanted() {
    for (shape, unit) in [(("5", 3, "2097152"), ""), (("1", 2, "65536"), ""), (("5", 3, "2097152"), "2M")] {
        let array = Array::of(&format!("mappings-huge-{unit}"), shape.0, shape.1);
        let target = array.folder.clone();
        let options = ["-t", "tmpfs", "-o", "size=96m,huge=always", "cxlraid-test"];
        if !Command::new("mount").args(options).arg(&target).output().is_ok_and(|output| output.status.success()) {
            return;
        }
        let made = (0..shape.1).try_for_each(|slot| fs::create_dir(target.join(slot.to_string())));
        let mut array = array;
        array.chunk = shape.2;
        let scene = made.is_ok().then(|| Scene::on(array, shape));
        let outcome = scene.as_ref().map(|scene| {
            let mut command = scene.array.command(&scene.folder.join("mappings"));
            command.args([FILE, "huge"]).env("HAVE_HUGE_PAGES", "");
            if !unit.is_empty() {
                command.env("CXLRAID_MAP_UNIT", unit);
            }
            let output = command.output().unwrap();
            (output.status.code(), std::string::String::from_utf8_lossy(&output.stdout).into_owned(), scene.fits())
        });
        // While its superblocks can be read: they name the runtime segment, which goes too.
        drop(scene);
        let _ = Command::new("umount").arg("-l").arg(&target).status();
        let _ = fs::remove_dir_all(&target);
        assert!(matches!(&outcome, Some((None, said, true)) if said.is_empty()), "{shape:?} {unit}: {outcome:?}");
    }
}

/// Behind a page cache msync(2) makes a file durable when all of its mappings in the range have
/// been followed. Needs strace, and a build directory on a disk.
#[test]
fn what_two_mappings_of_a_file_hold_is_durable() {
    for shape in SHAPES {
        let mut array = Array::of(&format!("mappings-synced-{}", shape.2), shape.0, shape.1);
        let on_disk = Path::new(FOLDER).join("../../target").join(array.folder.file_name().unwrap());
        fs::remove_dir_all(std::mem::replace(&mut array.folder, on_disk)).unwrap();
        (0..shape.1).for_each(|member| fs::create_dir_all(array.folder.join(member.to_string())).unwrap());
        array.chunk = shape.2;
        let scene = Scene::on(array, shape);
        let log = scene.folder.join("log");
        let mut traced = scene.array.command(Path::new("strace"));
        traced.env_remove("LD_PRELOAD").args(["-f", "-e", "trace=getppid,ioctl,msync,fdatasync", "-e", "signal=none", "-o"]);
        traced.arg(&log).arg("-E").arg(format!("LD_PRELOAD={}", super::library().display()));
        traced.arg(scene.folder.join("mappings")).args([FILE, "synced"]).env("CXLRAID_MAP_COPY_BYTES", "0");
        // The thread of the library does nothing meanwhile.
        let Ok(status) = traced.env("CXLRAID_MAP_PERIOD_MS", "600000").status() else { return };
        let calls = fs::read_to_string(&log).unwrap();
        let between = calls.split("getppid(").nth(1).unwrap_or_else(|| panic!("{calls}"));
        let last = between.lines().rfind(|line| line.contains("ioctl(") || line.contains("sync(")).unwrap_or_default();
        assert!(status.success() && (last.contains("sync(") || !calls.contains("sync(")), "{shape:?}: {calls}");
    }
}

/// Runs `judge` on an array whose members have 24 MiB each. Needs the right to mount: without it
/// nothing is judged.
fn on_small_members(name: &str, shape: Shape, judge: impl FnOnce(&Scene)) {
    let mut mounted = Vec::new();
    let mut array = Array::of(name, shape.0, shape.1);
    array.chunk = shape.2;
    let folder = array.folder.clone();
    let mount = |member: usize| {
        let target = folder.join(member.to_string());
        let options = ["-t", "tmpfs", "-o", "size=24m", "cxlraid-test"];
        Command::new("mount").args(options).arg(&target).output().is_ok_and(|output| output.status.success()).then_some(target)
    };
    (0..shape.1).filter_map(mount).for_each(|target| mounted.push(target));
    let outcome = (mounted.len() == shape.1).then(|| {
        let scene = Scene::on(array, shape);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| judge(&scene)))
    });
    for target in &mounted {
        let _ = Command::new("umount").arg("-l").arg(target).status();
    }
    let _ = fs::remove_dir_all(&folder);
    if let Some(Err(panic)) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_store_without_space_is_a_bus_error() {
    on_small_members("mappings-full", SHAPES[1], |scene| assert!(scene.run("full").success() && scene.fits()));
}

#[test]
fn what_a_full_member_could_not_take_comes_to_it_later() {
    on_small_members("mappings-owed", SHAPES[2], |scene| {
        assert!(scene.run("owed").success() && scene.fits());
        assert!(scene.run("owed-end").success());
        fs::remove_file(scene.folder.join("0/.cxlraid/filler")).unwrap();
        let read = "tail -c +20481 $0 | head -c 1";
        let output = scene.array.command(Path::new("/bin/sh")).args(["-c", read, FILE]).output().unwrap();
        assert_eq!(output.stdout, [7], "{}", std::string::String::from_utf8_lossy(&output.stderr));
        // A process that may write makes it good.
        let touched = scene.array.command(Path::new("/bin/sh")).args(["-c", ": >> $0", FILE]).status().unwrap();
        assert!(touched.success() && scene.fits());
        // The period does, with no call of the program.
        assert_eq!(scene.run("owed-period").signal(), Some(9));
        let holders = scene.backing().iter().filter(|bytes| bytes.contains(&7)).count();
        assert!(holders == 2 && scene.fits(), "{holders}");
        // Of a file that goes with the process nothing is left.
        assert!(scene.run("owed-nameless").success());
        fs::remove_file(scene.folder.join("0/.cxlraid/filler")).unwrap();
        let copies = format!("{}-map-", ::array::runtime::segment_path(scene.array.uuid().unwrap()));
        let left = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        let left: Vec<_> = left.filter(|path| path.to_str().is_some_and(|path| path.starts_with(&copies))).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}
