/* Makes calls on files as its standard input says, a line each, and answers each with a line: a value, or E and an
 * error number. Linked statically it reaches an array by a mount alone; linked dynamically, by the library. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static int open_files[32];
static char *maps[32];
static pid_t children[32];

static int flags_of(const char *word) {
    int flags = strchr(word, 'w') ? O_RDWR : strchr(word, 'W') ? O_WRONLY : O_RDONLY;
    if (strchr(word, 'c')) flags |= O_CREAT;
    if (strchr(word, 'x')) flags |= O_EXCL;
    if (strchr(word, 'a')) flags |= O_APPEND;
    if (strchr(word, 't')) flags |= O_TRUNC;
    if (strchr(word, 'u')) flags |= O_TMPFILE;
    if (strchr(word, 'p')) flags |= O_PATH;
    return flags;
}

static long lock(int fd, int command, char kind, long start, long length) {
    struct flock wanted = {.l_type = kind == 'x' ? F_WRLCK : kind == 's' ? F_RDLCK : F_UNLCK, .l_start = start, .l_len = length};
    return fcntl(fd, command, &wanted);
}

/* Closes a descriptor of a file while another thread waits for a lock on the file. */
static void *close_later(void *fd) {
    usleep(100000);
    close(*(int *)fd);
    return NULL;
}

static long wait_while_closed(int fd, int other) {
    pthread_t thread;
    pthread_create(&thread, NULL, close_later, &other);
    long result = lock(fd, F_SETLKW, 'x', 0, 0);
    pthread_join(thread, NULL);
    return result;
}

/* Appends records that tell who wrote them, and which of how many each is. */
static long append(const char *path, const char *who, int count) {
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0) return -1;
    for (int index = 0; index < count; index++) {
        char record[40];
        int bytes = snprintf(record, sizeof record, "%s %06d ..................\n", who, index);
        if (write(fd, record, bytes) != bytes) return -1;
    }
    close(fd);
    return count;
}

/* What went wrong in a toil. */
static char trouble[500];
/* What was found last by stat(2) and its like. */
static struct stat found;

static int wrong(const char *what, long round) {
    snprintf(trouble, sizeof trouble, "%s in round %ld: E%d; last found: %ld bytes, %ld names, mode %o, time %ld", what, round, errno,
             (long)found.st_size, (long)found.st_nlink, found.st_mode, (long)found.st_mtime);
    return -1;
}

/* Bytes that tell whose they are, and of which round. */
static void pattern(char *bytes, long length, long seed, long round) {
    unsigned long state = (unsigned long)seed * 1000003 + (unsigned long)round * 7919 + 1;
    for (long at = 0; at < length; at++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        bytes[at] = (char)(state >> 56);
    }
}

#define MUST(condition) do { errno = 0; if (!(condition)) return wrong(#condition, round); } while (0)
#define SPACE 70000

/* What somebody may do to the files of a member meanwhile. */
enum harm { NONE, CUT, REMOVED };

/* One round of everything that a program does with files, in a directory of its own. Every answer is known. */
static int one_round(const char *home, int directory, int kept, int maps, enum harm harm, long seed, long round) {
    static char bytes[SPACE], got[SPACE], kept_bytes[SPACE], text[40], path[5000], other[5000];
    static long kept_length;
    struct stat again;
    long length = 1 + (seed * 31 + round * 977) % (SPACE - 1), at = round * 4099 % 50000, part = 1 + round % 20000;
    pattern(bytes, length, seed, round);
    snprintf(path, sizeof path, "%s/file%ld", home, round % 5);
    int fd;
    MUST((fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0640)) >= 0);
    MUST(write(fd, bytes, length / 2) == length / 2);
    MUST(write(fd, bytes + length / 2, length - length / 2) == length - length / 2);
    MUST(fstat(fd, &found) == 0 && found.st_size == length);
    MUST(pread(fd, got, SPACE, 0) == length);
    MUST(memcmp(got, bytes, length) == 0);
    struct flock lock_ = {.l_type = F_WRLCK, .l_start = round % 7, .l_len = 3};
    MUST(fcntl(fd, F_SETLK, &lock_) == 0);
    MUST(flock(fd, LOCK_EX | LOCK_NB) == 0);
    if (round % 8 == 0) MUST(fsync(fd) == 0);
    MUST(lseek(fd, 0, SEEK_HOLE) == length);
    MUST(close(fd) == 0);
    /* The same by other names, and by a descriptor of the directory. */
    MUST(stat(path, &again) == 0 && again.st_size == length);
    snprintf(text, sizeof text, "name%ld", round % 3);
    snprintf(other, sizeof other, "%s/%s", home, text);
    MUST(rename(path, other) == 0);
    MUST((fd = openat(directory, text, O_RDONLY)) >= 0);
    MUST(read(fd, got, SPACE) == length);
    MUST(memcmp(got, bytes, length) == 0);
    MUST(close(fd) == 0);
    MUST(linkat(directory, text, directory, "link", 0) == 0);
    MUST(fstatat(directory, "link", &found, AT_SYMLINK_NOFOLLOW) == 0 && found.st_size == length);
    /* How many names a file has is the lowest member's to say, until somebody notices what it has lost. */
    if (found.st_nlink != 2 && !(harm == REMOVED && found.st_nlink < 2)) return wrong("st_nlink", round);
    MUST(chmod(other, 0600 + round % 8) == 0);
    MUST(fstatat(directory, "link", &found, 0) == 0 && (found.st_mode & 0777) == 0600u + round % 8);
    MUST(setxattr(other, "user.note", &round, sizeof round, 0) == 0);
    long note = -1;
    MUST(getxattr(other, "user.note", &note, sizeof note) == sizeof note && note == round);
    struct timespec times[2] = {{.tv_sec = 1000000 + round}, {.tv_sec = 2000000 + round}};
    MUST(utimensat(directory, text, times, 0) == 0);
    /* Who cuts a backing file on a member gives that the time of the cut. */
    MUST(stat(other, &found) == 0 && (found.st_mtime == 2000000 + round || (harm == CUT && found.st_mtime > 1000000000)));
    MUST(truncate(other, length / 2) == 0);
    MUST(stat(other, &found) == 0 && found.st_size == length / 2);
    MUST(unlinkat(directory, "link", 0) == 0);
    MUST(access(other, R_OK | W_OK) == 0);
    /* Directories and symlinks. */
    MUST(mkdirat(directory, "inner", 0755) == 0);
    snprintf(path, sizeof path, "%s/inner/deep", home);
    MUST((fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644)) >= 0);
    MUST(pwrite(fd, bytes, part, at) == part);
    int inner;
    MUST((inner = openat(directory, "inner", O_RDONLY | O_DIRECTORY)) >= 0);
    MUST(renameat(directory, "inner", directory, "moved") == 0);
    MUST(fstat(fd, &found) == 0 && found.st_size == at + part);
    MUST(fstatat(inner, "deep", &found, 0) == 0 && found.st_size == at + part);
    MUST(close(fd) == 0);
    DIR *listing = fdopendir(inner);
    MUST(listing != NULL);
    long names = 0;
    for (struct dirent *entry; (errno = 0, entry = readdir(listing)); names++) { }
    /* What is removed on a member by hand between the opening and the reading of a directory is missing there. */
    if (errno || (names != 3 && !(harm == REMOVED && names == 2))) return wrong("readdir", round);
    MUST(closedir(listing) == 0);
    snprintf(path, sizeof path, "%s/moved/deep", home);
    MUST(unlink(path) == 0);
    MUST(unlinkat(directory, "moved", AT_REMOVEDIR) == 0);
    MUST(symlinkat(text, directory, "points") == 0);
    MUST(readlinkat(directory, "points", got, SPACE) == (long)strlen(text));
    MUST(fstatat(directory, "points", &found, 0) == 0 && found.st_size == length / 2);
    MUST(unlinkat(directory, "points", 0) == 0);
    errno = 0;
    if (access(path, F_OK) != -1 || errno != ENOENT) return wrong("what is gone", round);
    /* A file that stays open, and one that has no name. */
    if (at + part > kept_length) kept_length = at + part;
    memcpy(kept_bytes + at, bytes, part < length ? part : length);
    memset(kept_bytes + at + (part < length ? part : length), 7, part - (part < length ? part : length));
    MUST(pwrite(kept, kept_bytes + at, part, at) == part);
    MUST(pread(kept, got, SPACE, 0) == kept_length);
    MUST(memcmp(got, kept_bytes, kept_length) == 0);
    MUST(fstat(kept, &found) == 0 && found.st_size == kept_length && found.st_nlink == 0);
    if (round % 4 == 0) MUST(fchmod(kept, 0600 + round % 64) == 0);
    if (maps && round % 4 == 1) {
        char *map = mmap(NULL, kept_length, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0);
        MUST(map != MAP_FAILED);
        map[at] = kept_bytes[at] = (char)round;
        MUST(memcmp(map, kept_bytes, kept_length) == 0);
        MUST(msync(map, kept_length, MS_SYNC) == 0);
        MUST(munmap(map, kept_length) == 0);
        MUST(pread(kept, got, SPACE, 0) == kept_length);
        MUST(memcmp(got, kept_bytes, kept_length) == 0);
    }
    return 0;
}

/* A directory that is open, and the one that the program is in, are found by their descriptors after they were renamed. */
static int move_home(const char *home, int directory, long round) {
    static char path[5000], moved[5000], here[5000];
    struct { unsigned long long flags, mode, resolve; } how = {.flags = O_RDWR, .resolve = 8 /* RESOLVE_BENEATH */};
    int fd;
    snprintf(moved, sizeof moved, "%s.moved", home);
    MUST(rename(home, moved) == 0);
    MUST(mkdir(home, 0755) == 0);
    MUST((fd = openat(directory, "last", O_RDWR | O_CREAT | O_EXCL, 0600)) >= 0);
    MUST(close(fd) == 0);
    snprintf(path, sizeof path, "%s/last", moved);
    MUST(stat(path, &found) == 0);
    MUST((fd = syscall(SYS_openat2, directory, "last", &how, sizeof how)) >= 0);
    MUST(close(fd) == 0);
    MUST(fchmod(directory, 0711) == 0);
    MUST(stat(moved, &found) == 0 && (found.st_mode & 0777) == 0711);
    MUST(stat(home, &found) == 0 && (found.st_mode & 0777) == 0755);
    MUST(getcwd(here, sizeof here) != NULL && strcmp(here, moved) == 0);
    MUST(stat("last", &found) == 0);
    snprintf(path, sizeof path, "%s/last", home);
    errno = 0;
    if (access(path, F_OK) != -1 || errno != ENOENT) return wrong("what lies in the moved directory", round);
    DIR *listing = fdopendir(directory);
    MUST(listing != NULL);
    rewinddir(listing);
    int is_listed = 0;
    for (struct dirent *entry; (errno = 0, entry = readdir(listing)); ) is_listed |= strcmp(entry->d_name, "last") == 0;
    if (errno || !is_listed) return wrong("the moved directory's listing", round);
    MUST(closedir(listing) == 0);
    return 0;
}

/* Goes round until a file is there. */
static long toil(const char *home, const char *stop, int maps, enum harm harm, long seed) {
    static char path[5000];
    long round = 0;
    MUST(mkdir(home, 0755) == 0);
    int directory = open(home, O_RDONLY | O_DIRECTORY);
    MUST(directory >= 0);
    MUST(fchdir(directory) == 0);
    snprintf(path, sizeof path, "%s/kept", home);
    int kept = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(kept >= 0);
    MUST(unlink(path) == 0);
    while (access(stop, F_OK) != 0) {
        round++;
        if (one_round(home, directory, kept, maps, harm, seed, round)) return -1;
    }
    close(kept);
    return move_home(home, directory, round) ? -1 : round;
}

/* Shuts an ext4 down (EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH): every call fails from then on. */
static long shut_down(const char *directory) {
    unsigned how = 2;
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    long result = fd < 0 ? -1 : ioctl(fd, 0x8004587d, &how);
    close(fd);
    return result;
}

/* The names in a directory, in the order in which they are listed. */
static long list(const char *path, char *names) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    long count = 0;
    if (!directory)
        return -1;
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.')
            count += sprintf(names + count, "%s%s", count ? " " : "", entry->d_name);
    closedir(directory);
    return count;
}

/* Whether a descriptor is open in what is no mount of an array (FUSE_SUPER_MAGIC). A dead one does not say. */
static int is_elsewhere(int fd) {
    struct statfs in;
    return fstatfs(fd, &in) == 0 && (unsigned)in.f_type != 0x65735546;
}

/* Writes into a directory until a file is there. Calls may fail; what they reach must be a mount. */
static long write_there(const char *directory, const char *stop) {
    static char path[5000];
    long written = 0;
    while (access(stop, F_OK) != 0) {
        int here = open(directory, O_RDONLY | O_DIRECTORY);
        if (here >= 0 && is_elsewhere(here)) return -1;
        close(here);
        snprintf(path, sizeof path, "%s/written%ld", directory, written % 50);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd >= 0 && is_elsewhere(fd)) return -1;
        if (fd >= 0 && write(fd, "written", 7) == 7) written++;
        close(fd);
    }
    return written;
}

/* Renames something to and fro until a file is there. */
static long rename_to_and_fro(const char *from, const char *to, const char *stop) {
    long count = 0;
    while (access(stop, F_OK) != 0) {
        if (rename(from, to) || rename(to, from)) return -1;
        count++;
    }
    return count;
}

/* Replaces a file until another is there. */
static long replace(const char *path, const char *stop) {
    static char other[5000];
    long count = 0;
    snprintf(other, sizeof other, "%s.new", path);
    while (access(stop, F_OK) != 0) {
        int fd = open(other, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || close(fd) || rename(other, path)) return -1;
        count++;
    }
    return count;
}

/* Works in the current directory, which somebody renames meanwhile, until a file is there. */
static long work_here(const char *stop) {
    static char own[64];
    long round = 0;
    while (access(stop, F_OK) != 0) {
        int fd;
        round++;
        MUST((fd = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0);
        snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
        MUST(linkat(AT_FDCWD, own, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
        MUST(close(fd) == 0);
        MUST(link("named", "second") == 0);
        MUST(chmod("second", 0640) == 0);
        MUST(stat("second", &found) == 0 && found.st_nlink == 2 && (found.st_mode & 0777) == 0640);
        MUST(unlink("named") == 0 && unlink("second") == 0);
        MUST(stat("..", &found) == 0);
        MUST((fd = open("..", O_RDONLY | O_DIRECTORY)) >= 0);
        MUST(close(fd) == 0);
    }
    return round;
}

/* Changes what a file is like that somebody replaces meanwhile, until another file is there. */
static long change_there(const char *path, const char *stop) {
    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 2000000}};
    long round = 0;
    while (access(stop, F_OK) != 0) {
        round++;
        MUST(chmod(path, 0600 + round % 8) == 0);
        MUST(utimensat(AT_FDCWD, path, times, 0) == 0);
        MUST(chown(path, 1, 1) == 0);
        MUST(truncate(path, round % 9000) == 0);
    }
    return round;
}

/* Makes what a caller with some rights is to try itself on, in the current directory. As root. */
static int make_ground(void) {
    umask(0);
    struct { const char *name; int mode, user; } files[] = {
        {"roots", 0600, 0}, {"other", 0640, 2000}, {"mine", 06755, 1000}, {"mine2", 06755, 1000}, {"mine3", 06755, 1000},
        {"shut/inner", 0644, 0}, {"sticky/theirs", 0644, 2000}};
    if (mkdir("shut", 0700) || mkdir("sticky", 0777) || chmod("sticky", 01777)) return -1;
    for (unsigned index = 0; index < sizeof files / sizeof *files; index++) {
        int fd = open(files[index].name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || write(fd, "text", 4) != 4 || fchown(fd, files[index].user, files[index].user ? 2000 : 0)) return -1;
        if (fchmod(fd, files[index].mode) || close(fd)) return -1;
    }
    return setxattr("other", "trusted.note", "note", 4, 0);
}

/* Goes on as a user with these effective and permitted capabilities and no more. */
static int become(int user, unsigned long capabilities) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {{0}, {0}};
    sets[0].effective = sets[0].permitted = (unsigned)capabilities;
    sets[1].effective = sets[1].permitted = (unsigned)(capabilities >> 32);
    if (prctl(PR_SET_KEEPCAPS, 1) || setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)) return -1;
    return syscall(SYS_capset, &head, sets);
}

#define TRY(call) do { long got = (call); text += got < 0 ? sprintf(text, " E%d", errno) : sprintf(text, " %ld", got); } while (0)

/* What a file's mode is now. */
static long mode_of(const char *path) {
    struct stat now;
    return lstat(path, &now) ? -1 : (long)now.st_mode;
}

static long opens(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    return fd < 0 ? -1 : close(fd);
}

/* Changes bytes of a file in one of three ways, and tells what mode it has afterwards. */
static long change_bytes(const char *path, int way) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    long done = way == 0 ? pwrite(fd, "other", 5, 0) : way == 1 ? ftruncate(fd, 2) : fallocate(fd, 0, 0, 9);
    close(fd);
    return done < 0 ? -1 : mode_of(path);
}

/* Tries what needs rights, and tells what came of each call. */
static void try_all(char *text) {
    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 2000000}};
    char list[500];
    text += sprintf(text, "tried");
    TRY(opens("roots", O_RDONLY));
    TRY(opens("roots", O_RDWR));
    TRY(opens("other", O_RDONLY | O_NOATIME));
    TRY(mode_of("shut/inner"));
    TRY(opens("shut", O_RDONLY | O_DIRECTORY));
    TRY(opens("shut/new", O_RDWR | O_CREAT | O_EXCL));
    TRY(opens("shut", O_RDWR | O_TMPFILE));
    TRY(mkdir("shut/directory", 0700));
    TRY(rename("shut/inner", "shut/outer"));
    TRY(symlink("x", "shut/link"));
    TRY(unlink("sticky/theirs"));
    TRY(change_bytes("mine", 0));
    TRY(change_bytes("mine2", 1));
    TRY(change_bytes("mine3", 2));
    TRY(chmod("mine", 06711));
    TRY(mode_of("mine"));
    TRY(chmod("other", 0604));
    TRY(mode_of("other"));
    TRY(utimensat(AT_FDCWD, "other", times, 0));
    TRY(truncate("other", 3));
    TRY(setxattr("other", "user.x", "x", 1, 0));
    TRY(listxattr("other", list, sizeof list));
    TRY(setxattr("other", "trusted.other", "x", 1, 0));
    TRY(link("other", "sticky/linked"));
    TRY(chown("mine2", 1000, 0));
    TRY(chown("other", 1000, 1000));
    TRY(mode_of("mine2"));
    TRY(mknod("sticky/device", S_IFCHR | 0600, makedev(1, 3)));
    TRY(mknod("sticky/pipe", S_IFIFO | 0600, 0));
    TRY(opens("shut/inner", O_RDWR | O_TRUNC));
    TRY(unlink("shut/inner"));
}

/* Has a child with these rights try all in a new directory. */
static long try_rights(const char *directory, int user, unsigned long capabilities, char *text) {
    char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return -1;
    pid_t child = fork();
    if (child == 0) {
        if (mkdir(directory, 0755) || chdir(directory) || chmod(".", 0777) || make_ground() || become(user, capabilities))
            sprintf(shared, "not prepared: E%d", errno);
        else
            try_all(shared);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    strcpy(text, shared);
    return munmap(shared, 4096);
}

/* Copies bytes from one open file to another, within the kernel. */
static long copy_range(int from, long from_offset, int to, long to_offset, long bytes) {
    off64_t in = from_offset, out = to_offset;
    return copy_file_range(from, &in, to, &out, bytes, 0);
}

/* Tells when a file was made, as far as the file system tells that. */
static void birth(const char *path, char *text) {
    struct statx now;
    if (statx(AT_FDCWD, path, 0, STATX_BASIC_STATS | STATX_BTIME, &now)) return;
    if (!(now.stx_mask & STATX_BTIME)) strcpy(text, "not told");
    else sprintf(text, "%lld.%09u links %u mode %o size %lld", (long long)now.stx_btime.tv_sec, now.stx_btime.tv_nsec, now.stx_nlink, now.stx_mode, (long long)now.stx_size);
}

static long long ns(struct timespec time) { return time.tv_sec * 1000000000ll + time.tv_nsec; }

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ns(now);
}

/* Writes to files and looks at their times: how often what was just written and closed has two times, though the program
 * was not held up meanwhile, how often they change afterwards, and how often a file is older than one that was looked at
 * before it was written. */
static long look_at_times(const char *directory, int rounds, char *text) {
    static char path[5000], bytes[100000];
    struct stat small, later, large;
    int apart = 0, moved = 0, older = 0;
    snprintf(path, sizeof path, "%s/large", directory);
    int kept = open(path, O_RDWR | O_CREAT, 0644);
    if (kept < 0 || write(kept, bytes, sizeof bytes) != sizeof bytes) return -1;
    for (int round = 0; round < rounds; round++) {
        snprintf(path, sizeof path, "%s/small%d", directory, round % 10);
        long long begun = now_ns();
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || fstat(fd, &small) || write(fd, "x", 1) != 1 || close(fd)) return -1;
        int is_held_up = now_ns() - begun > 3000000;
        if (stat(path, &small)) return -1;
        apart += ns(small.st_mtim) != ns(small.st_ctim) && !is_held_up;
        /* The kernel tells a mount of the last close later. */
        usleep(1000);
        if (stat(path, &later)) return -1;
        moved += ns(small.st_mtim) != ns(later.st_mtim) || ns(small.st_ctim) != ns(later.st_ctim);
        if (pwrite(kept, "y", 1, 70000) != 1 || fstat(kept, &large)) return -1;
        older += ns(large.st_mtim) < ns(small.st_mtim);
    }
    sprintf(text, "apart %d moved %d older %d", apart, moved, older);
    return close(kept);
}

int main(void) {
    static char line[9000], a[4096], b[4096], text[4200];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char what = line[0], *rest = line + 1;
        int k = 0, from = 0;
        long x = 0, y = 0, result = -1;
        struct stat stat_;
        errno = 0;
        text[0] = a[0] = b[0] = 0;
        switch (what) {
        case 'o': sscanf(rest, "%d %s %s", &k, a, b); result = open_files[k] = open(a, flags_of(b), 0644); if (result >= 0) result = 0; break;
        case 'w': sscanf(rest, "%d %ld %s", &k, &x, a); result = pwrite(open_files[k], a, strlen(a), x); break;
        case 'a': sscanf(rest, "%d %s", &k, a); result = write(open_files[k], a, strlen(a)); break;
        case 'r': sscanf(rest, "%d %ld %ld", &k, &x, &y); result = pread(open_files[k], text, y, x); if (result >= 0) text[result] = 0; break;
        case 'z': sscanf(rest, "%d", &k); result = fstat(open_files[k], &stat_) ? -1 : stat_.st_size; break;
        case 'n': sscanf(rest, "%d", &k); result = fstat(open_files[k], &stat_) ? -1 : (long)stat_.st_nlink; break;
        case 'h': sscanf(rest, "%d %ld %ld", &k, &x, &y); result = lseek(open_files[k], x, y); break;
        case 't': sscanf(rest, "%d %ld", &k, &x); result = ftruncate(open_files[k], x); break;
        case 'p': sscanf(rest, "%d %ld %ld", &k, &x, &y); result = fallocate(open_files[k], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, x, y); break;
        case 'P': sscanf(rest, "%d %ld %ld", &k, &x, &y); result = fallocate(open_files[k], 0, x, y); break;
        case 'y': sscanf(rest, "%d", &k); result = fsync(open_files[k]); break;
        case 'c': sscanf(rest, "%d", &k); result = close(open_files[k]); break;
        case 'l': sscanf(rest, "%d %s %ld %ld", &k, a, &x, &y); result = lock(open_files[k], F_SETLK, a[0], x, y); break;
        case 'L': sscanf(rest, "%d %s %ld %ld", &k, a, &x, &y); result = lock(open_files[k], F_SETLKW, a[0], x, y); break;
        case 'W': sscanf(rest, "%d %ld", &k, &x); result = wait_while_closed(open_files[k], open_files[x]); break;
        case 'O': sscanf(rest, "%d %s %ld %ld", &k, a, &x, &y); result = lock(open_files[k], F_OFD_SETLK, a[0], x, y); break;
        case 'g': {
            sscanf(rest, "%d", &k);
            struct flock found = {.l_type = F_WRLCK};
            result = fcntl(open_files[k], F_GETLK, &found);
            if (!result) sprintf(text, "%d %ld %ld", found.l_type, (long)found.l_start, (long)found.l_len);
            break;
        }
        case 'f': sscanf(rest, "%d %s", &k, a); result = flock(open_files[k], (a[0] == 'x' ? LOCK_EX : a[0] == 's' ? LOCK_SH : LOCK_UN) | LOCK_NB); break;
        case 'm': sscanf(rest, "%s %s", a, b); result = rename(a, b); break;
        case 'X': sscanf(rest, "%s %s", a, b); result = renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE); break;
        case 'u': sscanf(rest, "%s", a); result = unlink(a); break;
        case 'd': sscanf(rest, "%s", a); result = mkdir(a, 0755); break;
        case 'D': sscanf(rest, "%s", a); result = chdir(a); break;
        case 'k': sscanf(rest, "%s %s", a, b); result = link(a, b); break;
        case 'K': sscanf(rest, "%d %s", &k, b); sprintf(a, "/proc/self/fd/%d", open_files[k]); result = linkat(AT_FDCWD, a, AT_FDCWD, b, AT_SYMLINK_FOLLOW); break;
        case 'Y': sscanf(rest, "%s %s", a, b); result = symlink(a, b); break;
        case 'R': sscanf(rest, "%s", a); result = readlink(a, text, sizeof text - 1); if (result >= 0) text[result] = 0; break;
        case 'F': sscanf(rest, "%s", a); result = mkfifo(a, 0600); break;
        case 's': sscanf(rest, "%s", a); result = lstat(a, &stat_); if (!result) sprintf(text, "%o %ld", stat_.st_mode, S_ISDIR(stat_.st_mode) ? 0 : (long)stat_.st_size); break;
        case 'b': sscanf(rest, "%s %lo", a, &x); result = chmod(a, x); break;
        case 'j': sscanf(rest, "%d %lo", &k, &x); result = fchmod(open_files[k], x); break;
        case 'q': sscanf(rest, "%s %s", a, b); result = setxattr(a, "user.note", b, strlen(b), 0); break;
        case 'Q': sscanf(rest, "%s", a); result = getxattr(a, "user.note", text, sizeof text - 1); if (result >= 0) text[result] = 0; break;
        case 'M': sscanf(rest, "%d %ld", &k, &x); maps[k] = mmap(NULL, x, PROT_READ | PROT_WRITE, MAP_SHARED, open_files[k], 0); result = maps[k] == MAP_FAILED ? -1 : 0; break;
        case '1': sscanf(rest, "%d %ld", &k, &x); maps[k] = mmap(NULL, x, PROT_READ, MAP_SHARED, open_files[k], 0); result = maps[k] == MAP_FAILED ? -1 : 0; break;
        case '2': sscanf(rest, "%d %ld", &k, &x); maps[k] = mmap(NULL, x, PROT_READ | PROT_WRITE, MAP_PRIVATE, open_files[k], 0); result = maps[k] == MAP_FAILED ? -1 : 0; break;
        case '3': sscanf(rest, "%d %ld", &k, &x); result = munmap(maps[k], x); break;
        case '4': sscanf(rest, "%d %ld", &k, &x); result = mprotect(maps[k], x, PROT_READ | PROT_WRITE); break;
        case '6': sscanf(rest, "%d", &k); children[k] = fork(); if (!children[k]) while (1) pause(); result = children[k] < 0 ? -1 : 0; break;
        case '7': sscanf(rest, "%d", &k); result = kill(children[k], SIGKILL) || waitpid(children[k], NULL, 0) < 0 ? -1 : 0; break;
        case '9': result = unshare(CLONE_NEWNS); break;
        case 'S': sscanf(rest, "%d %ld %s", &k, &x, a); memcpy(maps[k] + x, a, strlen(a)); result = msync(maps[k], x + strlen(a), MS_SYNC); break;
        case '8': sscanf(rest, "%d %ld %s", &k, &x, a); memcpy(maps[k] + x, a, strlen(a)); result = 0; break;
        case 'V': sscanf(rest, "%d %ld %ld", &k, &x, &y); memcpy(text, maps[k] + x, y); text[y] = 0; result = y; break;
        case 'I': sscanf(rest, "%d %d %ld %ld", &k, &from, &x, &y); result = pwrite(open_files[k], maps[from] + x, y, 0); break;
        case 'C': sscanf(rest, "%s %s %d", a, b, &k); result = append(a, b, k); break;
        case 'T': sscanf(rest, "%s %s %d %ld %ld", a, b, &k, &y, &x); result = toil(a, b, k, (enum harm)y, x); if (result < 0) strcpy(text, trouble); break;
        case 'N': sscanf(rest, "%d", &k); sprintf(a, "/proc/self/fd/%d", open_files[k]); result = open(a, O_RDONLY); if (result >= 0) result = close(result); break;
        case 'i': sscanf(rest, "%s", a); result = list(a, text); break;
        case 'U': sscanf(rest, "%d", &k); result = setgroups(0, NULL) || setresgid(k, k, k) ? -1 : setresuid(k, k, k); break;
        case 'x': sscanf(rest, "%s %ld %ld", a, &x, &y); result = lchown(a, x, y); break;
        case 'e': sscanf(rest, "%s %ld", a, &x); result = truncate(a, x); break;
        case 'G': sscanf(rest, "%s %s", a, b); result = write_there(a, b); if (result < 0) strcpy(text, "it reached what is no mount"); break;
        case 'E': sscanf(rest, "%s %s %s", a, b, text); strcpy(trouble, text); text[0] = 0; result = rename_to_and_fro(a, b, trouble); break;
        case 'H': sscanf(rest, "%s %s", a, b); result = replace(a, b); break;
        case 'B': sscanf(rest, "%s", a); result = work_here(a); if (result < 0) strcpy(text, trouble); break;
        case 'A': sscanf(rest, "%s %s", a, b); result = change_there(a, b); if (result < 0) strcpy(text, trouble); break;
        case 'v': sscanf(rest, "%s %d %lx", a, &k, (unsigned long *)&x); result = try_rights(a, k, x, text); break;
        case 'J': {
            int to = 0;
            long bytes = 0;
            sscanf(rest, "%d %ld %d %ld %ld", &k, &x, &to, &y, &bytes);
            result = copy_range(open_files[k], x, open_files[to], y, bytes);
            break;
        }
        case '5': sscanf(rest, "%s", a); birth(a, text); break;
        case '0': sscanf(rest, "%s %d", a, &k); result = look_at_times(a, k, text); break;
        case 'Z': sscanf(rest, "%s", a); result = shut_down(a); break;
        default: errno = EINVAL;
        }
        if (result < 0 && !text[0]) printf("E%d\n", errno);
        else if (text[0]) printf("%s\n", text);
        else printf("%ld\n", result);
    }
    return 0;
}
