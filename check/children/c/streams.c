/* Directory streams across children: streams DIRECTORY WAY. A stream that was begun gives each name exactly once, also if a child was made, or closed its
 * own copy of it, in between. The names fill more than one of the C library's buffers. */
#include "children.h"
#include <dirent.h>

enum { NAMES = 400 };
static const char *d;

static void make(const char *way, DIR *stream)
{
    char *const nothing[] = { "true", NULL };
    pid_t pid;
    if (strcmp(way, "spawn") == 0)
        pid = spawn(nothing, NULL, NULL);
    else if (strcmp(way, "vfork") == 0) {
        if ((pid = vfork()) == 0) {
            close(dirfd(stream));
            _exit(0);
        }
    } else if ((pid = fork()) == 0) {
        closedir(stream);
        if (strcmp(way, "fork-exec") == 0)
            execl("/bin/true", "true", (char *)NULL);
        _exit(strcmp(way, "fork-exec") == 0 ? 88 : 0);
    }
    int status = wait_for(pid);
    if (status != 0)
        wrong("the child ended with %d", status);
}

/* Marks the name, which must be a new one; whether there was one. */
static int next(DIR *stream, char *seen, const char *when)
{
    errno = 0;
    struct dirent *entry = readdir(stream);
    if (entry == NULL && errno != 0)
        wrong("%s: readdir: %s", when, strerrorname_np(errno));
    if (entry == NULL)
        return 0;
    if (entry->d_name[0] == '.')
        return 1;
    int number = atoi(entry->d_name);
    if (number < 0 || number >= NAMES)
        wrong("%s: a name that nobody made: %s", when, entry->d_name);
    if (seen[number]++)
        wrong("%s: name %d for the second time", when, number);
    return 1;
}

static void all_seen(char *seen, const char *when)
{
    for (int number = 0; number < NAMES; number++)
        if (!seen[number])
            wrong("%s: name %d never came", when, number);
    memset(seen, 0, NAMES);
    printf("%s: each name once\n", when);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    d = argv[1];
    char name[256], seen[NAMES] = { 0 };
    MUST(mkdir(in(d, "names"), 0755) == 0);
    for (int number = 0; number < NAMES; number++) {
        snprintf(name, sizeof name, "names/%03d-%0200d", number, 0);
        MUST(close(open(in(d, name), O_WRONLY | O_CREAT, 0644)) == 0);
    }
    company_begins(d);
    for (int round = 0; round < 3; round++) {
        DIR *stream = opendir(in(d, "names"));
        MUST(stream != NULL);
        MUST(next(stream, seen, "once, then a child"));
        make(argv[2], stream);
        while (next(stream, seen, "once, then a child"))
            ;
        all_seen(seen, "once, then a child");

        rewinddir(stream);
        for (int count = 0; next(stream, seen, "children all the time"); count++)
            if (count % 60 == 59)
                make(argv[2], stream);
        all_seen(seen, "children all the time");

        /* A place is told, more is read, a child is made, and the place is found again. */
        rewinddir(stream);
        char later[NAMES];
        for (int count = 0; count < 30 + 160 * round; count++)
            MUST(next(stream, seen, "to the place"));
        long place = telldir(stream);
        memcpy(later, seen, NAMES);
        for (int count = 0; count < 10; count++)
            next(stream, later, "behind the place");
        make(argv[2], stream);
        seekdir(stream, place);
        while (next(stream, seen, "from the place"))
            ;
        all_seen(seen, "from the place");
        MUST(closedir(stream) == 0);
    }
    company_ends();
    return 0;
}
