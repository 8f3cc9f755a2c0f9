//! The threads and children that make a program's steps, one at a time and always in the program's
//! order.

use crate::{
    act::ROLE_OF_CHILD,
    actor::Actor,
    log::say,
    program::{Action, Child, Deed, Program, Step, THREAD_COUNT, Who},
};
use std::{
    arch::global_asm,
    env,
    ffi::{CString, c_void},
    io,
    os::unix::ffi::OsStrExt as _,
    ptr,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

global_asm!(
    // vfork(2) returns twice: a function that calls it must keep nothing below its frame. This one
    // calls a function with an argument in the child, which does not come back.
    ".global cxlraid_differ_vfork",
    "cxlraid_differ_vfork:",
    "push rbx",
    "push r12",
    "push r13",
    "mov r12, rdi",
    "mov r13, rsi",
    "call vfork@PLT",
    "test eax, eax",
    "jnz 1f",
    "mov rdi, r13",
    "call r12",
    "ud2",
    "1:",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn cxlraid_differ_vfork(act: extern "C" fn(*mut c_void) -> i32, argument: *mut c_void) -> i32;
}

/// The stack of a child made by clone(2).
const STACK_BYTES: usize = 1 << 20;

/// The steps of a program that are to be made, in order.
struct Work<'p> {
    program: &'p Program,
    numbers: Vec<usize>,
}

/// Runs a program, or those of its steps that are ordered.
pub(crate) fn run(actor: &mut Actor<'_>, program: &Program) -> io::Result<()> {
    let ordered = actor.orders().steps.clone();
    let numbers: Vec<usize> = (0..program.steps.len()).filter(|number| ordered.is_empty() || ordered.contains(number)).collect();
    let has_threads = program.steps.iter().any(|step| matches!(step.who, Who::Thread(_)));
    let threads = if has_threads { Threads::start()? } else { Threads(Vec::new()) };
    let mut at = 0;
    while at < numbers.len() {
        let who = program.steps[numbers[at]].who;
        let end =
            numbers[at..].iter().position(|&number| program.steps[number].who != who).map_or(numbers.len(), |count| at + count);
        let together = &numbers[at..end];
        match who {
            Who::Program => together.iter().for_each(|&number| step(actor, number, &program.steps[number].deed, ' ')),
            Who::Thread(thread) => {
                together.iter().for_each(|&number| threads.step(thread, actor, number, &program.steps[number]))
            }
            Who::Child(child, _) => self::child(actor, child, Work { program, numbers: together.to_vec() })?,
        }
        at = end;
    }
    Ok(())
}

/// Makes one step. `who` says in a letter who makes it.
pub(crate) fn step(actor: &mut Actor<'_>, number: usize, deed: &Deed, who: char) {
    let line = match deed {
        Deed::Rights(rights) => actor.change_rights(*rights),
        Deed::Call(call, arguments) => actor.call(number, call, arguments),
    };
    say(&format!("{number}{} {line}\n", if who == ' ' { String::new() } else { who.to_string() }));
}

/// A step to be made by a thread: the program's first thread waits meanwhile.
struct Task {
    actor: *mut c_void,
    number: usize,
    deed: Deed,
}

// SAFETY: whoever has handed a task over does not touch the actor until the thread says that the
// step is over.
unsafe impl Send for Task {}

struct Threads(Vec<(Sender<Task>, Receiver<()>)>);

impl Threads {
    fn start() -> io::Result<Self> {
        let start = |_| {
            let (give, tasks) = channel::<Task>();
            let (done, over) = channel();
            thread::Builder::new().spawn(move || {
                for task in tasks {
                    take_alarms(true);
                    // SAFETY: the actor outlives the step, and nobody else touches it meanwhile.
                    let actor = unsafe { &mut *task.actor.cast::<Actor<'_>>() };
                    step(actor, task.number, &task.deed, 't');
                    take_alarms(false);
                    if done.send(()).is_err() {
                        return;
                    }
                }
            })?;
            Ok((give, over))
        };
        // The threads begin with the mask of this one.
        take_alarms(false);
        let threads = (1..THREAD_COUNT).map(start).collect::<io::Result<_>>();
        take_alarms(true);
        threads.map(Self)
    }

    fn step(&self, thread: u64, actor: &mut Actor<'_>, number: usize, step: &Step) {
        let (give, over) = &self.0[thread as usize - 1];
        let actor = ptr::from_mut(actor).cast();
        take_alarms(false);
        let given = give.send(Task { actor, number, deed: step.deed.clone() });
        if given.is_err() || over.recv().is_err() {
            say("a thread has gone\n");
        }
        take_alarms(true);
    }
}

/// Whether this thread is the one that the alarm interrupts.
fn take_alarms(takes: bool) {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGALRM);
        libc::pthread_sigmask(if takes { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK }, &raw const set, ptr::null_mut());
    }
}

/// What a child gets to know, in the memory that it shares with its parent or has a copy of.
struct Given<'g, 'a, 'p> {
    actor: &'g mut Actor<'a>,
    work: Work<'p>,
    letter: char,
}

/// Has steps made by a child, and waits for it.
fn child(actor: &mut Actor<'_>, kind: Child, work: Work<'_>) -> io::Result<()> {
    let letter = match kind {
        Child::Fork => 'f',
        Child::Vfork => 'v',
        Child::Clone(_) => 'c',
        Child::Spawn(action) => return spawn(actor, action, &work),
    };
    let mut given = Given { actor, work, letter };
    let argument = (&raw mut given).cast::<c_void>();
    // SAFETY: a fork child has a copy of everything; the parent of the others waits in the kernel
    // until they end, as vfork(2) and CLONE_VFORK have it.
    let child = unsafe {
        match kind {
            Child::Vfork => cxlraid_differ_vfork(as_child, argument),
            Child::Clone(flags) => {
                let mut stack = vec![0_u128; STACK_BYTES / 16];
                let top = stack.as_mut_ptr().add(stack.len());
                libc::clone(as_child, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | flags, argument)
            }
            _ => match libc::fork() {
                0 => as_child(argument),
                child => child,
            },
        }
    };
    wait_for(child)
}

extern "C" fn as_child(argument: *mut c_void) -> i32 {
    // SAFETY: what the parent has made for this child, and does not touch until the child has
    // ended.
    let given = unsafe { &mut *argument.cast::<Given<'_, '_, '_>>() };
    for &number in &given.work.numbers {
        step(given.actor, number, &given.work.program.steps[number].deed, given.letter);
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

fn spawn(actor: &Actor<'_>, action: Action, work: &Work<'_>) -> io::Result<()> {
    let orders = crate::act::Orders { steps: work.numbers.clone(), ..actor.orders().clone() };
    let orders = crate::act::Orders { first_seed: actor.seed(), ..orders };
    let this = CString::new(env::current_exe()?.as_os_str().as_bytes())?;
    let words: Vec<CString> = orders.words(ROLE_OF_CHILD).into_iter().map(CString::new).collect::<Result<_, _>>()?;
    let mut arguments: Vec<*mut libc::c_char> = vec![this.as_ptr().cast_mut()];
    arguments.extend(words.iter().map(|word| word.as_ptr().cast_mut()));
    arguments.push(ptr::null_mut());
    let path = |path: &str| CString::new(path);
    let mut child = 0;
    // SAFETY: the strings and lists end as they should and live until the child is started; the
    // actions are initialised first and destroyed last.
    let result = unsafe {
        unsafe extern "C" {
            static environ: *const *mut libc::c_char;
        }
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        let all = &raw mut actions;
        match action {
            Action::None => {}
            Action::Close(number) => _ = libc::posix_spawn_file_actions_addclose(all, number),
            Action::Duplicate(from, to) => _ = libc::posix_spawn_file_actions_adddup2(all, from, to),
            Action::Open(number, name) => {
                _ = libc::posix_spawn_file_actions_addopen(all, number, path(name)?.as_ptr(), libc::O_RDWR, 0);
            }
            Action::ChangeDirectory(name) => _ = libc::posix_spawn_file_actions_addchdir_np(all, path(name)?.as_ptr()),
        }
        let result = libc::posix_spawn(&raw mut child, this.as_ptr(), all, ptr::null(), arguments.as_ptr(), environ);
        libc::posix_spawn_file_actions_destroy(all);
        result
    };
    if result != 0 {
        say(&format!("spawn = E{result}\n"));
        return Ok(());
    }
    wait_for(child)
}

fn wait_for(child: i32) -> io::Result<()> {
    if child < 0 {
        say(&format!("child = E{}\n", io::Error::last_os_error().raw_os_error().unwrap_or(0)));
        return Ok(());
    }
    let mut status = 0;
    // SAFETY: `status` is valid.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        return Err(io::Error::last_os_error());
    }
    say(&format!("child ended {status}\n"));
    Ok(())
}
