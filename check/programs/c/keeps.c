/* Gives places of the array to the kernel for good: mounts, swap, accounting, quotas, loop devices. The first argument is a directory under test, the second
   one of the host. */
#include "check.h"
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/swap.h>
#include <sys/syscall.h>

static char *d, *host;

static int open_tree_at(int dir, const char *path, int flags) { return syscall(428, dir, path, flags); }
static int move_mount_at(int from, const char *path, int to, const char *goal, int flags) { return syscall(429, from, path, to, goal, flags); }
static int pivot(const char *root, const char *old) { return syscall(155, root, old); }
static int account(const char *path) { return syscall(163, path); }

int main(int count, char **arguments)
{
    MUST(count == 3);
    d = arguments[1], host = arguments[2];
    char image[65536] = "image", path[4096], there[4096];
    MUST(mkdir(in(d, "one"), 0755) == 0 && mkdir(in(d, "two"), 0755) == 0 && mkdir(in(d, "one/sub"), 0755) == 0);
    MUST(close(make_in(d, "image", image, sizeof image)) == 0 && close(make_in(d, "one/file", "one", 3)) == 0);
    MUST(symlink(d, in(host, "way")) == 0 && symlink(host, in(d, "out")) == 0 && mkdir(in(host, "place"), 0755) == 0);
    int dir = open(in(d, "one"), O_RDONLY | O_DIRECTORY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    snprintf(there, sizeof there, "%s/way/one", host);

    SHOW(mount("none", in(d, "one"), "tmpfs", 0, NULL));
    SHOW(mount("none", in(d, "none"), "tmpfs", 0, NULL));
    SHOW(mount("none", path, "tmpfs", 0, NULL));
    SHOW(mount("none", there, "tmpfs", 0, NULL));
    SHOW(mount(in(d, "one"), in(host, "place"), NULL, MS_BIND, NULL));
    SHOW(mount(in(host, "place"), in(d, "one"), NULL, MS_BIND, NULL));
    SHOW(mount(NULL, in(d, "one"), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    SHOW(mount(NULL, in(d, "one"), NULL, MS_PRIVATE, NULL));
    SHOW(mount(in(d, "one"), in(d, "two"), NULL, MS_MOVE, NULL));
    MUST(chdir(in(d, "one")) == 0);
    SHOW(mount("none", ".", "tmpfs", 0, NULL));
    SHOW(mount("none", "sub", "tmpfs", 0, NULL));
    SHOW(mount("none", in(host, "place"), "overlay", 0, "lowerdir=sub:../two"));
    SHOW(mount("none", "/proc/self/cwd", "tmpfs", 0, NULL));
    SHOW(pivot(".", "sub"));
    /* A directory of the host stays the kernel's, also by way of the array. */
    SHOW(mount("none", in(d, "out/place"), "tmpfs", 0, NULL));
    SHOW(umount(in(host, "place")));

    SHOW(open_tree_at(AT_FDCWD, in(d, "one"), 1));
    SHOW(open_tree_at(dir, "", 1 | AT_EMPTY_PATH));
    int tree = open_tree_at(AT_FDCWD, in(host, "place"), 1);
    SHOW(move_mount_at(tree, "", AT_FDCWD, in(d, "two"), 4));
    SHOW(move_mount_at(tree, "", dir, "", 4 | 0x40));
    SHOW(move_mount_at(tree, "", AT_FDCWD, "sub", 4));
    close(tree);
    int overlay = syscall(430, "overlay", 0);
    SHOW(syscall(431, overlay, 1, "lowerdir", "sub", 0));
    SHOW(syscall(431, overlay, 1, "lowerdir+", "../two", 0));
    SHOW(syscall(431, overlay, 5, "upperdir", NULL, dir));
    close(overlay);
    SHOW(syscall(433, AT_FDCWD, in(d, "one"), 0));

    SHOW(swapon(in(d, "image"), 0));
    SHOW(swapoff(in(d, "image")));
    SHOW(account(in(d, "image")));
    SHOW(account(in(d, "none")));
    SHOW(quotactl(QCMD(Q_GETFMT, USRQUOTA), in(d, "image"), 0, image));
    SHOW(syscall(443, dir, QCMD(Q_GETFMT, USRQUOTA), 0, image));
    int file = open(in(d, "image"), O_RDWR), control = open("/dev/loop-control", O_RDWR);
    /* Where there are loop devices. */
    int number = control >= 0 ? ioctl(control, LOOP_CTL_GET_FREE) : -1, loop = -1;
    if (number >= 0) {
        snprintf(path, sizeof path, "/dev/loop%d", number);
        loop = open(path, O_RDWR);
    }
    struct loop_config config = { .fd = file };
    if (loop >= 0) {
        MUST(ioctl(loop, LOOP_SET_FD, file) < 0 && errno == EINVAL);
        MUST(ioctl(loop, LOOP_CONFIGURE, &config) < 0 && errno == EINVAL);
    }
    int other = open(in(host, "clone"), O_CREAT | O_RDWR, 0600);
    SHOW(ioctl(other, FICLONE, file));
    struct file_clone_range range = { .src_fd = file };
    SHOW(ioctl(other, FICLONERANGE, &range));

    /* Binding one directory of the array onto another is done on every member. */
    SHOW(mount(in(d, "one"), in(d, "two"), NULL, MS_BIND, NULL));
    SHOW(access(in(d, "two/file"), F_OK));
    MUST(close(make_in(d, "two/made", "made", 4)) == 0);
    SHOW(access(in(d, "one/made"), F_OK));
    SHOW(unlink(in(d, "two/made")));
    SHOW(umount(in(d, "two")));
    SHOW(rmdir(in(d, "two")));
    return 0;
}
