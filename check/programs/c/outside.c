/* alone.c, linked dynamically, whose system calls are made by an instruction that the library does not reach: it has no unwind entry, and lies farther from those that
   have one than what belongs to them. With GO defined nothing shows what the instruction is, but the program has a sign of Go: a note (1), or a section (2).
   With LIBRARY defined it is a library. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef GO
#define LOAD "push %rdi\n pop %rax\n"
#else
#define LOAD "mov %rdi, %rax\n"
#endif

__asm__(".pushsection .text.outside, \"ax\"\n"
        ".skip 1024, 0xcc\n"
        ".globl outside\n .type outside, @function\n outside:\n"
        LOAD "mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n syscall\n ret\n"
        ".skip 1024, 0xcc\n"
        ".popsection\n");
#if GO == 1
__asm__(".pushsection .note.go.buildid, \"a\", @note\n .align 4\n .long 4, 4, 4\n .asciz \"Go\\0\"\n .ascii \"test\"\n .popsection\n");
#elif GO == 2
__asm__(".pushsection .gopclntab, \"a\"\n .long 0xfffffff1\n .popsection\n");
#endif

long outside(long number, long a, long b, long c);

#ifdef LIBRARY
/* Has an unwind entry. In an object without any, all bytes of code count as instructions. */
int inside(int number)
{
    return number + 1;
}
#else
static long call(long number, long a, long b, long c)
{
    long result = outside(number, a, b, c);
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

#define open(path, flags, mode) call(SYS_open, (long)(path), flags, mode)
#define mkdir(path, mode) call(SYS_mkdir, (long)(path), mode, 0)
#define write(number, bytes, count) call(SYS_write, number, (long)(bytes), count)
#define getcwd(path, bytes) (call(SYS_getcwd, (long)(path), bytes, 0) < 0 ? "nowhere" : (path))
#include "alone.c"
#endif
