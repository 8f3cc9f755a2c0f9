/* Does what its arguments say, with descriptors that it inherits and the directory that it starts in, and prints what
 * comes of it. It is linked statically, so the library is not in it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads a file of pieces of letters, writes each anew, and reads that. Returns how many were wrong. */
static long rewrite(int fd) {
    enum { PIECE = 1 << 20 };
    static char piece[PIECE];
    struct stat found;
    long wrong = fstat(fd, &found) || found.st_size == 0;
    for (long at = 0; at < found.st_size; at += PIECE) {
        if (pread(fd, piece, PIECE, at) != PIECE) wrong++;
        for (int index = 0; index < PIECE; index++)
            if (piece[index] < 'A' || piece[index] > 'z') { wrong++; break; }
        memset(piece, 'Z', PIECE);
        if (pwrite(fd, piece, PIECE, at) != PIECE) wrong++;
        memset(piece, 0, PIECE);
        if (pread(fd, piece, PIECE, at) != PIECE) wrong++;
        for (int index = 0; index < PIECE; index++)
            if (piece[index] != 'Z') { wrong++; break; }
    }
    return wrong;
}

/* Reads the first bytes of a file's pieces, one after the other, for as long as the first one is not `Z`. */
static long watch(int fd) {
    for (long at = 0;;) {
        char byte = 0;
        long count = pread(fd, &byte, 1, at);
        if (count < 0 || (at == 0 && byte == 'Z')) return count < 0 ? count : 0;
        at = count == 0 ? 0 : at + (1 << 20);
    }
}

int main(int count, char **arguments) {
    static char text[4097];
    for (int index = 1; index < count; index++) {
        int fd = atoi(arguments[index] + 1);
        long result = 0;
        struct stat found;
        switch (arguments[index][0]) {
        case 'p': printf("in %s\n", getcwd(text, sizeof text) ? text : "nothing"); continue;
        case 'x': result = readlink("/proc/self/exe", text, 4096), text[result < 0 ? 0 : result] = 0, printf("is %s\n", text); continue;
        case 'm': result = mkdir(arguments[index] + 1, 0755); break;
        case 'l': { DIR *here = fdopendir(dup(fd)); for (struct dirent *e; here && (e = readdir(here));) if (e->d_name[0] != '.') result++; break; }
        case 'w': result = write(fd, "static\n", 7); if (result == 7) continue; break;
        case 'r': result = read(fd, text, 5), text[result < 0 ? 0 : result] = 0, printf("[%s]\n", text); continue;
        case 'f': printf("flags %o at %ld\n", fcntl(fd, F_GETFL) & ~O_NOATIME, (long)lseek(fd, 0, SEEK_CUR)); continue;
        case 's': result = fstat(fd, &found); printf("%ld: %ld names, %ld bytes, mode %o\n", result, (long)found.st_nlink, (long)found.st_size, found.st_mode); continue;
        case 'c': result = rewrite(fd); if (result == 0) continue; break;
        case 'v': result = watch(fd); if (result == 0) continue; break;
        case 'k': result = flock(fd, LOCK_EX | LOCK_NB); break;
        case 'n': result = unshare(CLONE_NEWNS); if (result == 0) continue; break;
        /* The rest is a program and its arguments. Its environment is empty. */
        case 'e': { char *none[] = {NULL}; fflush(stdout); result = execve(arguments[index + 1], arguments + index + 1, none); break; }
        case 'u': result = flock(fd, LOCK_UN); break;
        case 'o': result = openat(fd, "inner", O_RDWR | O_CREAT, 0644); result = result < 0 ? result : 0; break;
        }
        printf("%s %ld %s\n", arguments[index], result, result < 0 ? strerror(errno) : "");
    }
    fflush(stdout);
    return 0;
}
