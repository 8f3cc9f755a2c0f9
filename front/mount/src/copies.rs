//! Copies from one file to another (copy_file_range(2)). The kernel would copy from its page cache,
//! which may hold what the other door has written over since.

use crate::{
    attributes::tell_modified,
    data::require_range,
    session::{Answer, Done, Session},
    wire::{self, CopyIn, WriteOut},
};
use namespace::Node as Kind;
use sys::{AsFd as _, OsError, Result};

/// A request copies no more: nobody can end the program before the request is answered. A program goes
/// on where a copy was short.
const COPY_BYTES_MAX: u64 = 64 << 20;

impl Session {
    /// Copies what the source holds now. What is wrong with the descriptors, and with limits, the
    /// kernel has said before.
    pub(crate) fn copy_range(&self, body: &[u8], answer: &mut Answer) -> Result<Done> {
        let (asked, _) = wire::split::<CopyIn>(body)?;
        require_range(asked.from, asked.bytes)?;
        require_range(asked.to, asked.bytes)?;
        if asked.flags != 0 {
            return Err(OsError::INVAL);
        }
        let (input, output) = (self.handles.get(asked.handle)?, self.handles.get(asked.to_handle)?);
        let (Kind::File(source), Kind::File(target)) = (&input.node, &output.node) else { return Err(OsError::INVAL) };
        if !output.is_for_writing {
            return Err(OsError::BADF);
        }
        let bytes = asked.bytes.min(source.size().saturating_sub(asked.from));
        if source.number() == target.number() && asked.from.abs_diff(asked.to) < bytes {
            return Err(OsError::INVAL);
        }
        let (bytes, mut done) = (bytes.min(COPY_BYTES_MAX), 0);
        let result = loop {
            let (from, to) = (asked.from + done, asked.to + done);
            let room = answer.room();
            let room_bytes = room.len().min((bytes - done) as usize);
            let room = &mut room[..room_bytes];
            let within = |position: u64| source.size().saturating_sub(position).min(room_bytes as u64);
            let (position, reserved) = input.place(source, from, within);
            let read = source.read_slice(position, room);
            input.has_moved(source, (from, position), reserved, *read.as_ref().unwrap_or(&0) as u64);
            let piece = match read {
                Ok(0) => break Ok(()),
                Ok(read) => &room[..read],
                Err(error) => break Err(error),
            };
            let (position, reserved) = output.place(target, to, |_| piece.len() as u64);
            let written = target.write_slice(position, piece);
            output.has_moved(target, (to, position), reserved, *written.as_ref().unwrap_or(&0) as u64);
            // From now on something may be copied, which is not to be done again.
            answer.is_settled = true;
            match written {
                Ok(0) => break Ok(()),
                Ok(written) => done += written as u64,
                Err(error) => break Err(error),
            }
            if done >= bytes {
                break Ok(());
            }
        };
        if done == 0 {
            result?;
        } else {
            tell_modified(target, output.anchor.as_fd());
            if output.is_synced {
                target.sync()?;
            }
        }
        answer.put(&WriteOut { bytes: done as u32, padding: 0 })
    }
}
