//! A program is a list of steps (system calls, changes of rights) that depends on its seed only.
//! The same list is made on an array and on a plain directory; no step depends on what earlier
//! calls have answered. Every draw that is added or moved changes the programs of all seeds, but
//! those that are written by hand ([`known`]).
//!
//! Most programs have one thread. In some the steps are handed from thread to thread, one at a
//! time, so that their order is always the same. In others, runs of steps are made by children: by
//! copies (fork), by children that share the memory (vfork, clone with CLONE_VM and CLONE_VFORK),
//! or by new processes of this executable (posix_spawn). The parent waits for each child and goes
//! on.

use crate::{
    calls::{Call, Kind, Reach},
    draw::{Argument, Drawer},
    known,
    table::CALLS,
};
use std::{env, sync::OnceLock};

/// How many steps a program has.
pub(crate) const STEP_COUNT: u64 = 40;
/// Threads that a program hands its steps to, the first one included.
pub(crate) const THREAD_COUNT: u64 = 3;

/// Who makes a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// The program's first thread.
    Program,
    /// Another one of its threads, from 1 on.
    Thread(u64),
    /// A child: how it is started, and its number. Neighbouring steps with one number are made by
    /// one child.
    Child(Child, u64),
}

/// How a program starts a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    Fork,
    Vfork,
    /// clone(2) with CLONE_VM, CLONE_VFORK and these flags.
    Clone(i32),
    /// posix_spawn(3) of this executable with this file action; the new process makes the child's
    /// steps.
    Spawn(Action),
}

/// What posix_spawn(3) does in the child first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    None,
    Close(i32),
    /// From the first descriptor to the second.
    Duplicate(i32, i32),
    /// The descriptor that the file gets.
    Open(i32, &'static str),
    ChangeDirectory(&'static str),
}

/// How a program gives up rights, or takes them back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// The program becomes a user that owns nothing, for good.
    Drop,
    /// Only the effective user changes (seteuid(2)).
    DropEffective,
    /// Only the user whose rights count for files changes (setfsuid(2)).
    DropForFiles,
    /// The program gives up the capability to ignore permissions of files (capset(2)).
    DropCapability,
    /// The effective user is root again, if it may be.
    TakeBack,
}

/// What a step does.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Call(&'static Call, Vec<Argument>),
    Rights(Rights),
}

/// One step of a program.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) who: Who,
    pub(crate) deed: Deed,
}

/// A program.
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// Whether the pipe and the socket that every program is given make their readers wait.
    pub(crate) waits: bool,
    /// Whether it starts in a directory whose path is nearly as long as a path may be.
    pub(crate) is_deep: bool,
}

/// What decides which calls a program may make.
#[derive(Clone, Copy)]
struct Style {
    has_threads: bool,
    /// Whether the program maps files. A program that does makes no calls by which a task leaves
    /// the descriptors of the others ([`Reach::Alone`]): the library's thread, which follows stores
    /// to mappings, would stay with the old descriptors.
    maps: bool,
}

/// By this variable a process that acts is told of [`only`], with commas between the names.
pub(crate) const ONLY: &str = "CXLRAID_DIFFER_ONLY";
static NAMES: OnceLock<Vec<String>> = OnceLock::new();

/// The names of the calls that programs are drawn from. None: all calls.
pub(crate) fn only() -> &'static [String] {
    NAMES.get_or_init(|| env::var(ONLY).map_or_else(|_| Vec::new(), |names| names.split(',').map(str::to_owned).collect()))
}

/// Draws programs from these calls only, from here on. An error names the first one that the table
/// does not have.
pub(crate) fn draw_only(names: Vec<String>) -> Result<(), String> {
    match names.iter().find(|&name| CALLS.iter().all(|call| call.name != name)) {
        Some(name) => Err(format!("--only: {name}: no call of the table")),
        None => NAMES.set(names).map_err(|_| "--only: given twice".to_owned()),
    }
}

/// The program of a seed: the one that is written by hand, if there is one, else the one that is
/// drawn.
pub(crate) fn program(seed: u64) -> Program {
    known::program(seed).unwrap_or_else(|| drawn(seed))
}

fn drawn(seed: u64) -> Program {
    let mut drawer = Drawer::new(seed);
    // 0 and 1: threads; 2 and 3: fork; 4: children that share the memory; 5: posix_spawn; others:
    // one thread.
    let style = drawer.below(16);
    let (waits, is_deep) = (drawer.one_in(6), drawer.one_in(24));
    // Programs of styles 4 and 5 do not change their rights. A process that is spawned attaches
    // anew, and another user may not use this array; for children that share memory README.md tells
    // of differences from the kernel.
    let may_change = !matches!(style, 4 | 5);
    // The first step that changes rights; there is none in most programs.
    let rights_at = if may_change && drawer.one_in(4) { drawer.below(STEP_COUNT) } else { STEP_COUNT };
    let calls = Style { has_threads: style < 2, maps: !drawer.one_in(6) };
    let mut steps = Vec::new();
    // How many more steps the child in `who` makes.
    let (mut left, mut who, mut child_count) = (0, Who::Program, 0);
    for number in 0..STEP_COUNT {
        match style {
            0..2 => {
                who = match drawer.below(THREAD_COUNT) {
                    0 => Who::Program,
                    thread => Who::Thread(thread),
                };
            }
            2..6 if left > 0 => left -= 1,
            2..6 if drawer.one_in(6) => {
                child_count += 1;
                left = drawer.below(8);
                who = Who::Child(child(&mut drawer, style), child_count);
            }
            2..6 => who = Who::Program,
            _ => {}
        }
        let changes_rights = number >= rights_at && (number == rights_at || drawer.one_in(12));
        let deed = if changes_rights { Deed::Rights(rights(&mut drawer)) } else { call(&mut drawer, who, calls) };
        steps.push(Step { who, deed });
    }
    let moves = |step: &Step| matches!(&step.deed, Deed::Call(call, _) if matches!(call.name, "chdir" | "fchdir"));
    if rights_at < STEP_COUNT && (is_deep || steps.iter().any(moves)) {
        steps.iter_mut().for_each(leave_searchable);
    }
    Program { steps, waits, is_deep }
}

/// Has a step that changes a mode leave everybody the right to search: docs/differ.md says what a
/// process is refused that gives up rights below a directory which it may then not search.
fn leave_searchable(step: &mut Step) {
    let Deed::Call(call, arguments) = &mut step.deed else { return };
    if !call.name.contains("chmod") {
        return;
    }
    for (_, argument) in call.kinds.iter().zip(arguments).filter(|(kind, _)| matches!(kind, Kind::Mode)) {
        if let Argument::Number(mode) = argument {
            *mode |= 0o111;
        }
    }
}

/// Draws how a child is started. A value that is listed twice is drawn twice as often.
fn child(drawer: &mut Drawer, style: u64) -> Child {
    match style {
        2..4 => Child::Fork,
        4 if drawer.one_in(2) => Child::Vfork,
        4 => Child::Clone(drawer.of(&[0, libc::CLONE_FS, libc::CLONE_FILES, libc::CLONE_FS | libc::CLONE_FILES])),
        _ => Child::Spawn(drawer.of(&[
            Action::None,
            Action::None,
            Action::Close(3),
            Action::Close(400),
            Action::Duplicate(3, 20),
            Action::Duplicate(5, 3),
            Action::Duplicate(400, 4),
            Action::Open(3, "f2"),
            Action::Open(21, "f2"),
            Action::Open(21, "nothing"),
            Action::ChangeDirectory("d0"),
            Action::ChangeDirectory("/"),
            Action::ChangeDirectory("f0"),
        ])),
    }
}

/// Draws a change of rights. A value that is listed twice is drawn twice as often.
fn rights(drawer: &mut Drawer) -> Rights {
    drawer.of(&[
        Rights::Drop,
        Rights::Drop,
        Rights::DropEffective,
        Rights::DropForFiles,
        Rights::DropCapability,
        Rights::TakeBack,
        Rights::TakeBack,
    ])
}

/// Draws one of the calls that this task of this program may make, by their weights, and its
/// arguments.
fn call(drawer: &mut Drawer, who: Who, style: Style) -> Deed {
    let shares_memory = matches!(who, Who::Child(Child::Vfork | Child::Clone(_), _));
    let may_be = |call: &&Call| match call.reach {
        Reach::Everywhere => true,
        Reach::OwnMemory => !shares_memory,
        Reach::Mapping => !shares_memory && style.maps,
        Reach::Alone => !style.has_threads && !style.maps,
    };
    let selected = |call: &&Call| may_be(call) && only().iter().any(|name| name == call.name);
    // A task that may make none of those that are asked for makes any.
    let is_any = !CALLS.iter().any(|call| selected(&call));
    let is_drawn = |call: &&Call| if is_any { may_be(call) } else { selected(call) };
    let all: u64 = CALLS.iter().filter(is_drawn).map(|call| call.weight).sum();
    let mut left = drawer.below(all);
    let mut found = &CALLS[0];
    for call in CALLS.iter().filter(is_drawn) {
        if left < call.weight {
            found = call;
            break;
        }
        left -= call.weight;
    }
    Deed::Call(found, found.kinds.iter().map(|&kind| drawer.argument(kind)).collect())
}
