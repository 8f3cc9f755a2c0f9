//! Sockets that get a name, and directories bound onto others.

use crate::descriptor::link;
use crate::everywhere::{NOTHING, On};
use crate::located::{Located, SAFELY, open_below};
use crate::log::change as record;
use crate::mounts::open_within;
use crate::target::Target;
use crate::{HostPair, Namespace, ProgramPath, Reached};
use alloc::vec::Vec;
use format::NameKind;
use sys::high_fd::Raised;
use sys::rustix::fs::{AtFlags, FileType, Mode, OFlags, mknodat};
use sys::rustix::mount::{UnmountFlags, mount_bind, mount_bind_recursive, unmount};
use sys::{AsFd, AsRawFd, OsError, Result};

impl Namespace {
    /// bind(2) of a local socket: `bind` gives it a name on the lowest member, the others get a
    /// socket that nobody listens on. `longest` is the most bytes that fit into an address.
    pub fn bind_socket<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        longest: usize,
        bind: impl Fn(&[u8]) -> Result<()>,
    ) -> Result<Reached<()>> {
        self.changing_at(path.into(), |path| {
            if let Some(refusal) = self.refusal_to_make(path) {
                return refusal;
            }
            self.target(path)?.and_then(|target| {
                let mut mode = None;
                let make = || {
                    self.make_everywhere(&target, AtFlags::empty(), |on, at| {
                        if on.first {
                            bind(&short(self.host_path(on.slot, &target.path), at, longest)?)?;
                            mode = Some(at.stat()?.st_mode & 0o7777);
                            return Ok(());
                        }
                        let mode = Mode::from_raw_mode(mode.unwrap_or(0o755));
                        mknodat(at.directory(), at.name(), FileType::Socket, mode, 0)?;
                        at.chmod(mode)
                    })
                };
                self.logged(record(NameKind::Make, &target.path, None), make)
            })
        })
    }

    /// A path of at most `longest` bytes to the socket at `path`, for connect(2). It is valid while
    /// the descriptor is open, if there is one.
    pub fn socket_path<'p>(
        &self,
        path: impl Into<ProgramPath<'p>>,
        longest: usize,
    ) -> Result<Reached<(Vec<u8>, Option<Raised>)>> {
        let path = path.into();
        self.resolve(path, true)?.and_then(|found| {
            let slot = self.array().first_in_use()?;
            let on = On { slot, root: self.root(slot)?, first: true, afresh: true, caught_up: false };
            let host = self.host_path(slot, &found);
            if host.len() <= longest {
                return Ok((host, None));
            }
            // The open directory itself is no socket, as the kernel is to say; its name may be too
            // long for any call.
            if let Some((directory, _)) = path.on(slot).filter(|_| found == path.known_part()) {
                let directory = open_within(directory, b".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), SAFELY)?;
                let directory = Raised::new(directory)?;
                return Ok((link(directory.as_raw_fd()), Some(directory)));
            }
            let target = Target::new(path, found, false);
            let at = target.on(&on)?;
            let path = at.path();
            if path.len() <= longest {
                return Ok((path, at.into_directory()));
            }
            // The name alone is too long for an address. So the kernel is given a descriptor of
            // what has the name.
            let named = Raised::new(target.open(&on, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)?;
            Ok((link(named.as_raw_fd()), Some(named)))
        })
    }

    /// mount(2) with MS_BIND of one directory or file of the array onto another: on every member
    /// alike.
    ///
    /// # Errors
    /// `XDEV` across the array's border.
    pub fn bind_mount<'p>(
        &self,
        from: impl Into<ProgramPath<'p>>,
        to: impl Into<ProgramPath<'p>>,
        recursive: bool,
    ) -> Result<Reached<(), HostPair>> {
        let (from, to) = (from.into(), to.into());
        self.changing(|| match (self.resolve(from, true)?, self.resolve(to, true)?) {
            (Reached::Array(from), Reached::Array(to)) => {
                let place = |on: &On, path: &[u8]| open_below(on.root, &path[1..], OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
                let act = |on: &On| {
                    let (source, goal) = (place(on, &from)?, place(on, &to)?);
                    let (from, to) = (link(source.as_raw_fd()), link(goal.as_raw_fd()));
                    if recursive { mount_bind_recursive(from, to) } else { mount_bind(from, to) }
                };
                let undo = |on: &On| unmount_on(on, &to, UnmountFlags::DETACH);
                self.restructuring(|| self.everywhere(&[&from, &to], act, Some(&undo)))?;
                Ok(Reached::Array(()))
            }
            (Reached::Host(from), Reached::Host(to)) => Ok(Reached::Host((from, to))),
            _ => Err(OsError::XDEV),
        })
    }

    /// umount2(2) of what [`Namespace::bind_mount`] made.
    pub fn unmount<'p>(&self, path: impl Into<ProgramPath<'p>>, flags: u32) -> Result<Reached<()>> {
        let (path, flags) = (path.into(), UnmountFlags::from_bits_retain(flags));
        self.changing(|| {
            self.resolve(path, !flags.contains(UnmountFlags::NOFOLLOW))?.and_then(|path| {
                let act = |on: &On| match unmount_on(on, &path, flags) {
                    // It was not mounted there.
                    Err(OsError::INVAL) if !on.first => Ok(()),
                    // Busy there only: what is open on a later member is our own.
                    Err(OsError::BUSY) if !on.first => unmount_on(on, &path, flags | UnmountFlags::DETACH),
                    result => result,
                };
                self.restructuring(|| self.everywhere(&[&path], act, NOTHING))
            })
        })
    }
}

/// The path of a name on a member; if that has more than `longest` bytes, one through the
/// descriptor of the directory, valid while `at` lives.
fn short(host: Vec<u8>, at: &Located<'_>, longest: usize) -> Result<Vec<u8>> {
    let path = if host.len() <= longest { host } else { at.path() };
    if path.len() > longest { Err(OsError::NAMETOOLONG) } else { Ok(path) }
}

/// Takes away what is mounted at a name of one member.
fn unmount_on(on: &On, path: &[u8], flags: UnmountFlags) -> Result<()> {
    unmount(Located::below(on.root.as_fd(), &path[1..])?.path(), flags | UnmountFlags::NOFOLLOW)
}
