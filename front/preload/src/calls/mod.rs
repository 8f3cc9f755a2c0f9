//! What each served call does, one function `fn(&mut Call) -> Verdict` per group of numbers.

pub(crate) mod descriptor;
#[cfg(feature = "double")]
pub(crate) mod double;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod process;

use crate::descriptors::Table;
use crate::dispatch::{Call, Verdict};
use crate::signals;
use crate::table::NUMBER_COUNT;
use linux_raw_sys::general as nr;
use node::Node;

/// The descriptors of this process that are ours.
pub(crate) static OPEN: Table<Node> = Table::new();

/// A served call.
pub(crate) type Handler = fn(&mut Call) -> Verdict;

static HANDLERS: [Handler; NUMBER_COUNT] = handlers();

/// The function that serves `number`.
#[inline]
pub(crate) fn handler(number: usize) -> Handler {
    HANDLERS[number]
}

const fn handlers() -> [Handler; NUMBER_COUNT] {
    let served: &[(u32, Handler)] = &[
        (nr::__NR_close, descriptor::close),
        (nr::__NR_dup, descriptor::dup),
        (nr::__NR_dup2, descriptor::dup_to),
        (nr::__NR_dup3, descriptor::dup_to),
        (nr::__NR_fcntl, descriptor::fcntl),
        (nr::__NR_close_range, descriptor::close_range),
        (nr::__NR_mmap, memory::mmap),
        (nr::__NR_rt_sigaction, signals::serve_action),
        (nr::__NR_rt_sigprocmask, signals::serve_mask),
        (nr::__NR_fork, process::fork),
        (nr::__NR_vfork, process::vfork),
        (nr::__NR_clone, process::clone),
        (nr::__NR_clone3, process::clone3),
        (nr::__NR_execve, process::execve),
        (nr::__NR_execveat, process::execveat),
    ];
    let mut handlers: [Handler; NUMBER_COUNT] = [pass; NUMBER_COUNT];
    let mut index = 0;
    while index < served.len() {
        handlers[served[index].0 as usize] = served[index].1;
        index += 1;
    }
    #[cfg(feature = "double")]
    {
        handlers = double::over(handlers);
    }
    handlers
}

/// A call nobody serves yet is the kernel's.
fn pass(_: &mut Call) -> Verdict {
    Verdict::Pass
}
