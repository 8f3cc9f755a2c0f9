//! A process that runs programs of system calls and writes down what each call answered.
//!
//! It runs in the same way on an array, with the library loaded, and on a plain directory. Each
//! program runs in a child of its own, so that it begins with the same descriptors, and is followed
//! by what it has left.

use crate::{
    actor::Actor,
    log::{self, say},
    probe,
    program::program,
    tasks, tree,
};
use std::{
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
    ptr,
};

/// The word that makes this program act.
pub(crate) const ROLE: &str = "act";
/// The word that makes this program go on with a program's steps as a child that was started anew.
pub(crate) const ROLE_OF_CHILD: &str = "act-as-child";
/// The longest file that a program may make, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// What programs are to be run.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) inside: PathBuf,
    pub(crate) outside: PathBuf,
    pub(crate) results: PathBuf,
    pub(crate) first_seed: u64,
    pub(crate) count: u64,
    /// Of each program only these steps, if any are named.
    pub(crate) steps: Vec<usize>,
}

impl Orders {
    /// The words that make this program act by these orders in a role.
    pub(crate) fn words(&self, role: &str) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        vec![
            role.to_owned(),
            path(&self.inside),
            path(&self.outside),
            path(&self.results),
            self.first_seed.to_string(),
            self.count.to_string(),
            steps.join(","),
        ]
    }

    fn from_words(words: &[String]) -> Option<Self> {
        let [inside, outside, results, first_seed, count, steps] = words else { return None };
        Some(Self {
            inside: inside.into(),
            outside: outside.into(),
            results: results.into(),
            first_seed: first_seed.parse().ok()?,
            count: count.parse().ok()?,
            steps: steps.split(',').filter(|step| !step.is_empty()).map(|step| step.parse().ok()).collect::<Option<_>>()?,
        })
    }
}

/// Runs the programs.
pub(crate) fn act(words: &[String]) -> io::Result<()> {
    let orders = Orders::from_words(words).ok_or(io::ErrorKind::InvalidInput)?;
    log::make()?;
    for seed in orders.first_seed..orders.first_seed + orders.count {
        tree::make(&orders.inside, &orders.outside)?;
        say(&format!("program {seed}\n"));
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let result = run(&orders, seed);
            if let Err(error) = &result {
                say(&format!("not run: {error}\n"));
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        say(&format!("ended {}\n", if waited == child { status } else { -1 }));
        say(&tree::listing(&orders.inside));
        say("outside\n");
        say(&tree::listing(&orders.outside));
    }
    // What is left on the host would be found there by what an array does not serve.
    tree::clear(&orders.inside, &orders.outside)?;
    say("whole\n");
    // It lies on the host, where the library does not see it.
    fs::write(&orders.results, log::text())
}

/// Goes on with steps of a program as its child.
pub(crate) fn act_as_child(words: &[String]) -> io::Result<()> {
    let orders = Orders::from_words(words).ok_or(io::ErrorKind::InvalidInput)?;
    log::attach()?;
    expect_signals()?;
    let program = program(orders.first_seed);
    let mut actor = Actor::new(&orders, orders.first_seed)?;
    for &number in &orders.steps {
        tasks::step(&mut actor, number, &program.steps[number].deed, 'p');
    }
    Ok(())
}

fn run(orders: &Orders, seed: u64) -> io::Result<()> {
    let program = program(seed);
    std::env::set_current_dir(&orders.inside)?;
    tree::open(&orders.outside, program.waits)?;
    let limit = libc::rlimit { rlim_cur: FILE_BYTES_MAX, rlim_max: FILE_BYTES_MAX };
    // SAFETY: the limit is valid.
    unsafe {
        libc::umask(0o022);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
    expect_signals()?;
    if program.is_deep {
        let name = CString::new("n".repeat(250))?;
        for _ in 0..15 {
            // SAFETY: the name ends with a NUL. A program that cannot go down that far stays where
            // it is, and the results tell.
            let results = unsafe { [libc::mkdir(name.as_ptr(), 0o755), libc::chdir(name.as_ptr())] };
            if results != [0, 0] {
                say(&format!("deeper {results:?}\n"));
            }
        }
    }
    tasks::run(&mut Actor::new(orders, seed)?, &program)
}

fn expect_signals() -> io::Result<()> {
    // SAFETY: what a call waits for too long is interrupted by a signal whose handler does nothing.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
    }
    probe::begin()
}

extern "C" fn interrupted(_: i32) {}
