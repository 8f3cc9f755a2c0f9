//! A program of system calls, drawn from a seed: the same on an array and on a plain directory, whatever the calls answer.
//!
//! Most programs are one process. In some the steps are handed from thread to thread, one at a time, so that their order is always the same. In others, runs of steps are made by children:
//! by copies (fork), by children that share the memory (vfork, clone with CLONE_VM and CLONE_VFORK), or by programs that are started (posix_spawn). The parent waits for each child and goes on.

use crate::{
    calls::{Call, Reach},
    draw::{Argument, Drawer},
    known,
    table::CALLS,
};

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
    /// A child. Steps next to each other with equal numbers are made by one child.
    Child(Child, u64),
}

/// The system call by which a program of the generator starts a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    Fork,
    Vfork,
    /// clone(2) with CLONE_VM, CLONE_VFORK and these flags.
    Clone(i32),
    /// posix_spawn(3) of this program, which goes on with the steps, after these file actions.
    Spawn(Action),
}

/// What posix_spawn(3) does in the child first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    None,
    Close(i32),
    Duplicate(i32, i32),
    Open(i32, &'static str),
    ChangeDirectory(&'static str),
}

/// How a program gives up rights, or takes them back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// Those of a user that owns nothing, for good.
    Drop,
    /// The effective user's only (seteuid(2)).
    DropEffective,
    /// Those that files are looked at with (setfsuid(2)).
    DropForFiles,
    /// The capability to pass permissions by (capset(2)).
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
    /// Whether its pipe and socket make their readers wait.
    pub(crate) waits: bool,
    /// Whether it starts in a directory with a path that is nearly as long as one may be.
    pub(crate) is_deep: bool,
}

/// What calls a program makes.
#[derive(Clone, Copy)]
struct Style {
    has_threads: bool,
    /// Whether it maps files. A task that leaves the others' descriptors does not: the array's own thread that follows stores to mappings would be left behind.
    maps: bool,
}

/// The program of a seed.
pub(crate) fn program(seed: u64) -> Program {
    known::program(seed).unwrap_or_else(|| drawn(seed))
}

fn drawn(seed: u64) -> Program {
    let mut drawer = Drawer::new(seed);
    let style = drawer.below(16);
    let (waits, is_deep) = (drawer.one_in(6), drawer.one_in(24));
    // Which programs may use an array that another user has made is not the question here, nor what README.md says of children that share their parent's memory.
    let may_change = !matches!(style, 4 | 5);
    let rights_at = if may_change && drawer.one_in(4) { drawer.below(STEP_COUNT) } else { STEP_COUNT };
    let calls = Style { has_threads: style < 2, maps: !drawer.one_in(6) };
    let mut steps = Vec::new();
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
    Program { steps, waits, is_deep }
}

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

fn call(drawer: &mut Drawer, who: Who, style: Style) -> Deed {
    let shares_memory = matches!(who, Who::Child(Child::Vfork | Child::Clone(_), _));
    let may_be = |call: &&Call| match call.reach {
        Reach::Everywhere => true,
        Reach::OwnMemory => !shares_memory,
        Reach::Mapping => !shares_memory && style.maps,
        Reach::Alone => !style.has_threads && !style.maps,
    };
    let all: u64 = CALLS.iter().filter(may_be).map(|call| call.weight).sum();
    let mut left = drawer.below(all);
    let mut found = &CALLS[0];
    for call in CALLS.iter().filter(may_be) {
        if left < call.weight {
            found = call;
            break;
        }
        left -= call.weight;
    }
    Deed::Call(found, found.kinds.iter().map(|&kind| drawer.argument(kind)).collect())
}
