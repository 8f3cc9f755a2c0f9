//! Requests that look names up and change them.

use crate::{
    caller,
    nodes::{Child, Looked},
    session::{Answer, Done, Session},
    wire::{self, BatchForgetIn, EntryOut, ForgetIn, ForgetOne, Header, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn, op},
};
use namespace::{FileType, Reached, RenameFlags};
use sys::rustix::fs::{CWD, readlinkat};
use sys::{OsError, OwnedFd, Result};

/// A name that is another file's each time is looked up so often.
const LOOK_COUNT: u32 = 8;

/// What a name of the array leads to; out of the array none does, since no symlink is followed
/// here.
pub(crate) fn inside<T, H>(reached: Reached<T, H>) -> Result<T> {
    match reached {
        Reached::Array(value) => Ok(value),
        Reached::Host(_) => Err(OsError::XDEV),
    }
}

impl Session {
    pub(crate) fn lookup(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let name = wire::split_name(body)?.0;
        if header.node == wire::ROOT
            && let Some(found) = self.named_by_descriptor(header, name)
        {
            return answer.put(&self.entry(found?, None)?);
        }
        let child = self.nodes.child(header.node, name)?;
        self.tell_child(&child, (header.node, name), answer)
    }

    /// Tells the kernel what a name leads to.
    fn tell_child(&self, child: &Child, place: (u64, &[u8]), answer: &mut Answer) -> Result<Done> {
        let entry = self.over_losses(|| {
            for _ in 0..LOOK_COUNT {
                // Members that contradict each other are settled by this; the descriptor alone
                // tells nothing of that.
                inside(self.names.stat(child.path(), false)?)?;
                let looking = self.nodes.looking(place);
                let entry = self.entry(inside(self.names.look_at(child.path(), false)?)?, Some(looking))?;
                if entry.attributes.links != 0 {
                    return Ok(entry);
                }
                // It was removed or replaced since, or somebody has removed it on this member by
                // hand. The kernel links nothing that has no name.
                self.nodes.forget(entry.node, 1);
            }
            inside(self.names.stat(child.path(), false)?)?;
            Err(OsError::STALE)
        })?;
        answer.put(&entry)
    }

    /// What the kernel is told of what a descriptor (O_PATH) names, which a look-up found.
    pub(crate) fn entry(&self, found: OwnedFd, looked: Option<Looked<'_>>) -> Result<EntryOut> {
        let (node, stat) = self.nodes.enter(found, looked)?;
        Ok(EntryOut { node, generation: 1, attributes: (&stat).into(), ..EntryOut::default() })
    }

    pub(crate) fn forget(&self, header: &Header, body: &[u8]) -> Result<Done> {
        if header.operation == op::FORGET {
            if let Ok((forget, _)) = wire::split::<ForgetIn>(body) {
                self.nodes.forget(header.node, forget.count);
            }
            return Ok(Done::Silent);
        }
        if let Ok((batch, mut rest)) = wire::split::<BatchForgetIn>(body) {
            for _ in 0..batch.count {
                let Ok((one, behind)) = wire::split::<ForgetOne>(rest) else { break };
                self.nodes.forget(one.node, one.count);
                rest = behind;
            }
        }
        Ok(Done::Silent)
    }

    pub(crate) fn read_link(&self, header: &Header, answer: &mut Answer) -> Result<Done> {
        let node = self.nodes.get(header.node)?;
        answer.put_bytes(readlinkat(node.fd(), c"", Vec::new())?.as_bytes())
    }

    pub(crate) fn make_symlink(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (name, rest) = wire::split_name(body)?;
        let (target, _) = wire::split_name(rest)?;
        let child = self.nodes.child(header.node, name)?;
        inside(self.names.symlink(target, child.path())?)?;
        answer.is_settled = true;
        self.tell_child(&child, (header.node, name), answer)
    }

    pub(crate) fn make_node(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<MknodIn>(body)?;
        let name = wire::split_name(rest)?.0;
        let child = self.nodes.child(header.node, name)?;
        caller::mask(asked.umask);
        let device = wire::unpacked_device(asked.device);
        inside(self.names.mknod(child.path(), FileType::from_raw_mode(asked.mode), asked.mode, device)?)?;
        answer.is_settled = true;
        self.tell_child(&child, (header.node, name), answer)
    }

    pub(crate) fn make_directory(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<MkdirIn>(body)?;
        let name = wire::split_name(rest)?.0;
        let child = self.nodes.child(header.node, name)?;
        caller::mask(asked.umask);
        inside(self.names.mkdir(child.path(), asked.mode)?)?;
        answer.is_settled = true;
        self.tell_child(&child, (header.node, name), answer)
    }

    pub(crate) fn unlink(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let child = self.nodes.child(header.node, wire::split_name(body)?.0)?;
        inside(self.names.unlink(child.path())?).map(|()| Done::Answered)
    }

    pub(crate) fn remove_directory(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let child = self.nodes.child(header.node, wire::split_name(body)?.0)?;
        inside(self.names.rmdir(child.path())?).map(|()| Done::Answered)
    }

    pub(crate) fn rename(&self, header: &Header, body: &[u8]) -> Result<Done> {
        let (directory, flags, rest) = if header.operation == op::RENAME {
            let (asked, rest) = wire::split::<RenameIn>(body)?;
            (asked.directory, 0, rest)
        } else {
            let (asked, rest) = wire::split::<Rename2In>(body)?;
            (asked.directory, asked.flags, rest)
        };
        let (from, rest) = wire::split_name(rest)?;
        let (to, _) = wire::split_name(rest)?;
        let (source, target) = (self.nodes.child(header.node, from)?, self.nodes.child(directory, to)?);
        let flags = RenameFlags::from_bits_retain(flags);
        inside(self.names.rename(source.path(), target.path(), flags)?)?;
        self.nodes.renamed((header.node, from), (directory, to), flags.contains(RenameFlags::EXCHANGE));
        Ok(Done::Answered)
    }

    pub(crate) fn link(&self, header: &Header, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, rest) = wire::split::<LinkIn>(body)?;
        let name = wire::split_name(rest)?.0;
        let child = self.nodes.child(header.node, name)?;
        inside(self.on_node(asked.node, |fd, kind| self.names.link_descriptor(fd, kind, child.path()))?)?;
        answer.is_settled = true;
        self.tell_child(&child, (header.node, name), answer)
    }

    pub(crate) fn file_system(&self, answer: &mut Answer) -> Result<Done> {
        let found = self.names.fstatfs()?;
        answer.put(&wire::StatfsOut {
            blocks: found.f_blocks,
            free: found.f_bfree,
            available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_bytes: found.f_bsize as u32,
            name_bytes: found.f_namelen as u32,
            fragment_bytes: found.f_frsize as u32,
            ..wire::StatfsOut::default()
        })
    }
}

/// The path under /proc that leads to what a descriptor is open on.
pub(crate) fn opened_again(fd: sys::BorrowedFd<'_>, flags: namespace::OFlags) -> Result<OwnedFd> {
    use sys::AsRawFd as _;
    sys::rustix::fs::openat(CWD, namespace::link(fd.as_raw_fd()), flags, sys::rustix::fs::Mode::empty())
}
