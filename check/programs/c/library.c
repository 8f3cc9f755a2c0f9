/* The library that sites.c opens: it has a system call instruction of its own. */
#include <stdio.h>

long in_library(long number, long a, long b, long c, long e)
{
    long result;
    register long r10 __asm__("r10") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

int through_stdio(const char *path)
{
    FILE *stream = fopen(path, "a");
    if (!stream)
        return -1;
    int count = fprintf(stream, "from a library\n");
    return fclose(stream) ? -2 : count;
}
