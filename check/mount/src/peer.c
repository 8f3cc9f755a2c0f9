/* Makes calls on files as its standard input says, a line each, and answers each with a line: a value, or E and an
 * error number. Linked statically it reaches an array by a mount alone; linked dynamically, by the library. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int open_files[32];
static char *maps[32];

static int flags_of(const char *word) {
    int flags = strchr(word, 'w') ? O_RDWR : O_RDONLY;
    if (strchr(word, 'c')) flags |= O_CREAT;
    if (strchr(word, 'x')) flags |= O_EXCL;
    if (strchr(word, 'a')) flags |= O_APPEND;
    if (strchr(word, 't')) flags |= O_TRUNC;
    if (strchr(word, 'u')) flags |= O_TMPFILE;
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

int main(void) {
    static char line[9000], a[4096], b[4096], text[4200];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char what = line[0], *rest = line + 1;
        int k = 0;
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
        case 'S': sscanf(rest, "%d %ld %s", &k, &x, a); memcpy(maps[k] + x, a, strlen(a)); result = msync(maps[k], x + strlen(a), MS_SYNC); break;
        case 'V': sscanf(rest, "%d %ld %ld", &k, &x, &y); memcpy(text, maps[k] + x, y); text[y] = 0; result = y; break;
        case 'C': sscanf(rest, "%s %s %d", a, b, &k); result = append(a, b, k); break;
        default: errno = EINVAL;
        }
        if (result < 0) printf("E%d\n", errno);
        else if (text[0]) printf("%s\n", text);
        else printf("%ld\n", result);
    }
    return 0;
}
