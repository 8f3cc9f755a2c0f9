/* One call on a path, and the name of its error: what a program learns of an array that cannot start. */
#include "check.h"

int main(int argc, char **argv)
{
    char byte;
    int fd = argc > 2 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600) : open(argv[1], O_RDONLY);
    if (fd < 0) {
        printf("open: %s\n", strerrorname_np(errno));
        return 1;
    }
    ssize_t count = argc > 2 ? write(fd, argv[2], strlen(argv[2])) : read(fd, &byte, 1);
    printf("%s: %zd %s\n", argc > 2 ? "write" : "read", count, count < 0 ? strerrorname_np(errno) : "");
    return count < 0;
}
