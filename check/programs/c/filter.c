/* Executes a program that may not make certain system calls: "service" ends who makes one that systemd's @system-service (252) lacks, "writable" lets no memory be made
   executable that was written to (prctl(2), PR_SET_MDWE). */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

static const long lacking[] = {
    SYS__sysctl, SYS_acct, SYS_adjtimex, SYS_afs_syscall, SYS_bpf, SYS_chroot, SYS_clock_adjtime,
    SYS_clock_settime, SYS_create_module, SYS_delete_module, SYS_fanotify_init, SYS_fanotify_mark,
    SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_get_kernel_syms, SYS_getpmsg,
    SYS_init_module, SYS_ioperm, SYS_iopl, SYS_kexec_file_load, SYS_kexec_load, SYS_landlock_add_rule,
    SYS_landlock_create_ruleset, SYS_landlock_restrict_self, SYS_lookup_dcookie, SYS_memfd_secret,
    SYS_mincore, SYS_modify_ldt, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_nfsservctl,
    SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root,
    SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_process_mrelease, SYS_ptrace, SYS_putpmsg,
    SYS_query_module, SYS_quotactl, SYS_quotactl_fd, SYS_reboot, SYS_seccomp, SYS_security, SYS_setdomainname,
    SYS_sethostname, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_sysfs, SYS_syslog, SYS_tuxcall,
    SYS_umount2, SYS_uselib, SYS_ustat, SYS_vhangup, SYS_vserver,
};

static void forbid(void)
{
    enum { COUNT = sizeof lacking / sizeof *lacking };
    static struct sock_filter filter[2 * COUNT + 2];
    size_t length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t index = 0; index < COUNT; index++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, lacking[index], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(int argc, char **argv)
{
    MUST(argc > 2);
    if (strcmp(argv[1], "service") == 0)
        forbid();
    else
        MUST(prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0);
    execv(argv[2], argv + 2);
    MUST(!"executed");
}
