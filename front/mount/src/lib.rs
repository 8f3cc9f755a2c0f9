//! The mount: an array's directory through the kernel (FUSE), for programs that the preloaded
//! library cannot reach.
//!
//! The process that serves a mount attaches to the array like a program that uses it, and answers
//! the kernel's requests by core/namespace and core/file. So it sees at once what programs on the
//! other door have done, and they see what was done through the mount: by sizes, locks and names in
//! the runtime segment and on the members.
//!
//! Invariants:
//! - nothing is answered from memory that the other door may have changed: names and attributes are
//!   valid for no time, and reads and writes bypass the kernel's page cache ([`wire`]);
//! - no call is made on a path of several components: each starts at a descriptor that this process
//!   has of a directory ([`nodes`]), and no symlink is followed;
//! - what concerns rights is asked of the members as the calling process ([`caller`]).
#![deny(unsafe_code)]

pub mod apart;
mod attributes;
mod caller;
mod closed;
mod copies;
mod counts;
mod data;
mod file_handle;
mod handles;
mod handover;
mod locks;
mod names;
mod nodes;
mod place;
mod session;
mod wire;

pub use caller::{drop_rights, drop_rights_but_unmounting, serves_own_user_only};
pub use place::{Manner, Mounted, bottom, device, identify, mount, mount_over_dead, mounted, stack_at, top_at, unmount};
pub use session::Session;
pub use sys::rustix::mount::MountFlags;
