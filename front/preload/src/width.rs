//! How much of an argument's register the kernel looks at.
//!
//! The kernel takes an argument of type `int` or `unsigned int` from the lower half of its register, and a file mode
//! (`umode_t`) from the lower quarter, whatever the rest of the register holds. A handler that compared the whole register
//! would take a call for another one than the kernel does, and leave a call to the kernel that concerns the array. So
//! these arguments are cut before a handler sees them.
//!
//! Descriptors that the table names ([`crate::table::Row`]) are not repeated here: each handler takes a descriptor as
//! [`sys::RawFd`], which is 32 bits. The types are those of the kernel's system
//! calls (SYSCALL_DEFINE), as tracefs shows them under `events/syscalls`. `cargo x differ` draws arguments with bits in the
//! upper half and compares what is answered.

/// The arguments of a call that are cut: to 32 bits, and to 16.
pub(crate) struct Width {
    pub(crate) number: usize,
    pub(crate) words: &'static [u8],
    pub(crate) modes: &'static [u8],
}

const fn words(number: usize, words: &'static [u8]) -> Width {
    Width { number, words, modes: &[] }
}

const fn modes(number: usize, modes: &'static [u8], words: &'static [u8]) -> Width {
    Width { number, words, modes }
}

/// Names the arguments that are cut, for each served call that has any.
#[rustfmt::skip]
pub(crate) const WIDTHS: &[Width] = &[
    modes(2, &[2], &[1]), // open
    words(8, &[2]), // lseek
    words(13, &[0]), // rt_sigaction
    words(14, &[0]), // rt_sigprocmask
    words(16, &[1]), // ioctl
    words(21, &[1]), // access
    words(26, &[2]), // msync
    words(28, &[2]), // madvise
    words(30, &[0, 2]), // shmat
    words(42, &[0, 2]), // connect
    words(43, &[0]), // accept
    words(44, &[0, 3, 5]), // sendto
    words(45, &[0, 3]), // recvfrom
    words(46, &[0, 2]), // sendmsg
    words(47, &[0, 2]), // recvmsg
    words(49, &[0, 2]), // bind
    words(51, &[0]), // getsockname
    words(52, &[0]), // getpeername
    words(72, &[1]), // fcntl
    words(73, &[1]), // flock
    words(78, &[2]), // getdents
    modes(83, &[1], &[]), // mkdir
    modes(85, &[1], &[]), // creat
    words(89, &[2]), // readlink
    modes(90, &[1], &[]), // chmod
    modes(91, &[1], &[]), // fchmod
    words(92, &[1, 2]), // chown
    words(93, &[1, 2]), // fchown
    words(94, &[1, 2]), // lchown
    words(95, &[0]), // umask
    words(105, &[0]), // setuid
    words(106, &[0]), // setgid
    words(113, &[0, 1]), // setreuid
    words(114, &[0, 1]), // setregid
    words(116, &[0]), // setgroups
    words(117, &[0, 1, 2]), // setresuid
    words(119, &[0, 1, 2]), // setresgid
    words(122, &[0]), // setfsuid
    words(123, &[0]), // setfsgid
    modes(133, &[1], &[2]), // mknod
    words(157, &[0]), // prctl
    words(160, &[0]), // setrlimit
    words(166, &[1]), // umount2
    words(167, &[1]), // swapon
    words(179, &[0, 2]), // quotactl
    words(188, &[4]), // setxattr
    words(189, &[4]), // lsetxattr
    words(190, &[4]), // fsetxattr
    words(206, &[0]), // io_setup
    words(217, &[2]), // getdents64
    words(221, &[3]), // fadvise64
    words(231, &[0]), // exit_group
    words(254, &[2]), // inotify_add_watch
    modes(257, &[3], &[2]), // openat
    modes(258, &[2], &[]), // mkdirat
    modes(259, &[2], &[3]), // mknodat
    words(260, &[2, 3, 4]), // fchownat
    words(262, &[3]), // newfstatat
    words(263, &[2]), // unlinkat
    words(265, &[4]), // linkat
    words(267, &[3]), // readlinkat
    modes(268, &[2], &[]), // fchmodat
    words(269, &[2]), // faccessat
    words(275, &[5]), // splice
    words(277, &[3]), // sync_file_range
    words(280, &[3]), // utimensat
    words(285, &[1]), // fallocate
    words(288, &[0, 3]), // accept4
    words(292, &[2]), // dup3
    words(299, &[0, 2, 3]), // recvmmsg
    words(300, &[0, 1]), // fanotify_init
    words(301, &[1]), // fanotify_mark
    words(302, &[0, 1]), // prlimit64
    words(303, &[4]), // name_to_handle_at
    words(304, &[0, 2]), // open_by_handle_at
    words(307, &[0, 2, 3]), // sendmmsg
    words(308, &[0, 1]), // setns
    words(316, &[4]), // renameat2
    words(317, &[0, 1]), // seccomp
    words(322, &[4]), // execveat
    words(326, &[5]), // copy_file_range
    words(327, &[5]), // preadv2
    words(328, &[5]), // pwritev2
    words(329, &[3]), // pkey_mprotect
    words(332, &[2, 3]), // statx
    words(425, &[0]), // io_uring_setup
    words(428, &[2]), // open_tree
    words(429, &[4]), // move_mount
    words(431, &[0, 1, 4]), // fsconfig
    words(433, &[2]), // fspick
    words(436, &[0, 1, 2]), // close_range
    words(438, &[0, 1, 2]), // pidfd_getfd
    words(439, &[2, 3]), // faccessat2
    words(440, &[0, 2, 3, 4]), // process_madvise; of its count import_iovec() takes 32 bits
    words(442, &[2]), // mount_setattr
    words(443, &[1, 2]), // quotactl_fd
    modes(452, &[2], &[3]), // fchmodat2
    words(463, &[2]), // setxattrat
    words(464, &[2]), // getxattrat
    words(465, &[2]), // listxattrat
    words(466, &[2]), // removexattrat
    words(467, &[2]), // open_tree_attr
    words(468, &[4]), // file_getattr
    words(469, &[4]), // file_setattr
];
