/* Linked statically, so the library is not loaded: prints where it is and what it can do there. With `wait` it only waits for the end of its input; with `over` it opens a file and prints. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    char path[4096];
    if (count == 2 && strcmp(arguments[1], "wait") == 0)
        return read(0, path, 1) == 0 ? 0 : 1;
    if (count == 3 && strcmp(arguments[1], "over") == 0) {
        int number = open(arguments[2], O_RDWR, 0);
        printf("printed\n");
        fflush(stdout);
        fprintf(stderr, "complained\n");
        return number > 2 ? 0 : 1;
    }
    int made = open("made-alone", O_CREAT | O_RDWR, 0600), names = 0;
    DIR *here = opendir(".");
    while (here && readdir(here))
        names++;
    printf("in %s, %d names, open %s, mkdir %s", getcwd(path, sizeof path), names, made < 0 ? "fails" : "works",
           mkdir("made-too", 0700) ? "fails" : "works");
    for (int index = 1; index < count; index++) {
        int number = arguments[index][0] - '0';
        printf(", %d %s", number, write(number, "alone\n", 6) == 6 ? "works" : errno == EBADF ? "is closed" : "fails");
    }
    puts("");
    return 0;
}
