//! What each served call does, one function `fn(&mut Call) -> Verdict` per group of numbers.

pub(crate) mod aio;
pub(crate) mod apart;
pub(crate) mod attributes;
mod border;
pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod descriptor;
pub(crate) mod directory;
pub(crate) mod events;
pub(crate) mod fetch;
mod judge;
pub(crate) mod limit;
pub(crate) mod links;
pub(crate) mod listing;
pub(crate) mod lock;
pub(crate) mod magic;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod mount;
pub(crate) mod moved;
pub(crate) mod names;
pub(crate) mod node;
mod on_path;
pub(crate) mod open;
pub(crate) mod other_end;
pub(crate) mod paths;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod rights;
pub(crate) mod root;
pub(crate) mod socket;
pub(crate) mod space;
pub(crate) mod splice;
pub(crate) mod watch;
pub(crate) mod xattr;

use crate::call::{Call, Verdict};
use crate::descriptors::Table;
use crate::mappings::{advice, change, several};
use crate::process as process_state;
use crate::signals;
use crate::table::NUMBER_COUNT;
use linux_raw_sys::general as nr;
use node::Node;

/// The descriptors of this process that are ours.
pub(crate) static OPEN: Table<Node> = Table::new();

/// Whether a descriptor of ours only names something (O_PATH).
fn only_names(descriptor: sys::RawFd) -> bool {
    OPEN.lookup(descriptor).is_some_and(|held| matches!(held.node(), Node::Path(_)))
}

/// The handler of a call that is counted as one on the array unless it fails; calls that move bytes
/// of files or make them durable count themselves.
macro_rules! counted {
    ($handler:path) => {{
        fn counted(call: &mut Call) -> Verdict {
            crate::counts::other($handler(call))
        }
        counted
    }};
}

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
        (nr::__NR_fcntl, counted!(descriptor::fcntl)),
        (nr::__NR_flock, counted!(lock::flock)),
        (nr::__NR_close_range, descriptor::close_range),
        (nr::__NR_mmap, memory::mmap),
        (nr::__NR_munmap, change::munmap),
        (nr::__NR_mprotect, change::mprotect),
        (nr::__NR_pkey_mprotect, change::mprotect),
        (nr::__NR_mremap, several::mremap),
        (nr::__NR_msync, change::msync),
        (nr::__NR_madvise, advice::madvise),
        (nr::__NR_process_madvise, advice::process_madvise),
        (nr::__NR_remap_file_pages, change::remap_pages),
        (nr::__NR_shmat, change::shmat),
        (nr::__NR_sync, space::sync_all),
        (nr::__NR_rt_sigaction, signals::serve_action),
        (nr::__NR_rt_sigprocmask, signals::mask::serve),
        (nr::__NR_rt_sigsuspend, signals::mask::wait),
        (nr::__NR_ppoll, signals::mask::wait),
        (nr::__NR_pselect6, signals::mask::wait),
        (nr::__NR_epoll_pwait, signals::mask::wait),
        (nr::__NR_epoll_pwait2, signals::mask::wait),
        (nr::__NR_fork, process::fork),
        (nr::__NR_vfork, process::vfork),
        (nr::__NR_clone, process::clone),
        (nr::__NR_clone3, process::clone3),
        (nr::__NR_unshare, process::unshare),
        (nr::__NR_execve, process::execve),
        (nr::__NR_execveat, process::execveat),
        (nr::__NR_exit_group, process::exit),
        (nr::__NR_bind, socket::bind),
        (nr::__NR_connect, socket::connect),
        (nr::__NR_sendto, socket::sendto),
        (nr::__NR_getsockname, peer::name),
        (nr::__NR_getpeername, peer::name),
        (nr::__NR_accept, peer::peer),
        (nr::__NR_accept4, peer::peer),
        (nr::__NR_recvfrom, peer::peer),
        (nr::__NR_mount, mount::mount),
        (nr::__NR_umount2, mount::unmount),
        (nr::__NR_pivot_root, mount::pivot_root),
        (nr::__NR_open_tree, mount::open_tree),
        (nr::__NR_fspick, mount::open_tree),
        (nr::__NR_open_tree_attr, mount::open_tree),
        (nr::__NR_move_mount, mount::move_mount),
        (nr::__NR_mount_setattr, mount::set_attributes),
        (nr::__NR_fsconfig, mount::configure),
        (nr::__NR_swapon, mount::swap),
        (nr::__NR_swapoff, mount::swap),
        (nr::__NR_acct, mount::account),
        (nr::__NR_quotactl, mount::quota),
        (nr::__NR_quotactl_fd, mount::quota_of_descriptor),
        (nr::__NR_sendmsg, message::send),
        (nr::__NR_sendmmsg, message::send_many),
        (nr::__NR_recvmsg, message::receive),
        (nr::__NR_recvmmsg, message::receive_many),
        (nr::__NR_pidfd_getfd, fetch::fetch),
        (nr::__NR_read, data::read),
        (nr::__NR_pread64, data::pread),
        (nr::__NR_readv, data::readv),
        (nr::__NR_preadv, data::preadv),
        (nr::__NR_preadv2, data::preadv),
        (nr::__NR_write, data::write),
        (nr::__NR_pwrite64, data::pwrite),
        (nr::__NR_writev, data::writev),
        (nr::__NR_pwritev, data::pwritev),
        (nr::__NR_pwritev2, data::pwritev),
        (nr::__NR_sendfile, copy::sendfile),
        (nr::__NR_copy_file_range, copy::copy_file_range),
        (nr::__NR_splice, splice::splice),
        (nr::__NR_io_setup, aio::set_up),
        (nr::__NR_io_submit, aio::submit),
        (nr::__NR_io_getevents, aio::give_events),
        (nr::__NR_io_pgetevents, aio::give_events),
        (nr::__NR_io_destroy, aio::destroy),
        (nr::__NR_lseek, counted!(space::lseek)),
        (nr::__NR_setuid, rights::change),
        (nr::__NR_setgid, rights::change),
        (nr::__NR_setreuid, rights::change),
        (nr::__NR_setregid, rights::change),
        (nr::__NR_setgroups, rights::change),
        (nr::__NR_setresuid, rights::change),
        (nr::__NR_setresgid, rights::change),
        (nr::__NR_setfsuid, rights::change),
        (nr::__NR_setfsgid, rights::change),
        (nr::__NR_capset, rights::change),
        (nr::__NR_setns, rights::change),
        (nr::__NR_prctl, rights::restrict),
        (nr::__NR_seccomp, rights::restrict),
        (nr::__NR_umask, names::umask),
        (nr::__NR_getdents, counted!(listing::list)),
        (nr::__NR_getdents64, counted!(listing::list)),
        (nr::__NR_setrlimit, limit::set),
        (nr::__NR_prlimit64, limit::set),
        (nr::__NR_truncate, counted!(space::truncate)),
        (nr::__NR_ftruncate, counted!(space::ftruncate)),
        (nr::__NR_fallocate, counted!(space::fallocate)),
        (nr::__NR_fsync, space::sync),
        (nr::__NR_fdatasync, space::sync),
        (nr::__NR_sync_file_range, space::sync),
        (nr::__NR_syncfs, space::sync_file_system),
        (nr::__NR_fadvise64, counted!(space::advise)),
        (nr::__NR_readahead, counted!(space::advise)),
        (nr::__NR_ioctl, counted!(space::ioctl)),
        (nr::__NR_open, counted!(open::open)),
        (nr::__NR_creat, counted!(open::creat)),
        (nr::__NR_openat, counted!(open::openat)),
        (nr::__NR_openat2, counted!(open::openat2)),
        (nr::__NR_stat, counted!(attributes::stat)),
        (nr::__NR_lstat, counted!(attributes::lstat)),
        (nr::__NR_fstat, counted!(attributes::fstat)),
        (nr::__NR_newfstatat, counted!(attributes::newfstatat)),
        (nr::__NR_statx, counted!(attributes::statx)),
        (nr::__NR_access, counted!(attributes::access)),
        (nr::__NR_faccessat, counted!(attributes::faccessat)),
        (nr::__NR_faccessat2, counted!(attributes::faccessat)),
        (nr::__NR_chmod, counted!(attributes::chmod)),
        (nr::__NR_fchmod, counted!(attributes::fchmod)),
        (nr::__NR_fchmodat, counted!(attributes::fchmodat)),
        (nr::__NR_fchmodat2, counted!(attributes::fchmodat)),
        (nr::__NR_chown, counted!(attributes::chown)),
        (nr::__NR_lchown, counted!(attributes::lchown)),
        (nr::__NR_fchown, counted!(attributes::fchown)),
        (nr::__NR_fchownat, counted!(attributes::fchownat)),
        (nr::__NR_utime, counted!(attributes::utime)),
        (nr::__NR_utimes, counted!(attributes::utimes)),
        (nr::__NR_futimesat, counted!(attributes::futimesat)),
        (nr::__NR_utimensat, counted!(attributes::utimensat)),
        (nr::__NR_statfs, counted!(attributes::statfs)),
        (nr::__NR_fstatfs, counted!(attributes::fstatfs)),
        (nr::__NR_chdir, directory::chdir),
        (nr::__NR_fchdir, directory::fchdir),
        (nr::__NR_getcwd, directory::getcwd),
        (nr::__NR_mkdir, counted!(names::mkdir)),
        (nr::__NR_mkdirat, counted!(names::mkdirat)),
        (nr::__NR_rmdir, counted!(names::rmdir)),
        (nr::__NR_unlink, counted!(names::unlink)),
        (nr::__NR_unlinkat, counted!(names::unlinkat)),
        (nr::__NR_rename, counted!(names::rename)),
        (nr::__NR_renameat, counted!(names::renameat)),
        (nr::__NR_renameat2, counted!(names::renameat)),
        (nr::__NR_link, counted!(names::link)),
        (nr::__NR_linkat, counted!(names::linkat)),
        (nr::__NR_symlink, counted!(names::symlink)),
        (nr::__NR_symlinkat, counted!(names::symlinkat)),
        (nr::__NR_mknod, counted!(names::mknod)),
        (nr::__NR_mknodat, counted!(names::mknodat)),
        (nr::__NR_readlink, counted!(names::readlink)),
        (nr::__NR_readlinkat, counted!(names::readlink)),
        (nr::__NR_fanotify_init, events::make_group),
        (nr::__NR_inotify_add_watch, counted!(watch::by_anchor)),
        (nr::__NR_fanotify_mark, counted!(watch::by_anchor)),
        (nr::__NR_name_to_handle_at, counted!(watch::by_anchor)),
        (nr::__NR_open_by_handle_at, counted!(watch::open_handle)),
        (nr::__NR_chroot, root::chroot),
        (nr::__NR_setxattrat, watch::absent),
        (nr::__NR_getxattrat, watch::absent),
        (nr::__NR_listxattrat, watch::absent),
        (nr::__NR_removexattrat, watch::absent),
        (nr::__NR_file_getattr, watch::absent),
        (nr::__NR_file_setattr, watch::absent),
        (nr::__NR_getxattr, counted!(xattr::get)),
        (nr::__NR_lgetxattr, counted!(xattr::get)),
        (nr::__NR_fgetxattr, counted!(xattr::fget)),
        (nr::__NR_listxattr, counted!(xattr::list)),
        (nr::__NR_llistxattr, counted!(xattr::list)),
        (nr::__NR_flistxattr, counted!(xattr::flist)),
        (nr::__NR_setxattr, counted!(xattr::set)),
        (nr::__NR_lsetxattr, counted!(xattr::set)),
        (nr::__NR_fsetxattr, counted!(xattr::fset)),
        (nr::__NR_removexattr, counted!(xattr::remove)),
        (nr::__NR_lremovexattr, counted!(xattr::remove)),
        (nr::__NR_fremovexattr, counted!(xattr::fremove)),
    ];
    let mut handlers: [Handler; NUMBER_COUNT] = [pass; NUMBER_COUNT];
    let mut index = 0;
    while index < served.len() {
        handlers[served[index].0 as usize] = served[index].1;
        index += 1;
    }
    handlers
}

/// Whether a descriptor is ours.
pub(crate) fn is_ours(descriptor: sys::RawFd) -> bool {
    if process_state::may_be_guest() && process_state::is_guest() {
        crate::guest::is_anchor(descriptor)
    } else {
        OPEN.lookup(descriptor).is_some()
    }
}

/// The kernel's affair, as the table says. It has one address, by which the table is compared.
#[inline(never)]
fn pass(_: &mut Call) -> Verdict {
    Verdict::Pass
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{ROWS, Way};

    #[test]
    fn what_the_table_says_is_served_is_and_nothing_else() {
        for (number, row) in ROWS.iter().enumerate() {
            let served = !core::ptr::fn_addr_eq(handler(number), pass as Handler);
            assert_eq!(served, matches!(row.way, Way::Serve | Way::Observe), "{number} {}", row.name);
        }
    }
}
