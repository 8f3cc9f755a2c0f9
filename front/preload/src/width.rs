//! How much of an argument's register the kernel looks at.
//!
//! The kernel takes an argument of type `int` or `unsigned int` from the lower half of its
//! register, and a file mode (`umode_t`) from the lower quarter, whatever the rest of the register
//! holds. A handler that compared the whole register would take a call for another one than the
//! kernel does, and leave a call to the kernel that concerns the array. So these arguments are cut
//! before a handler sees them.
//!
//! Descriptors that the table names ([`crate::table::Row`]) are not repeated here: each handler
//! takes a descriptor as [`sys::RawFd`], which is 32 bits. The types are those of the kernel's
//! system calls (SYSCALL_DEFINE), as tracefs shows them under `events/syscalls`. `cargo x differ`
//! draws arguments with bits in the upper half and compares what is answered.

use linux_raw_sys::general as nr;

/// The arguments of a call that are cut, by their indices: `words` to 32 bits, `modes` to 16.
pub(crate) struct Width {
    pub(crate) number: usize,
    pub(crate) words: &'static [u8],
    pub(crate) modes: &'static [u8],
}

const fn words(number: u32, words: &'static [u8]) -> Width {
    Width { number: number as usize, words, modes: &[] }
}

const fn modes(number: u32, modes: &'static [u8], words: &'static [u8]) -> Width {
    Width { number: number as usize, words, modes }
}

/// Names the arguments that are cut, for each served call that has any.
#[rustfmt::skip]
pub(crate) const WIDTHS: &[Width] = &[
    modes(nr::__NR_open, &[2], &[1]),
    words(nr::__NR_lseek, &[2]),
    words(nr::__NR_rt_sigaction, &[0]),
    words(nr::__NR_rt_sigprocmask, &[0]),
    words(nr::__NR_ioctl, &[1]),
    words(nr::__NR_access, &[1]),
    words(nr::__NR_msync, &[2]),
    words(nr::__NR_madvise, &[2]),
    words(nr::__NR_shmat, &[0, 2]),
    words(nr::__NR_connect, &[0, 2]),
    words(nr::__NR_accept, &[0]),
    words(nr::__NR_sendto, &[0, 3, 5]),
    words(nr::__NR_recvfrom, &[0, 3]),
    words(nr::__NR_sendmsg, &[0, 2]),
    words(nr::__NR_recvmsg, &[0, 2]),
    words(nr::__NR_bind, &[0, 2]),
    words(nr::__NR_getsockname, &[0]),
    words(nr::__NR_getpeername, &[0]),
    words(nr::__NR_fcntl, &[1]),
    words(nr::__NR_flock, &[1]),
    words(nr::__NR_getdents, &[2]),
    modes(nr::__NR_mkdir, &[1], &[]),
    modes(nr::__NR_creat, &[1], &[]),
    words(nr::__NR_readlink, &[2]),
    modes(nr::__NR_chmod, &[1], &[]),
    modes(nr::__NR_fchmod, &[1], &[]),
    words(nr::__NR_chown, &[1, 2]),
    words(nr::__NR_fchown, &[1, 2]),
    words(nr::__NR_lchown, &[1, 2]),
    words(nr::__NR_umask, &[0]),
    words(nr::__NR_setuid, &[0]),
    words(nr::__NR_setgid, &[0]),
    words(nr::__NR_setreuid, &[0, 1]),
    words(nr::__NR_setregid, &[0, 1]),
    words(nr::__NR_setgroups, &[0]),
    words(nr::__NR_setresuid, &[0, 1, 2]),
    words(nr::__NR_setresgid, &[0, 1, 2]),
    words(nr::__NR_setfsuid, &[0]),
    words(nr::__NR_setfsgid, &[0]),
    modes(nr::__NR_mknod, &[1], &[2]),
    words(nr::__NR_prctl, &[0]),
    words(nr::__NR_setrlimit, &[0]),
    words(nr::__NR_umount2, &[1]),
    words(nr::__NR_swapon, &[1]),
    words(nr::__NR_quotactl, &[0, 2]),
    words(nr::__NR_setxattr, &[4]),
    words(nr::__NR_lsetxattr, &[4]),
    words(nr::__NR_fsetxattr, &[4]),
    words(nr::__NR_io_setup, &[0]),
    words(nr::__NR_getdents64, &[2]),
    words(nr::__NR_fadvise64, &[3]),
    words(nr::__NR_exit_group, &[0]),
    words(nr::__NR_inotify_add_watch, &[2]),
    modes(nr::__NR_openat, &[3], &[2]),
    modes(nr::__NR_mkdirat, &[2], &[]),
    modes(nr::__NR_mknodat, &[2], &[3]),
    words(nr::__NR_fchownat, &[2, 3, 4]),
    words(nr::__NR_newfstatat, &[3]),
    words(nr::__NR_unlinkat, &[2]),
    words(nr::__NR_linkat, &[4]),
    words(nr::__NR_readlinkat, &[3]),
    modes(nr::__NR_fchmodat, &[2], &[]),
    words(nr::__NR_faccessat, &[2]),
    words(nr::__NR_splice, &[5]),
    words(nr::__NR_sync_file_range, &[3]),
    words(nr::__NR_utimensat, &[3]),
    words(nr::__NR_fallocate, &[1]),
    words(nr::__NR_accept4, &[0, 3]),
    words(nr::__NR_dup3, &[2]),
    words(nr::__NR_recvmmsg, &[0, 2, 3]),
    words(nr::__NR_fanotify_init, &[0, 1]),
    words(nr::__NR_fanotify_mark, &[1]),
    words(nr::__NR_prlimit64, &[0, 1]),
    words(nr::__NR_name_to_handle_at, &[4]),
    words(nr::__NR_open_by_handle_at, &[0, 2]),
    words(nr::__NR_sendmmsg, &[0, 2, 3]),
    words(nr::__NR_setns, &[0, 1]),
    words(nr::__NR_renameat2, &[4]),
    words(nr::__NR_seccomp, &[0, 1]),
    words(nr::__NR_execveat, &[4]),
    words(nr::__NR_copy_file_range, &[5]),
    words(nr::__NR_preadv2, &[5]),
    words(nr::__NR_pwritev2, &[5]),
    words(nr::__NR_pkey_mprotect, &[3]),
    words(nr::__NR_statx, &[2, 3]),
    words(nr::__NR_io_uring_setup, &[0]),
    words(nr::__NR_open_tree, &[2]),
    words(nr::__NR_move_mount, &[4]),
    words(nr::__NR_fsconfig, &[0, 1, 4]),
    words(nr::__NR_fspick, &[2]),
    words(nr::__NR_close_range, &[0, 1, 2]),
    words(nr::__NR_pidfd_getfd, &[0, 1, 2]),
    words(nr::__NR_faccessat2, &[2, 3]),
    words(nr::__NR_process_madvise, &[0, 2, 3, 4]), // Of its count import_iovec() takes 32 bits.
    words(nr::__NR_mount_setattr, &[2]),
    words(nr::__NR_quotactl_fd, &[1, 2]),
    modes(nr::__NR_fchmodat2, &[2], &[3]),
    words(nr::__NR_setxattrat, &[2]),
    words(nr::__NR_getxattrat, &[2]),
    words(nr::__NR_listxattrat, &[2]),
    words(nr::__NR_removexattrat, &[2]),
    words(nr::__NR_open_tree_attr, &[2]),
    words(nr::__NR_file_getattr, &[4]),
    words(nr::__NR_file_setattr, &[4]),
];
