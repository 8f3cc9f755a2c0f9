/* What needs rights: another root, files by handles, marks of fanotify. A plain directory must answer the same, but for what is documented. */
#include "check.h"
#include <sys/fanotify.h>
#include <sys/quota.h>
#include <sys/wait.h>

static char *d, *jail;
static unsigned char block[200000], back[200000];

static void wait_for(pid_t child)
{
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
}

/* A daemon with files open goes into an empty directory of the host. */
static void into_the_host(void)
{
    int file = make_in(d, "open", block, 100000), dir = open(d, O_RDONLY | O_DIRECTORY);
    MUST(close(make_in(jail, "inside", "in the jail", 11)) == 0 && dir >= 0 && chdir(d) == 0);
    /* The kernel may see it from within the jail; two slashes tell that call from one that was missed. */
    const char *path = strdup(in("/", in(d, "open")));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        MUST(chroot(jail) == 0);
        SHOW(pread(file, back, sizeof back, 0));
        SHOW(pwrite(file, block + 50000, 100000, 50000));
        SHOW(access(path, F_OK));
        SHOW(open(path, O_RDWR));
        SHOW(mkdir(path, 0700));
        int inside = open("/inside", O_RDONLY);
        SHOW(read(inside, back, sizeof back));
        SHOW(memcmp(back, "in the jail", 11));
        SHOW(chdir("/"));
        SHOW(access("inside", F_OK));
        SHOW(access("open", F_OK));
        /* By names relative to a directory outside the root the kernel goes on; the array is out of reach. */
        errno = 0;
        int opened = openat(dir, "open", O_RDWR), why = errno;
        MUST(on_array() ? opened < 0 && why == ENOENT : opened >= 0);
        int made = mkdirat(dir, "made", 0700);
        MUST(on_array() ? made < 0 : made == 0 && unlinkat(dir, "made", AT_REMOVEDIR) == 0);
        SHOW(ftruncate(file, 120000));
        SHOW(fsync(file));
        fflush(stdout);
        _exit(0);
    }
    wait_for(child);
    SHOW(pread(file, back, sizeof back, 0));
    SHOW(memcmp(back, block, 120000));
    close(dir), close(file);
}

/* A root in the array would be a member's directory. */
static void into_the_array(void)
{
    MUST(mkdir(in(d, "root"), 0755) == 0 && symlink(d, in(jail, "way")) == 0);
    const char *paths[] = { in(d, "root"), "root", ".", in(jail, "way") };
    for (int path = 0; path < 4; path++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            MUST(chdir(d) == 0);
            int result = chroot(paths[path]), why = errno;
            MUST(on_array() ? result == -1 && why == EOPNOTSUPP : result == 0);
            _exit(0);
        }
        wait_for(child);
    }
    SHOW(chroot(in(d, "none")));
    SHOW(chroot(in(d, "open")));
    SHOW(chroot((char *)8));
}

static void by_handle(void)
{
    static struct { struct file_handle head; unsigned char bytes[MAX_HANDLE_SZ]; } handle, directory;
    int mount_id, file, dir = open(d, O_RDONLY | O_DIRECTORY);
    MUST(close(make_in(d, "handled", block, 150000)) == 0 && dir >= 0);
    handle.head.handle_bytes = directory.head.handle_bytes = MAX_HANDLE_SZ;
    SHOW(name_to_handle_at(dir, "handled", &handle.head, &mount_id, 0));
    SHOW(name_to_handle_at(AT_FDCWD, d, &directory.head, &mount_id, 0));
    SHOW((file = open_by_handle_at(dir, &handle.head, O_RDWR)) >= 0);
    SHOW(pread(file, back, sizeof back, 0));
    SHOW(memcmp(back, block, 150000));
    SHOW(pwrite(file, block + 120000, 80000, 120000));
    SHOW(lseek(file, 0, SEEK_END));
    close(file);
    show_content(in(d, "handled"));
    int again = open_by_handle_at(dir, &directory.head, O_RDONLY | O_DIRECTORY);
    SHOW(faccessat(again, "handled", F_OK, 0));
    close(again);
    SHOW((file = open_by_handle_at(dir, &handle.head, O_RDWR | O_TRUNC)) >= 0);
    SHOW(lseek(file, 0, SEEK_END));
    SHOW(write(file, block, 70000));
    close(file);
    show_content(in(d, "handled"));
    MUST(unlink(in(d, "handled")) == 0);
    SHOW(open_by_handle_at(dir, &handle.head, O_RDWR));
    /* A file outside the array is truncated although the descriptor is for reading. */
    int host = make_in(jail, "host", block, 5000), here = open(jail, O_RDONLY | O_DIRECTORY);
    handle.head.handle_bytes = MAX_HANDLE_SZ;
    SHOW(name_to_handle_at(here, "host", &handle.head, &mount_id, 0));
    SHOW((file = open_by_handle_at(here, &handle.head, O_RDONLY | O_TRUNC)) >= 0);
    SHOW(lseek(host, 0, SEEK_END));
    MUST(unlink(in(jail, "host")) == 0);
    close(file);
    close(host);
    close(here);
    close(dir);
}

static void watched(void)
{
    int group = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_DIR_FID | FAN_REPORT_NAME | FAN_NONBLOCK, O_RDONLY);
    MUST(group >= 0 && mkdir(in(d, "watched"), 0755) == 0);
    SHOW(fanotify_mark(group, FAN_MARK_ADD, FAN_CREATE | FAN_DELETE | FAN_ONDIR, AT_FDCWD, in(d, "watched")));
    close(make_in(d, "watched/file", block, 10));
    MUST(mkdir(in(d, "watched/dir"), 0755) == 0 && unlink(in(d, "watched/file")) == 0 && rmdir(in(d, "watched/dir")) == 0);
    static char events[65536];
    ssize_t bytes = read(group, events, sizeof events);
    for (struct fanotify_event_metadata *event = (void *)events; FAN_EVENT_OK(event, bytes); event = FAN_EVENT_NEXT(event, bytes))
        printf("event %llx\n", (unsigned long long)event->mask);
    SHOW(fanotify_mark(group, FAN_MARK_ADD, FAN_CREATE, AT_FDCWD, in(d, "none")));
    close(group);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (geteuid() != 0) {
        puts("only root may do any of this");
        return 0;
    }
    d = argv[1];
    char name[] = "jail-XXXXXX", here[4096];
    MUST(mkdtemp(name) && getcwd(here, sizeof here));
    jail = strdup(in(here, name));
    fill(block, sizeof block, 11);
    into_the_host();
    MUST(chdir(here) == 0);
    into_the_array();
    by_handle();
    watched();
    SHOW(quotactl(QCMD(Q_SYNC, USRQUOTA), NULL, 0, NULL));
    return 0;
}
