/* Watches: what inotify, fanotify and dnotify tell of stores and loads, in one process and across processes, with a writer that never closes. A plain
   directory must tell the same. Repeated events count once: how many the kernel merges depends on timing. */
#include "check.h"
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

static char *d;
static int watch;
static char block[100000];

static void names_of(uint32_t mask)
{
    static const struct { uint32_t bit; const char *name; } names[] = {
        { IN_ACCESS, "ACCESS" }, { IN_MODIFY, "MODIFY" }, { IN_ATTRIB, "ATTRIB" }, { IN_CLOSE_WRITE, "CLOSE_WRITE" },
        { IN_CLOSE_NOWRITE, "CLOSE_NOWRITE" }, { IN_OPEN, "OPEN" }, { IN_MOVED_FROM, "MOVED_FROM" }, { IN_MOVED_TO, "MOVED_TO" },
        { IN_CREATE, "CREATE" }, { IN_DELETE, "DELETE" }, { IN_DELETE_SELF, "DELETE_SELF" }, { IN_MOVE_SELF, "MOVE_SELF" },
        { IN_IGNORED, "IGNORED" }, { IN_ISDIR, "ISDIR" } };
    for (size_t index = 0; index < sizeof names / sizeof *names; index++)
        if (mask & names[index].bit)
            printf(" %s", names[index].name);
}

/* Prints what of `wanted` was told since the last time: each event once. */
static void told(const char *after, uint32_t wanted)
{
    char buffer[65536] __attribute__((aligned(8)));
    char seen[64][300];
    int count = 0;
    struct pollfd ready = { watch, POLLIN, 0 };
    printf("%s:", after);
    /* The kernel queues events before the call that raises them returns. */
    while (poll(&ready, 1, 0) == 1) {
        ssize_t bytes = read(watch, buffer, sizeof buffer);
        MUST(bytes > 0);
        for (char *at = buffer; at < buffer + bytes;) {
            struct inotify_event *event = (void *)at;
            char key[300];
            snprintf(key, sizeof key, "%d %x %s", event->wd, event->mask, event->len ? event->name : "");
            int known = 0;
            for (int index = 0; index < count; index++)
                known |= strcmp(seen[index], key) == 0;
            if (!known && event->mask & wanted) {
                printf(" [%d", event->wd), names_of(event->mask), printf("%s%s]", event->len ? " " : "", event->len ? event->name : "");
                if (count < 64)
                    strcpy(seen[count++], key);
            }
            at += sizeof *event + event->len;
        }
    }
    printf("\n");
}

static const char *shown_number(int number)
{
    static char text[20];
    snprintf(text, sizeof text, "%d", number);
    return text;
}

#define MOVED (IN_ACCESS | IN_MODIFY)

/* Every call that stores or loads, on a file that has a watch and in a directory that has one. */
static void calls_of_one_process(void)
{
    MUST(mkdir(in(d, "dir"), 0755) == 0);
    int fd = make_in(d, "dir/file", block, 100), other = make_in(d, "dir/other", block, 100), sink = open("/dev/null", O_WRONLY), ends[2];
    MUST(pipe(ends) == 0);
    watch = inotify_init1(IN_CLOEXEC);
    MUST(inotify_add_watch(watch, in(d, "dir"), IN_ALL_EVENTS) == 1 && inotify_add_watch(watch, in(d, "dir/file"), IN_ALL_EVENTS) == 2);
    struct iovec parts[2] = { { block, 10 }, { block + 10, 20 } };
    lseek(fd, 0, SEEK_SET);
    SHOW(read(fd, block, 10)); told("read", MOVED);
    SHOW(read(fd, block, 0)); told("read nothing", MOVED);
    SHOW(pread(fd, block, 10, 1000000)); told("read behind the end", MOVED);
    SHOW(pread(fd, block, 10, 5)); told("pread", MOVED);
    SHOW(readv(fd, parts, 2)); told("readv", MOVED);
    SHOW(preadv(fd, parts, 2, 3)); told("preadv", MOVED);
    SHOW(write(fd, block, 10)); told("write", MOVED);
    SHOW(write(fd, block, 0)); told("write nothing", MOVED);
    SHOW(pwrite(fd, block, 10, 5)); told("pwrite", MOVED);
    SHOW(pwrite(fd, block, 10, 70000)); told("pwrite behind the end", MOVED);
    SHOW(writev(fd, parts, 2)); told("writev", MOVED);
    SHOW(pwritev(fd, parts, 2, 3)); told("pwritev", MOVED);
    SHOW(write(fd, NULL, 10)); told("write from nowhere", MOVED);
    SHOW(ftruncate(fd, 150)); told("ftruncate", MOVED);
    SHOW(ftruncate(fd, 150)); told("ftruncate to the same", MOVED);
    SHOW(truncate(in(d, "dir/file"), 120)); told("truncate", MOVED);
    SHOW(truncate(in(d, "dir/file"), 120)); told("truncate to the same", MOVED);
    SHOW(truncate(in(d, "dir/file"), 130)); told("truncate to more", MOVED);
    SHOW(truncate(in("/proc/self/fd", shown_number(fd)), 130)); told("truncate by a link under /proc", MOVED);
    SHOW(fallocate(fd, 0, 0, 200)); told("fallocate", MOVED);
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 50)); told("punch", MOVED);
    off_t from = 0;
    SHOW(sendfile(sink, fd, &from, 50)); told("sendfile from", MOVED);
    SHOW(splice(fd, &(loff_t){ 0 }, ends[1], NULL, 20, 0)); told("splice from", MOVED);
    SHOW(splice(ends[0], NULL, fd, &(loff_t){ 0 }, 20, 0)); told("splice to", MOVED);
    SHOW(write(other, block, 10)); told("write to the other", MOVED);
    SHOW(lseek(fd, 0, SEEK_END)); told("lseek", MOVED);
    char *shown = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(shown != MAP_FAILED);
    shown[3] = 4;
    /* As for any file: what is stored through a mapping is not told. */
    MUST(msync(shown, 4096, MS_SYNC) == 0 && munmap(shown, 4096) == 0 && fsync(fd) == 0);
    told("mapping", IN_ACCESS);
    SHOW(close(other) + close(fd) + close(watch));
}

/* What makes, opens, closes and removes. An array tells of a new file's attribute, and of the time of the last store when the file is closed; and it may close
   its own descriptors late. */
static void whole_life(void)
{
    watch = inotify_init1(IN_CLOEXEC);
    const uint32_t all = IN_ALL_EVENTS | IN_IGNORED;
    MUST(inotify_add_watch(watch, in(d, "dir"), IN_ALL_EVENTS) == 1);
    int fd = open(in(d, "dir/new"), O_RDWR | O_CREAT, 0644); told("create", all & ~IN_ATTRIB);
    SHOW(write(fd, block, 5)); told("write", all);
    SHOW(close(fd)); told("close", all & ~IN_MODIFY);
    fd = open(in(d, "dir/new"), O_RDONLY); told("open", all);
    SHOW(read(fd, block, 5)); told("read", all);
    SHOW(close(fd)); told("close", all);
    SHOW(chmod(in(d, "dir/new"), 0600)); told("chmod", all);
    SHOW(rename(in(d, "dir/new"), in(d, "dir/newer"))); told("rename", all);
    SHOW(unlink(in(d, "dir/newer"))); told("unlink", all & ~IN_CLOSE);
    SHOW(mkdir(in(d, "dir/sub"), 0700)); told("mkdir", all);
    SHOW(rmdir(in(d, "dir/sub"))); told("rmdir", all);
    close(watch);
}

/* tail -f: another process has the file open, appends and never closes; it began before the watch, or after. */
static void across_processes(void)
{
    for (int late = 0; late < 2; late++) {
        int go[2], done[2];
        char name[20];
        MUST(pipe(go) == 0 && pipe(done) == 0);
        snprintf(name, sizeof name, "dir/log%d", late);
        close(make_in(d, name, "begin\n", 6));
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            char word;
            int log = -1;
            if (!late)
                MUST((log = open(in(d, name), O_WRONLY | O_APPEND)) >= 0);
            MUST(write(done[1], "r", 1) == 1);
            while (read(go[0], &word, 1) == 1 && word != 'q') {
                if (log < 0)
                    MUST((log = open(in(d, name), O_WRONLY | O_APPEND)) >= 0);
                MUST(write(log, "line\n", 5) == 5 && write(done[1], "d", 1) == 1);
            }
            _exit(0);
        }
        char word;
        close(go[0]), close(done[1]);
        MUST(read(done[0], &word, 1) == 1);
        watch = inotify_init1(IN_CLOEXEC);
        MUST(inotify_add_watch(watch, in(d, name), IN_MODIFY) == 1);
        for (int line = 0; line < 3; line++) {
            MUST(write(go[1], "l", 1) == 1 && read(done[0], &word, 1) == 1);
            told("line", IN_MODIFY);
        }
        /* A child of the one that watches has the watch, too, and may outlive it. */
        close(watch);
        MUST(write(go[1], "q", 1) == 1 && waitpid(child, NULL, 0) == child);
        close(go[1]), close(done[0]);
    }
}

static volatile int signals;
static void count(int number) { signals++; }

static void by_signal(void)
{
    int dir = open(in(d, "dir"), O_RDONLY | O_DIRECTORY), fd = open(in(d, "dir/file"), O_RDWR);
    signal(SIGRTMIN, count);
    MUST(fcntl(dir, F_SETSIG, SIGRTMIN) == 0);
    SHOW(fcntl(dir, F_NOTIFY, DN_MODIFY | DN_ACCESS | DN_MULTISHOT));
    int before = signals;
    MUST(pwrite(fd, "x", 1, 0) == 1);
    printf("dnotify of a store: %d\n", signals > before);
    before = signals;
    MUST(pread(fd, block, 1, 0) == 1);
    printf("dnotify of a load: %d\n", signals > before);
    close(dir), close(fd);
}

/* Reads events in every way that there is: those with a position are refused. Of two buffers each takes whole events. */
static ssize_t events_by(int how, int group, struct fanotify_event_metadata *events, size_t bytes)
{
    struct iovec parts[2] = { { events, sizeof *events }, { events + 1, bytes - sizeof *events } };
    switch (how) {
    case 0: return read(group, events, bytes);
    case 1: return pread(group, events, bytes, 0);
    case 2: return readv(group, parts, 2);
    case 3: return preadv(group, parts, 2, 0);
    default: return preadv2(group, parts, 2, -1, 0);
    }
}

/* A descriptor that comes with an event is one of the file. */
static void by_fanotify(void)
{
    int group = fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY | O_CLOEXEC);
    if (group < 0)
        return;
    int fd = make_in(d, "dir/marked", "marked", 6);
    for (int index = 0; index < 20; index++)
        MUST(pwrite(fd, block, 5000, 5000 * index + 6) == 5000);
    MUST(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY | FAN_ACCESS, AT_FDCWD, in(d, "dir/marked")) == 0);
    for (int step = 0; step < 10; step++) {
        if (step % 2)
            MUST(pread(fd, block, 10, 0) == 10);
        else
            MUST(pwrite(fd, "MARKED", 6, 0) == 6);
        struct pollfd ready = { group, POLLIN, 0 };
        struct fanotify_event_metadata events[16];
        printf("fanotify: %d", poll(&ready, 1, 200));
        ssize_t bytes = events_by(step / 2, group, events, sizeof events);
        if (bytes >= (ssize_t)sizeof *events) {
            printf(" %llx", (long long)events[0].mask);
            char path[100], name[4096];
            snprintf(path, sizeof path, "/proc/self/fd/%d", events[0].fd);
            struct stat stat;
            MUST(fstat(events[0].fd, &stat) == 0);
            ssize_t length = pread(events[0].fd, block, sizeof block, 3);
            printf(" %lld bytes, %zd read: %016llx", (long long)stat.st_size, length, (long long)sum(block, length > 0 ? length : 0, 0));
            for (char *at = (char *)events; at < (char *)events + bytes; at += sizeof *events)
                close(((struct fanotify_event_metadata *)at)->fd);
        }
        puts("");
    }
    close(fd), close(group);
}

/* The first watch of this process is made by a child of vfork. */
static void by_child(void)
{
    int fd = make_in(d, "child", block, 100);
    watch = inotify_init1(IN_CLOEXEC);
    char *path = strdup(in(d, "child"));
    pid_t child = vfork();
    if (child == 0)
        _exit(inotify_add_watch(watch, path, IN_ALL_EVENTS) == 1 ? 0 : 1);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("watched by a child: %d\n", status);
    SHOW(pwrite(fd, block, 10, 5)); told("pwrite", MOVED);
    close(fd);
    close(watch);
}

int main(int argc, char **arguments)
{
    d = arguments[1];
    fill((void *)block, sizeof block, 7);
    by_child();
    calls_of_one_process();
    whole_life();
    across_processes();
    by_signal();
    by_fanotify();
    return 0;
}
