/* A random crowd: crowd DIRECTORY SEED COUNT PROGRAM [anywhere]. Threads keep files and verify every byte, offset and errno they are told; other threads
 * make COUNT children in every way. PROGRAM is a static one that ends at once. It ends at the first thing that is wrong, with one line that says which;
 * otherwise standard output says what the files hold, which depends on SEED and COUNT only, and the last line of standard error counts. */
#include "crowd.h"
#include "keepers.h"
#include "parents.h"

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    d = argv[1];
    seed = strtoull(argv[2], NULL, 10);
    child_count = strtoull(argv[3], NULL, 10);
    nothing_path = argv[4];
    anywhere = argc > 5;
    umask(027);
    MUST(signal(SIGUSR2, SIG_IGN) == SIG_DFL);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(board != MAP_FAILED);
    begin_parents();
    begin_keepers();
    MUST(chdir(in(d, "quiet")) == 0 && getcwd(home, sizeof home) != NULL);
    pthread_t threads[KEEPERS + PARENTS], killer;
    MUST(pthread_create(&killer, NULL, kill_victims, (void *)7) == 0);
    for (int number = 0; number < KEEPERS; number++)
        MUST(pthread_create(&threads[number], NULL, run_keeper, &keepers[number]) == 0);
    for (int number = 0; number < PARENTS; number++)
        MUST(pthread_create(&threads[KEEPERS + number], NULL, run_parent, &parents[number]) == 0);
    for (int number = 0; number < KEEPERS + PARENTS; number++)
        MUST(pthread_join(threads[number], NULL) == 0);

    for (int number = 0; number < KEEPERS * KEPT_FILES; number++)
        show_content(name_of(&keepers[number / KEPT_FILES].files[number % KEPT_FILES], 0));
    char name[100];
    for (int number = 0; number < QUIET_NAMES; number++) {
        snprintf(name, sizeof name, "quiet/quiet-%02d", number);
        show_content(in(d, name));
    }
    static const char *const names[] = { "own", "appended", "log", "mapped", "victim" };
    for (int number = 0; number < PARENTS * 5; number++)
        show_content(in(parents[number / 5].directory, names[number % 5]));
    fprintf(stderr, "%llu spawns, %llu operations\n", (unsigned long long)board->made, (unsigned long long)board->operations);
    return 0;
}
