//! The file system calls of the Linux ABI, and what becomes of each: the one narrow waist between
//! program and library.
//!
//! One row per number of the kernel's table, so that a number is decided upon, not forgotten.
//! Arguments that are descriptors or paths are named by their index; a call whose only such
//! argument is its first, a descriptor, is filtered by it before any other work.

use crate::mappings::lend;
use crate::width::{WIDTHS, Width};
use linux_raw_sys::general as nr;

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Answered by the library if it concerns an array.
    Serve,
    /// Looked at before it runs; always runs.
    Observe,
    /// Answered with ENOSYS.
    Refuse,
    /// Not looked at: its sites are not patched.
    Pass,
}
use Way::{Observe, Pass, Refuse, Serve};

/// One system call.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    /// Bit per argument that is a descriptor.
    pub(crate) descriptors: u8,
    /// Bit per argument that is a path.
    pub(crate) paths: u8,
    /// Bit per argument of which the kernel looks at 32 bits (width.rs).
    pub(crate) words: u8,
    /// Bit per argument of which the kernel looks at 16 bits.
    pub(crate) modes: u8,
    /// Why, where it is not plain. For readers and tests.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(crate) note: &'static str,
}

impl Row {
    /// Cuts the arguments of a call to what the kernel looks at.
    #[inline]
    pub(crate) fn cut(&self, args: &mut [usize; 6]) {
        let mut indices = self.words | self.modes;
        while indices != 0 {
            let index = indices.trailing_zeros() as usize;
            let seen = if self.modes >> index & 1 == 1 { u16::MAX as usize } else { u32::MAX as usize };
            if let Some(argument) = args.get_mut(index) {
                *argument &= seen;
            }
            indices &= indices - 1;
        }
    }

    /// Whether only the first argument can concern an array, and it is a descriptor.
    pub(crate) const fn by_first_descriptor(&self) -> bool {
        self.descriptors == 1 && self.paths == 0
    }
}

/// One more than the largest number known.
pub(crate) const NUMBER_COUNT: usize = 470;

/// The table, indexed by number. Numbers the ABI never assigned pass.
pub(crate) static ROWS: [Row; NUMBER_COUNT] = table();

/// Whether a site with this number is patched; None for a number that is not constant. A call that
/// passes is, too, if it may store to a buffer of the program's that is a mapping.
pub(crate) fn wants_site(number: Option<u32>) -> bool {
    number.is_none_or(|number| is_served(number) || lend::stores(number))
}

/// Whether a call with this number may be the library's affair.
pub(crate) fn is_served(number: u32) -> bool {
    ROWS.get(number as usize).is_some_and(|row| row.way != Pass)
}

struct Line(usize, Row);

/// Tells whether a call is one that moves bytes of a file or another stream. One that fails with EFAULT
/// has moved none, and may be made once more.
pub(crate) const fn moves_bytes(number: usize) -> bool {
    matches!(
        number as u32,
        nr::__NR_read
            | nr::__NR_pread64
            | nr::__NR_readv
            | nr::__NR_preadv
            | nr::__NR_preadv2
            | nr::__NR_write
            | nr::__NR_pwrite64
            | nr::__NR_writev
            | nr::__NR_pwritev
            | nr::__NR_pwritev2
    )
}

const fn table() -> [Row; NUMBER_COUNT] {
    let none = Row { name: "", way: Pass, descriptors: 0, paths: 0, words: 0, modes: 0, note: "not a system call" };
    let mut rows = [none; NUMBER_COUNT];
    let mut index = 0;
    while index < LINES.len() {
        let Line(number, row) = &LINES[index];
        rows[*number] = *row;
        index += 1;
    }
    index = 0;
    while index < WIDTHS.len() {
        let Width { number, words, modes } = &WIDTHS[index];
        (rows[*number].words, rows[*number].modes) = (bits(words), bits(modes));
        index += 1;
    }
    rows
}

const fn bits(arguments: &[u8]) -> u8 {
    let (mut bits, mut index) = (0, 0);
    while index < arguments.len() {
        bits |= 1 << arguments[index];
        index += 1;
    }
    bits
}

const fn row<const D: usize, const P: usize>(
    number: usize,
    name: &'static str,
    way: Way,
    descriptors: [u8; D],
    paths: [u8; P],
    note: &'static str,
) -> Line {
    Line(number, Row { name, way, descriptors: bits(&descriptors), paths: bits(&paths), words: 0, modes: 0, note })
}

/// A call that has nothing to do with files.
const fn pass(number: usize, name: &'static str) -> Line {
    Line(number, Row { name, way: Pass, descriptors: 0, paths: 0, words: 0, modes: 0, note: "" })
}

#[rustfmt::skip]
static LINES: [Line; 382] = [
    row(0, "read", Serve, [0], [], ""),
    row(1, "write", Serve, [0], [], ""),
    row(2, "open", Serve, [], [0], ""),
    row(3, "close", Serve, [0], [], ""),
    row(4, "stat", Serve, [], [0], ""),
    row(5, "fstat", Serve, [0], [], ""),
    row(6, "lstat", Serve, [], [0], ""),
    row(7, "poll", Pass, [], [], "an anchor is a real descriptor"),
    row(8, "lseek", Serve, [0], [], ""),
    row(9, "mmap", Serve, [4], [], "also how ld.so loads objects, which are patched in turn"),
    row(10, "mprotect", Serve, [], [], "a mapping of a file may begin to be stored to"),
    row(11, "munmap", Serve, [], [], "a mapping of a file may be made of pieces of its members"),
    pass(12, "brk"),
    row(13, "rt_sigaction", Serve, [], [], "handlers are kept out of the library"),
    row(14, "rt_sigprocmask", Serve, [], [], "handlers are kept out of the library"),
    row(15, "rt_sigreturn", Pass, [], [], "left unpatched: needs its own stack or is too hot"),
    row(16, "ioctl", Serve, [0], [], ""),
    row(17, "pread64", Serve, [0], [], ""),
    row(18, "pwrite64", Serve, [0], [], ""),
    row(19, "readv", Serve, [0], [], ""),
    row(20, "writev", Serve, [0], [], ""),
    row(21, "access", Serve, [], [0], ""),
    pass(22, "pipe"),
    row(23, "select", Pass, [], [], "an anchor is a real descriptor"),
    pass(24, "sched_yield"),
    row(25, "mremap", Serve, [], [], "a mapping of a file may be made of pieces of its members"),
    row(26, "msync", Serve, [], [], "a mapping of a file may be made of pieces of its members"),
    row(27, "mincore", Pass, [], [], "acts on pages, whatever they map"),
    row(28, "madvise", Serve, [], [], "some advice concerns the file, or what is known of its pages"),
    pass(29, "shmget"),
    row(30, "shmat", Serve, [], [], "a segment may take the place of a mapping of the array (SHM_REMAP)"),
    pass(31, "shmctl"),
    row(32, "dup", Serve, [0], [], ""),
    row(33, "dup2", Serve, [0, 1], [], ""),
    pass(34, "pause"),
    pass(35, "nanosleep"),
    pass(36, "getitimer"),
    pass(37, "alarm"),
    pass(38, "setitimer"),
    pass(39, "getpid"),
    row(40, "sendfile", Serve, [0, 1], [], ""),
    pass(41, "socket"),
    row(42, "connect", Serve, [], [], "a local socket may lie on the array"),
    row(43, "accept", Serve, [], [], "a socket on the array is told by its path there"),
    row(44, "sendto", Serve, [], [], "a local socket may lie on the array"),
    row(45, "recvfrom", Serve, [], [], "a socket on the array is told by its path there"),
    row(46, "sendmsg", Serve, [], [], "a descriptor sent away is shared from then on"),
    row(47, "recvmsg", Serve, [], [], "a descriptor received may be an anchor, a sender a socket on the array"),
    pass(48, "shutdown"),
    row(49, "bind", Serve, [], [], "a local socket may lie on the array"),
    pass(50, "listen"),
    row(51, "getsockname", Serve, [], [], "a socket on the array is told by its path there"),
    row(52, "getpeername", Serve, [], [], "a socket on the array is told by its path there"),
    pass(53, "socketpair"),
    pass(54, "setsockopt"),
    pass(55, "getsockopt"),
    row(56, "clone", Observe, [], [], "offsets go to the kernel before a child shares them"),
    row(57, "fork", Observe, [], [], "offsets go to the kernel before a child shares them"),
    row(58, "vfork", Observe, [], [], "offsets go to the kernel before a child shares them"),
    row(59, "execve", Observe, [], [0], "the next program is given the library and the open files"),
    row(60, "exit", Pass, [], [], "left unpatched: needs its own stack or is too hot"),
    pass(61, "wait4"),
    pass(62, "kill"),
    pass(63, "uname"),
    pass(64, "semget"),
    pass(65, "semop"),
    pass(66, "semctl"),
    pass(67, "shmdt"),
    pass(68, "msgget"),
    pass(69, "msgsnd"),
    pass(70, "msgrcv"),
    pass(71, "msgctl"),
    row(72, "fcntl", Serve, [0], [], ""),
    row(73, "flock", Serve, [0], [], ""),
    row(74, "fsync", Serve, [0], [], ""),
    row(75, "fdatasync", Serve, [0], [], ""),
    row(76, "truncate", Serve, [], [0], ""),
    row(77, "ftruncate", Serve, [0], [], ""),
    row(78, "getdents", Serve, [0], [], "an older form of getdents64"),
    row(79, "getcwd", Serve, [], [], "the directory may be an anchor"),
    row(80, "chdir", Serve, [], [0], ""),
    row(81, "fchdir", Serve, [0], [], ""),
    row(82, "rename", Serve, [], [0, 1], ""),
    row(83, "mkdir", Serve, [], [0], ""),
    row(84, "rmdir", Serve, [], [0], ""),
    row(85, "creat", Serve, [], [0], ""),
    row(86, "link", Serve, [], [0, 1], ""),
    row(87, "unlink", Serve, [], [0], ""),
    row(88, "symlink", Serve, [], [0, 1], ""),
    row(89, "readlink", Serve, [], [0], ""),
    row(90, "chmod", Serve, [], [0], ""),
    row(91, "fchmod", Serve, [0], [], ""),
    row(92, "chown", Serve, [], [0], ""),
    row(93, "fchown", Serve, [0], [], ""),
    row(94, "lchown", Serve, [], [0], ""),
    row(95, "umask", Serve, [], [], "not while another thread makes a name: all members get the same mode"),
    pass(96, "gettimeofday"),
    pass(97, "getrlimit"),
    pass(98, "getrusage"),
    pass(99, "sysinfo"),
    pass(100, "times"),
    pass(101, "ptrace"),
    pass(102, "getuid"),
    pass(103, "syslog"),
    pass(104, "getgid"),
    row(105, "setuid", Observe, [], [], "files kept open by former rights are closed"),
    row(106, "setgid", Observe, [], [], "files kept open by former rights are closed"),
    pass(107, "geteuid"),
    pass(108, "getegid"),
    pass(109, "setpgid"),
    pass(110, "getppid"),
    pass(111, "getpgrp"),
    pass(112, "setsid"),
    row(113, "setreuid", Observe, [], [], "files kept open by former rights are closed"),
    row(114, "setregid", Observe, [], [], "files kept open by former rights are closed"),
    pass(115, "getgroups"),
    row(116, "setgroups", Observe, [], [], "files kept open by former rights are closed"),
    row(117, "setresuid", Observe, [], [], "files kept open by former rights are closed"),
    pass(118, "getresuid"),
    row(119, "setresgid", Observe, [], [], "files kept open by former rights are closed"),
    pass(120, "getresgid"),
    pass(121, "getpgid"),
    row(122, "setfsuid", Observe, [], [], "files kept open by former rights are closed"),
    row(123, "setfsgid", Observe, [], [], "files kept open by former rights are closed"),
    pass(124, "getsid"),
    pass(125, "capget"),
    row(126, "capset", Observe, [], [], "files kept open by former rights are closed"),
    pass(127, "rt_sigpending"),
    pass(128, "rt_sigtimedwait"),
    pass(129, "rt_sigqueueinfo"),
    row(130, "rt_sigsuspend", Serve, [], [], "a handler that ends the wait may fault"),
    pass(131, "sigaltstack"),
    row(132, "utime", Serve, [], [0], ""),
    row(133, "mknod", Serve, [], [0], ""),
    row(134, "uselib", Pass, [], [0], "not in 64-bit kernels"),
    pass(135, "personality"),
    pass(136, "ustat"),
    row(137, "statfs", Serve, [], [0], ""),
    row(138, "fstatfs", Serve, [0], [], ""),
    pass(139, "sysfs"),
    pass(140, "getpriority"),
    pass(141, "setpriority"),
    pass(142, "sched_setparam"),
    pass(143, "sched_getparam"),
    pass(144, "sched_setscheduler"),
    pass(145, "sched_getscheduler"),
    pass(146, "sched_get_priority_max"),
    pass(147, "sched_get_priority_min"),
    pass(148, "sched_rr_get_interval"),
    row(149, "mlock", Pass, [], [], "acts on pages, whatever they map"),
    row(150, "munlock", Pass, [], [], "acts on pages, whatever they map"),
    row(151, "mlockall", Pass, [], [], "acts on pages, whatever they map"),
    row(152, "munlockall", Pass, [], [], "acts on pages, whatever they map"),
    pass(153, "vhangup"),
    pass(154, "modify_ldt"),
    row(155, "pivot_root", Serve, [], [0, 1], "into the array it is refused; elsewhere its paths are gone"),
    pass(156, "_sysctl"),
    row(157, "prctl", Observe, [], [], "the process may forbid itself system calls"),
    pass(158, "arch_prctl"),
    pass(159, "adjtimex"),
    row(160, "setrlimit", Serve, [], [], "RLIMIT_FSIZE holds for files of the array"),
    row(161, "chroot", Serve, [], [0], "into the array it is refused; elsewhere its paths are gone"),
    row(162, "sync", Serve, [], [], "drains what was stored"),
    row(163, "acct", Serve, [], [0], "a file of the array is refused: the kernel would write to an anchor"),
    pass(164, "settimeofday"),
    row(165, "mount", Serve, [], [0, 1], "within the array a directory is bound on every member"),
    row(166, "umount2", Serve, [], [0], "of what mount bound"),
    row(167, "swapon", Serve, [], [0], "a file of the array is refused: the kernel would write to an anchor"),
    row(168, "swapoff", Serve, [], [0], "as swapon"),
    pass(169, "reboot"),
    pass(170, "sethostname"),
    pass(171, "setdomainname"),
    pass(172, "iopl"),
    pass(173, "ioperm"),
    pass(174, "create_module"),
    pass(175, "init_module"),
    pass(176, "delete_module"),
    pass(177, "get_kernel_syms"),
    pass(178, "query_module"),
    row(179, "quotactl", Serve, [], [1], "the array has no quotas, and is no device"),
    pass(180, "nfsservctl"),
    pass(181, "getpmsg"),
    pass(182, "putpmsg"),
    pass(183, "afs_syscall"),
    pass(184, "tuxcall"),
    pass(185, "security"),
    pass(186, "gettid"),
    row(187, "readahead", Serve, [0], [], ""),
    row(188, "setxattr", Serve, [], [0], ""),
    row(189, "lsetxattr", Serve, [], [0], ""),
    row(190, "fsetxattr", Serve, [0], [], ""),
    row(191, "getxattr", Serve, [], [0], ""),
    row(192, "lgetxattr", Serve, [], [0], ""),
    row(193, "fgetxattr", Serve, [0], [], ""),
    row(194, "listxattr", Serve, [], [0], ""),
    row(195, "llistxattr", Serve, [], [0], ""),
    row(196, "flistxattr", Serve, [0], [], ""),
    row(197, "removexattr", Serve, [], [0], ""),
    row(198, "lremovexattr", Serve, [], [0], ""),
    row(199, "fremovexattr", Serve, [0], [], ""),
    pass(200, "tkill"),
    pass(201, "time"),
    row(202, "futex", Pass, [], [], "left unpatched: needs its own stack or is too hot"),
    pass(203, "sched_setaffinity"),
    pass(204, "sched_getaffinity"),
    pass(205, "set_thread_area"),
    row(206, "io_setup", Serve, [], [], "programs must ask for events by io_getevents"),
    row(207, "io_destroy", Serve, [], [], "events of the array's files go with the context"),
    row(208, "io_getevents", Serve, [], [], "events of placeholders are replaced"),
    row(209, "io_submit", Serve, [], [], "requests name descriptors"),
    row(210, "io_cancel", Pass, [], [], "a request on the array is done: the kernel finds none to cancel"),
    pass(211, "get_thread_area"),
    pass(212, "lookup_dcookie"),
    pass(213, "epoll_create"),
    pass(214, "epoll_ctl_old"),
    pass(215, "epoll_wait_old"),
    row(216, "remap_file_pages", Serve, [], [], "a mapping of a file may be made of pieces of its members"),
    row(217, "getdents64", Serve, [0], [], "an anchor lists the names of every member; listings of the process' descriptors leave ours out"),
    pass(218, "set_tid_address"),
    pass(219, "restart_syscall"),
    pass(220, "semtimedop"),
    row(221, "fadvise64", Serve, [0], [], ""),
    pass(222, "timer_create"),
    pass(223, "timer_settime"),
    pass(224, "timer_gettime"),
    pass(225, "timer_getoverrun"),
    pass(226, "timer_delete"),
    pass(227, "clock_settime"),
    pass(228, "clock_gettime"),
    pass(229, "clock_getres"),
    pass(230, "clock_nanosleep"),
    row(231, "exit_group", Observe, [], [], "what the program leaves open is closed in order"),
    row(232, "epoll_wait", Pass, [], [], "an anchor is a real descriptor"),
    row(233, "epoll_ctl", Pass, [], [], "an anchor is a real descriptor"),
    pass(234, "tgkill"),
    row(235, "utimes", Serve, [], [0], ""),
    pass(236, "vserver"),
    row(237, "mbind", Pass, [], [], "acts on pages, whatever they map"),
    pass(238, "set_mempolicy"),
    pass(239, "get_mempolicy"),
    pass(240, "mq_open"),
    pass(241, "mq_unlink"),
    pass(242, "mq_timedsend"),
    pass(243, "mq_timedreceive"),
    pass(244, "mq_notify"),
    pass(245, "mq_getsetattr"),
    pass(246, "kexec_load"),
    pass(247, "waitid"),
    pass(248, "add_key"),
    pass(249, "request_key"),
    pass(250, "keyctl"),
    pass(251, "ioprio_set"),
    pass(252, "ioprio_get"),
    pass(253, "inotify_init"),
    row(254, "inotify_add_watch", Serve, [0], [1], "watches the anchor"),
    pass(255, "inotify_rm_watch"),
    pass(256, "migrate_pages"),
    row(257, "openat", Serve, [0], [1], ""),
    row(258, "mkdirat", Serve, [0], [1], ""),
    row(259, "mknodat", Serve, [0], [1], ""),
    row(260, "fchownat", Serve, [0], [1], ""),
    row(261, "futimesat", Serve, [0], [1], ""),
    row(262, "newfstatat", Serve, [0], [1], ""),
    row(263, "unlinkat", Serve, [0], [1], ""),
    row(264, "renameat", Serve, [0, 2], [1, 3], ""),
    row(265, "linkat", Serve, [0, 2], [1, 3], ""),
    row(266, "symlinkat", Serve, [1], [0, 2], ""),
    row(267, "readlinkat", Serve, [0], [1], ""),
    row(268, "fchmodat", Serve, [0], [1], ""),
    row(269, "faccessat", Serve, [0], [1], ""),
    row(270, "pselect6", Serve, [], [], "a handler that ends the wait may fault"),
    row(271, "ppoll", Serve, [], [], "a handler that ends the wait may fault"),
    row(272, "unshare", Serve, [], [], "a thread may leave the others' descriptors or directory"),
    pass(273, "set_robust_list"),
    pass(274, "get_robust_list"),
    row(275, "splice", Serve, [0, 2], [], ""),
    row(276, "tee", Pass, [], [], "pipes only"),
    row(277, "sync_file_range", Serve, [0], [], ""),
    row(278, "vmsplice", Pass, [], [], "pipes only"),
    pass(279, "move_pages"),
    row(280, "utimensat", Serve, [0], [1], ""),
    row(281, "epoll_pwait", Serve, [], [], "a handler that ends the wait may fault"),
    pass(282, "signalfd"),
    pass(283, "timerfd_create"),
    pass(284, "eventfd"),
    row(285, "fallocate", Serve, [0], [], ""),
    pass(286, "timerfd_settime"),
    pass(287, "timerfd_gettime"),
    row(288, "accept4", Serve, [], [], "a socket on the array is told by its path there"),
    pass(289, "signalfd4"),
    pass(290, "eventfd2"),
    pass(291, "epoll_create1"),
    row(292, "dup3", Serve, [0, 1], [], ""),
    pass(293, "pipe2"),
    pass(294, "inotify_init1"),
    row(295, "preadv", Serve, [0], [], ""),
    row(296, "pwritev", Serve, [0], [], ""),
    pass(297, "rt_tgsigqueueinfo"),
    row(298, "perf_event_open", Pass, [], [], "does not read or write files of an array"),
    row(299, "recvmmsg", Serve, [], [], "a descriptor received may be an anchor"),
    row(300, "fanotify_init", Serve, [], [], "its events bring descriptors that may be anchors"),
    row(301, "fanotify_mark", Serve, [0, 3], [4], ""),
    row(302, "prlimit64", Serve, [], [], "RLIMIT_FSIZE holds for files of the array; set by another process it shows at the next exec"),
    row(303, "name_to_handle_at", Serve, [0], [1], ""),
    row(304, "open_by_handle_at", Serve, [], [], "what the handle names may be a member's copy of a file of the array"),
    pass(305, "clock_adjtime"),
    row(306, "syncfs", Serve, [0], [], ""),
    row(307, "sendmmsg", Serve, [], [], "a descriptor sent away is shared from then on"),
    row(308, "setns", Observe, [], [], "files kept open by former rights are closed"),
    pass(309, "getcpu"),
    pass(310, "process_vm_readv"),
    pass(311, "process_vm_writev"),
    pass(312, "kcmp"),
    row(313, "finit_module", Pass, [], [], "does not read or write files of an array"),
    pass(314, "sched_setattr"),
    pass(315, "sched_getattr"),
    row(316, "renameat2", Serve, [0, 2], [1, 3], ""),
    row(317, "seccomp", Observe, [], [], "the process may forbid itself system calls"),
    pass(318, "getrandom"),
    pass(319, "memfd_create"),
    pass(320, "kexec_file_load"),
    row(321, "bpf", Pass, [], [], "does not read or write files of an array"),
    row(322, "execveat", Observe, [0], [1], "the next program is given the library and the open files"),
    pass(323, "userfaultfd"),
    pass(324, "membarrier"),
    row(325, "mlock2", Pass, [], [], "acts on pages, whatever they map"),
    row(326, "copy_file_range", Serve, [0, 2], [], ""),
    row(327, "preadv2", Serve, [0], [], ""),
    row(328, "pwritev2", Serve, [0], [], ""),
    row(329, "pkey_mprotect", Serve, [], [], "as mprotect"),
    pass(330, "pkey_alloc"),
    pass(331, "pkey_free"),
    row(332, "statx", Serve, [0], [1], ""),
    row(333, "io_pgetevents", Serve, [], [], "as io_getevents"),
    pass(334, "rseq"),
    pass(335, "uretprobe"),
    pass(424, "pidfd_send_signal"),
    row(425, "io_uring_setup", Refuse, [], [], "the kernel would write to an anchor behind our back; programs fall back"),
    row(426, "io_uring_enter", Refuse, [], [], "a ring that is inherited or received would write to an anchor, too"),
    row(427, "io_uring_register", Refuse, [], [], "a ring that is inherited or received would write to an anchor, too"),
    row(428, "open_tree", Serve, [0], [1], "not of the array: programs fall back to mount(2)"),
    row(429, "move_mount", Serve, [0, 2], [1, 3], "a mount would hide one member's names"),
    pass(430, "fsopen"),
    row(431, "fsconfig", Serve, [], [], "paths and descriptors for file systems that are to be mounted"),
    row(432, "fsmount", Pass, [], [], "administration: means the host"),
    row(433, "fspick", Serve, [0], [1], "not of the array: programs fall back to mount(2)"),
    pass(434, "pidfd_open"),
    row(435, "clone3", Observe, [], [], "offsets go to the kernel before a child shares them"),
    row(436, "close_range", Serve, [], [], "first and last are bounds, not descriptors"),
    row(437, "openat2", Serve, [0], [1], ""),
    row(438, "pidfd_getfd", Serve, [], [], "a descriptor received may be an anchor"),
    row(439, "faccessat2", Serve, [0], [1], ""),
    row(440, "process_madvise", Serve, [], [], "a process may advise itself, also what concerns the file"),
    row(441, "epoll_pwait2", Serve, [], [], "a handler that ends the wait may fault"),
    row(442, "mount_setattr", Serve, [0], [1], "a mount would hide one member's names"),
    row(443, "quotactl_fd", Serve, [0], [], "the array has no quotas"),
    row(444, "landlock_create_ruleset", Pass, [], [], "does not read or write files of an array"),
    row(445, "landlock_add_rule", Pass, [], [], "does not read or write files of an array"),
    row(446, "landlock_restrict_self", Pass, [], [], "does not read or write files of an array"),
    pass(447, "memfd_secret"),
    pass(448, "process_mrelease"),
    pass(449, "futex_waitv"),
    pass(450, "set_mempolicy_home_node"),
    row(451, "cachestat", Pass, [0], [], "tells of the anchor: what one member has cached"),
    row(452, "fchmodat2", Serve, [0], [1], ""),
    pass(453, "map_shadow_stack"),
    pass(454, "futex_wake"),
    pass(455, "futex_wait"),
    pass(456, "futex_requeue"),
    pass(457, "statmount"),
    pass(458, "listmount"),
    pass(459, "lsm_get_self_attr"),
    pass(460, "lsm_set_self_attr"),
    pass(461, "lsm_list_modules"),
    row(462, "mseal", Pass, [], [], "acts on pages, whatever they map"),
    row(463, "setxattrat", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
    row(464, "getxattrat", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
    row(465, "listxattrat", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
    row(466, "removexattrat", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
    row(467, "open_tree_attr", Serve, [0], [1], "not of the array: programs fall back to mount(2)"),
    row(468, "file_getattr", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
    row(469, "file_setattr", Serve, [0], [1], "not on the array: programs fall back to the older calls"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every number the ABI crate knows, by its source, which is the kernel's header.
    fn known() -> Vec<(usize, std::string::String)> {
        let metadata = std::process::Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--offline", "--filter-platform=x86_64-unknown-linux-gnu"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let text = std::string::String::from_utf8(metadata.stdout).unwrap();
        let manifests = text.split("\"manifest_path\":\"").map(|rest| rest.split('"').next().unwrap());
        let manifest = manifests.into_iter().find(|manifest| manifest.contains("/linux-raw-sys-")).unwrap();
        let folder = std::path::Path::new(manifest).parent().unwrap();
        let source = std::fs::read_to_string(folder.join("src/x86_64/general.rs")).unwrap();
        let line = |line: &str| {
            let (name, number) = line.strip_prefix("pub const __NR_")?.strip_suffix(';')?.split_once(": u32 = ")?;
            Some((number.parse().ok()?, name.into()))
        };
        source.lines().filter_map(line).collect()
    }
    #[test]
    fn every_number_has_its_row() {
        let known = known();
        assert!(known.len() > 370);
        for (number, name) in &known {
            assert_eq!(ROWS[*number].name, name, "number {number}");
        }
        assert_eq!(LINES.len(), known.len());
        assert_eq!(known.iter().map(|entry| entry.0).max(), Some(NUMBER_COUNT - 1));
    }

    #[test]
    fn arguments_are_cut_to_what_the_kernel_looks_at() {
        let row = |name: &str| ROWS.iter().find(|row| row.name == name).unwrap();
        let full = [usize::MAX; 6];
        let cut = |name: &str| {
            let mut args = full;
            row(name).cut(&mut args);
            args
        };
        let (word, mode, all) = (u32::MAX as usize, u16::MAX as usize, usize::MAX);
        assert_eq!(cut("read"), full);
        assert_eq!(cut("openat"), [all, all, word, mode, all, all]);
        assert_eq!(cut("process_madvise"), [word, all, word, word, word, all]);
        assert_eq!(cut("prctl"), [word, all, all, all, all, all]);
        assert_eq!(cut("sendmmsg"), [word, all, word, word, all, all]);
        for width in WIDTHS {
            let row = &ROWS[width.number];
            assert!(row.way != Pass && row.words & row.modes == 0 && row.words & row.paths == 0, "{}", row.name);
        }
        assert!(WIDTHS.is_sorted_by_key(|width| width.number));
    }

    #[test]
    fn rows_that_pass_with_a_descriptor_say_why() {
        for row in &ROWS {
            assert!(row.way != Pass || row.descriptors | row.paths == 0 || !row.note.is_empty(), "{}", row.name);
            assert!(row.way == Serve || !row.note.is_empty() || row.descriptors | row.paths == 0, "{}", row.name);
        }
    }

    #[test]
    fn reading_is_filtered_by_its_descriptor_and_opening_is_not() {
        let by_descriptor = |name: &str| ROWS.iter().find(|row| row.name == name).unwrap().by_first_descriptor();
        assert!(by_descriptor("read") && by_descriptor("close") && by_descriptor("fsync"));
        assert!(!by_descriptor("openat") && !by_descriptor("dup2") && !by_descriptor("mmap"));
        assert!(wants_site(None) && wants_site(Some(0)) && wants_site(Some(58)));
        assert!(!wants_site(Some(202)) && !wants_site(Some(15)) && !wants_site(Some(9999)));
    }
}
