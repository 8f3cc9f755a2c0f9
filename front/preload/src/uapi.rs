//! Numbers of the kernel's interface that handlers compare arguments with or give to the kernel,
//! each defined once.
//!
//! Most stand here in the width of a system call's argument. Where `linux-raw-sys` has a number,
//! this module only widens it; the others are defined here, each group with the header of the
//! kernel that defines it.

use linux_raw_sys::general::fsconfig_command;
use linux_raw_sys::{auxvec, general, ioctl, loop_device, net, prctl};
use units::PAGE_BYTES;

/// Defines constants of a type by those of a module of `linux-raw-sys`.
macro_rules! widened {
    ($($type:ty: $module:ident: $($name:ident),+;)+) => {
        $($(pub(crate) const $name: $type = $module::$name as $type;)+)+
    };
}

widened! {
    usize: general: IN_DONT_FOLLOW, MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE;
    usize: general: MS_ASYNC, MS_INVALIDATE, MS_SYNC, PATH_MAX, RWF_APPEND, RWF_DSYNC, RWF_SYNC;
    usize: general: SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET;
    usize: general: SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGXFSZ;
    usize: general: SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK, SPLICE_F_NONBLOCK, SS_AUTODISARM, SS_DISABLE, UIO_MAXIOV;
    u64: general: POLLIN, SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTORER, SA_SIGINFO;
    usize: auxvec: AT_BASE, AT_ENTRY, AT_EXECFN, AT_PHDR, AT_PHNUM, AT_RANDOM, AT_SECURE, AT_SYSINFO_EHDR;
    usize: fsconfig_command: FSCONFIG_SET_FD, FSCONFIG_SET_PATH, FSCONFIG_SET_PATH_EMPTY, FSCONFIG_SET_STRING;
    usize: ioctl: FIBMAP, FICLONE, FICLONERANGE, FIGETBSZ, FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX, FIONREAD, FIOQSIZE;
    usize: ioctl: FS_IOC_FSGETXATTR, FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETFLAGS;
    usize: loop_device: LOOP_CHANGE_FD, LOOP_CONFIGURE, LOOP_SET_FD;
    u16: net: AF_UNIX;
    i32: net: SCM_RIGHTS, SOL_SOCKET;
    usize: net: MSG_CMSG_CLOEXEC, MSG_NOSIGNAL, MSG_PEEK, SO_TYPE, UNIX_PATH_MAX;
    usize: prctl: PR_GET_AUXV, PR_GET_SECCOMP, PR_SET_NAME, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON;
}

/// The most bytes that one call moves (`MAX_RW_COUNT` of the kernel's <linux/fs.h>).
pub(crate) const MAX_RW_COUNT: usize = i32::MAX as usize & !(PAGE_BYTES - 1);

/// The flags of pwritev2(2) that only newer headers have (<linux/fs.h>).
pub(crate) const RWF_NOAPPEND: usize = 0x20;
pub(crate) const RWF_DONTCACHE: usize = 0x80;
pub(crate) const RWF_NOSIGNAL: usize = 0x100;

/// States what kcmp(2) compares (<linux/kcmp.h>).
pub(crate) const KCMP_FILE: usize = 0;
pub(crate) const KCMP_VM: usize = 1;
pub(crate) const KCMP_FILES: usize = 2;

/// Flags of close_range(2) (<linux/close_range.h>).
pub(crate) const CLOSE_RANGE_UNSHARE: u32 = 2;
pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// A flag of fanotify_mark(2) (<linux/fanotify.h>).
pub(crate) const FAN_MARK_DONT_FOLLOW: usize = 4;

/// Flags of socket(2) beside the type (<linux/net.h>).
pub(crate) const SOCK_CLOEXEC: u32 = general::O_CLOEXEC;
pub(crate) const SOCK_NONBLOCK: u32 = general::O_NONBLOCK;

/// The command of quotactl(2) that names a file of quotas (<linux/quota.h>).
pub(crate) const Q_QUOTAON: u32 = 0x80_0002;

/// The command of shmctl(2) that asks about a segment (<linux/ipc.h>).
pub(crate) const IPC_STAT: usize = 2;
/// Flags of shmat(2) (<linux/shm.h>).
pub(crate) const SHM_RND: usize = 0o20_000;
pub(crate) const SHM_REMAP: usize = 0o40_000;

/// Requests of ioctl(2) that ask about a file system (<linux/fs.h>).
pub(crate) const FS_IOC_GETFSUUID: usize = 0x8011_1500;
pub(crate) const FS_IOC_GETFSSYSFSPATH: usize = 0x8081_1501;
/// Requests of ioctl(2) that are older forms of fallocate(2) (<linux/falloc.h>).
pub(crate) const FS_IOC_RESVSP: usize = 0x4030_5828;
pub(crate) const FS_IOC_UNRESVSP: usize = 0x4030_5829;
pub(crate) const FS_IOC_RESVSP64: usize = 0x4030_582a;
pub(crate) const FS_IOC_UNRESVSP64: usize = 0x4030_582b;
pub(crate) const FS_IOC_ZERO_RANGE: usize = 0x4030_5839;
/// The request of ioctl(2) that exchanges bytes of two files of ext4 (fs/ext4/ext4.h).
pub(crate) const EXT4_IOC_MOVE_EXT: usize = 0xc028_660f;
/// The request of ioctl(2) that exchanges bytes of two files of XFS (fs/xfs/libxfs/xfs_fs.h).
pub(crate) const XFS_IOC_EXCHANGE_RANGE: usize = 0x4028_5881;
/// The request of ioctl(2) that gives a file to the kernel for a server of FUSE (<linux/fuse.h>).
pub(crate) const FUSE_DEV_IOC_BACKING_OPEN: usize = 0x4010_e501;
