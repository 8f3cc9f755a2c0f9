/* The threads of a crowd that make children, by every way there is. A child does some calls on files that are reserved for its parent and ends in one of
 * several ways; then its parent verifies what the child did, and that nothing else is different. */
#ifndef PARENTS_H
#define PARENTS_H
#include "crowd.h"

enum { LOG = 100, RECORD_BYTES = 64, RECORDS_MAX = 200, OWN_BYTES_MAX = 9000, VICTIM_BYTES = 3500 };

/* What a child does before it ends. */
enum {
    OWN = 1,        /* makes a file anew, writes and reads it by its offset */
    APPEND = 2,     /* appends a record to a file by a descriptor of its own */
    TO_LOG = 4,     /* writes a record by the descriptor it was born with: its parent's offset moves */
    DIRECTORY = 8,  /* goes to another directory, has another umask */
    DUPLICATE = 16, /* dup2 and close over descriptors that other threads of its parent use */
    RANGE = 32,     /* close_range */
    NAMES = 64,     /* mkdir, rename, link, unlink, rmdir, stat */
    MAP = 128,      /* a shared mapping */
    SIGNALS = 256,  /* other signal actions */
};

enum ending { ENDS, EXECUTES, EXECUTES_STATIC, EXECUTES_NOTHING, KILLS_ITSELF, IS_KILLED };

struct plan {
    int parent, steps, flags, take;
    enum ending ending;
    uint64_t version;
    size_t own_bytes;
};

struct parent {
    int number;
    struct rng rng;
    char directory[3000];
    char *stack;
    /* What the reserved files hold. Records are numbered through. */
    uint64_t records, appended_first, log_first, own_version;
    int appended_count, log_count, own_is_record;
    size_t own_bytes;
};

static struct parent parents[PARENTS];
static const char *nothing_path;
static int anywhere;
static char home[4096];

static const char *reserved(const struct parent *me, const char *name)
{
    return in(me->directory, name);
}

/* The line that is record `number` of a parent: printable, so that echo can write it. */
static void record_of(char *record, int parent, uint64_t number)
{
    snprintf(record, RECORD_BYTES + 1, "%02d %020llu %039llx\n", parent, (unsigned long long)number, (unsigned long long)number * 0x9e3779b97f4a7c15ull);
}

static void own_of(unsigned char *bytes, const struct plan *plan)
{
    bytes_of(bytes, plan->own_bytes, 2000 + plan->parent, plan->version, 0);
}

/* In a child: it ends, and the board says where, unless this holds. */
#define STEP(condition)                                                                                                                                  \
    do {                                                                                                                                                 \
        errno = 0;                                                                                                                                       \
        if (!(condition)) {                                                                                                                              \
            atomic_store(&board->parents[plan->parent].error, errno);                                                                                    \
            atomic_store(&board->parents[plan->parent].line, __LINE__);                                                                                  \
            _exit(77);                                                                                                                                   \
        }                                                                                                                                                \
        atomic_fetch_add_explicit(&board->operations, 1, memory_order_relaxed);                                                                          \
    } while (0)

static void child_writes(const struct plan *plan, const struct parent *me)
{
    unsigned char bytes[OWN_BYTES_MAX], back[OWN_BYTES_MAX + 1];
    char record[RECORD_BYTES + 1];
    struct stat stat;
    if (plan->steps & OWN) {
        own_of(bytes, plan);
        size_t half = plan->own_bytes / 2;
        int fd = open(reserved(me, "own"), O_RDWR | O_CREAT | O_TRUNC, 0666);
        STEP(fd >= 0 && write(fd, bytes, half) == (ssize_t)half);
        STEP(write(fd, bytes + half, plan->own_bytes - half) == (ssize_t)(plan->own_bytes - half));
        STEP(lseek(fd, 0, SEEK_CUR) == (off_t)plan->own_bytes && lseek(fd, 0, SEEK_SET) == 0);
        STEP(read(fd, back, sizeof back) == (ssize_t)plan->own_bytes && memcmp(bytes, back, plan->own_bytes) == 0);
        STEP(ftruncate(fd, half) == 0 && fstat(fd, &stat) == 0 && stat.st_size == (off_t)half);
        STEP(pwrite(fd, bytes + half, plan->own_bytes - half, half) == (ssize_t)(plan->own_bytes - half) && close(fd) == 0);
    }
    uint64_t number = me->records;
    if (plan->steps & APPEND) {
        record_of(record, plan->parent, number++);
        int fd = open(reserved(me, "appended"), O_WRONLY | O_CREAT | O_APPEND, 0666);
        STEP(fd >= 0 && write(fd, record, RECORD_BYTES) == RECORD_BYTES && close(fd) == 0);
    }
    if (plan->steps & TO_LOG) {
        record_of(record, plan->parent, number);
        STEP(lseek(LOG + plan->parent, 0, SEEK_CUR) == (off_t)me->log_count * RECORD_BYTES);
        STEP(write(LOG + plan->parent, record, RECORD_BYTES) == RECORD_BYTES);
    }
}

static void child_goes(const struct plan *plan, const struct parent *me)
{
    unsigned char back[8];
    struct stat stat;
    if (plan->steps & DIRECTORY) {
        STEP(chdir(me->directory) == 0);
        umask(077);
        int fd = open("relative", O_WRONLY | O_CREAT | O_EXCL, 0666);
        STEP(fd >= 0 && fstat(fd, &stat) == 0 && (stat.st_mode & 07777) == 0600 && close(fd) == 0);
        STEP(unlink("relative") == 0 && open("quiet-00", O_RDONLY) == -1 && errno == ENOENT);
    }
    if (plan->steps & DUPLICATE) {
        for (int target = 3 + plan->take % 5; target < 40; target += 5)
            STEP(target % 2 ? dup2(LOG + plan->parent, target) == target : close(target) == 0 || errno == EBADF);
        int fd = open(reserved(me, "log"), O_RDONLY);
        STEP(fd >= 0 && dup2(fd, 41) == 41 && close(fd) == 0 && pread(41, back, 8, 0) >= 0);
    }
    if (plan->steps & RANGE) {
        STEP(close_range(3, LOG - 1, 0) == 0 && write(5, back, 1) == -1 && errno == EBADF);
        STEP(lseek(LOG + plan->parent, 0, SEEK_CUR) >= 0);
    }
    if (plan->steps & NAMES) {
        STEP(mkdir(reserved(me, "new"), 0777) == 0);
        int fd = open(reserved(me, "new/one"), O_WRONLY | O_CREAT | O_EXCL, 0666);
        STEP(fd >= 0 && write(fd, "new", 3) == 3 && close(fd) == 0 && rename(reserved(me, "new/one"), reserved(me, "new/two")) == 0);
        STEP(link(reserved(me, "new/two"), reserved(me, "new/three")) == 0 && lstat(reserved(me, "new/two"), &stat) == 0 && stat.st_nlink == 2);
        STEP(stat.st_size == 3 && unlink(reserved(me, "new/two")) == 0 && unlink(reserved(me, "new/three")) == 0);
        STEP(access(reserved(me, "new/one"), F_OK) == -1 && errno == ENOENT && rmdir(reserved(me, "new")) == 0);
    }
    if (plan->steps & MAP) {
        int fd = open(reserved(me, "mapped"), O_RDWR | O_CREAT, 0666);
        STEP(fd >= 0 && ftruncate(fd, 5000) == 0);
        char *map = mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        STEP(map != MAP_FAILED);
        memset(map, 'm', 5000);
        STEP(munmap(map, 5000) == 0 && pread(fd, back, 8, 4992) == 8 && memcmp(back, "mmmmmmmm", 8) == 0 && close(fd) == 0);
    }
    if (plan->steps & SIGNALS)
        STEP(signal(SIGUSR2, SIG_DFL) == SIG_IGN && signal(SIGTERM, SIG_IGN) == SIG_DFL);
}

/* Until somebody kills it, which may be in the middle of any call. */
static __attribute__((noreturn)) void child_waits(const struct plan *plan, const struct parent *me)
{
    unsigned char bytes[VICTIM_BYTES];
    memset(bytes, 'v', sizeof bytes);
    atomic_store(&board->parents[plan->parent].victim, getpid());
    for (;;) {
        int fd = open(reserved(me, "victim"), O_RDWR | O_CREAT | O_TRUNC, 0666);
        STEP(fd >= 0 && write(fd, bytes, sizeof bytes) == sizeof bytes && pread(fd, bytes, sizeof bytes, 0) == sizeof bytes);
        STEP(bytes[0] == 'v' && bytes[sizeof bytes - 1] == 'v' && close(fd) == 0);
    }
}

static __attribute__((noreturn)) int child(void *argument)
{
    const struct plan *plan = argument;
    const struct parent *me = &parents[plan->parent];
    char *const arguments[] = { "true", NULL };
    child_writes(plan, me);
    child_goes(plan, me);
    switch (plan->ending) {
    case EXECUTES:
        execve("/bin/true", arguments, environ);
        STEP(!"/bin/true");
        break;
    case EXECUTES_STATIC:
        execve(nothing_path, arguments, environ);
        STEP(!"a static program");
        break;
    case EXECUTES_NOTHING:
        STEP(execve(reserved(me, "no-such-program"), arguments, environ) == -1 && errno == ENOENT);
        break;
    case KILLS_ITSELF:
        kill(getpid(), SIGKILL);
        break;
    case IS_KILLED:
        child_waits(plan, me);
    case ENDS:
        break;
    }
    _exit(0);
}

/* Kills children that wait for it, some time after they began. They do not end by themselves, so their numbers are their own. */
static void *kill_victims(void *argument)
{
    struct rng rng = { seed + (uintptr_t)argument };
    for (;;) {
        for (int parent = 0; parent < PARENTS; parent++) {
            pid_t pid = atomic_exchange(&board->parents[parent].victim, 0);
            if (pid == 0)
                continue;
            struct timespec time = { 0, below(&rng, 400000) };
            nanosleep(&time, NULL);
            if (kill(pid, SIGKILL) != 0)
                wrong("kill of a child: %s", strerrorname_np(errno));
        }
        pause_briefly();
    }
    return NULL;
}

/* echo writes a record: into a file made anew, behind others, or by the parent's descriptor. */
static pid_t spawn_echo(struct parent *me, int step)
{
    char record[RECORD_BYTES + 1];
    posix_spawn_file_actions_t actions;
    record_of(record, me->number, me->records);
    record[RECORD_BYTES - 1] = 0;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    if (step == TO_LOG)
        MUST(posix_spawn_file_actions_adddup2(&actions, LOG + me->number, 1) == 0);
    else {
        MUST(posix_spawn_file_actions_addchdir_np(&actions, me->directory) == 0);
        const char *name = step == OWN ? "own" : "appended";
        MUST(posix_spawn_file_actions_addopen(&actions, 1, name, O_WRONLY | O_CREAT | (step == OWN ? O_TRUNC : O_APPEND), 0666) == 0);
    }
    MUST(posix_spawn_file_actions_addclose(&actions, LOG + me->number) == 0);
    pid_t pid = spawn((char *[]){ "/bin/echo", record, NULL }, &actions, NULL);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void file_is(const struct parent *me, const char *name, const void *expected, size_t count, size_t offset, size_t size)
{
    unsigned char back[OWN_BYTES_MAX + 1];
    char what[100];
    snprintf(what, sizeof what, "parent-%d/%s", me->number, name);
    int fd = open(reserved(me, name), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        wrong("%s: open: %s", what, strerrorname_np(errno));
    struct stat stat;
    if (fstat(fd, &stat) != 0 || stat.st_size != (off_t)size)
        wrong("%s: %lld bytes, must be %zu", what, (long long)stat.st_size, size);
    ssize_t got = pread(fd, back, count, offset);
    if (got != (ssize_t)count)
        wrong("%s: pread gave %zd of %zu (%s)", what, got, count, strerrorname_np(errno));
    same_bytes(what, back, expected, count, offset);
    if (close(fd) != 0)
        wrong("%s: close: %s", what, strerrorname_np(errno));
    count_operations(4);
}

/* Every record of `count` from the first on. */
static void records_are(const struct parent *me, const char *name, const uint64_t *numbers, int count)
{
    static __thread char records[RECORDS_MAX * RECORD_BYTES + 1];
    int from = count > OWN_BYTES_MAX / RECORD_BYTES ? count - OWN_BYTES_MAX / RECORD_BYTES : 0;
    for (int index = from; index < count; index++)
        record_of(records + (index - from) * RECORD_BYTES, me->number, numbers[index]);
    file_is(me, name, records, (size_t)(count - from) * RECORD_BYTES, (size_t)from * RECORD_BYTES, (size_t)count * RECORD_BYTES);
}

static uint64_t appended_numbers[PARENTS][RECORDS_MAX], log_numbers[PARENTS][RECORDS_MAX];

/* The files as the child must have left them. */
static void verify_files(struct parent *me, const struct plan *plan, int by_echo)
{
    unsigned char bytes[OWN_BYTES_MAX];
    char record[RECORD_BYTES + 1];
    if (plan->steps & OWN && by_echo) {
        record_of(record, me->number, me->records++);
        file_is(me, "own", record, RECORD_BYTES, 0, RECORD_BYTES);
    } else if (plan->steps & OWN) {
        own_of(bytes, plan);
        file_is(me, "own", bytes, plan->own_bytes, 0, plan->own_bytes);
    }
    if (plan->steps & APPEND) {
        appended_numbers[me->number][me->appended_count++] = me->records++;
        records_are(me, "appended", appended_numbers[me->number], me->appended_count);
    }
    if (plan->steps & TO_LOG) {
        log_numbers[me->number][me->log_count++] = me->records++;
        records_are(me, "log", log_numbers[me->number], me->log_count);
    }
    if (me->appended_count == RECORDS_MAX) {
        MUST(truncate(reserved(me, "appended"), 0) == 0);
        me->appended_count = 0;
    }
    if (me->log_count == RECORDS_MAX) {
        MUST(ftruncate(LOG + me->number, 0) == 0 && lseek(LOG + me->number, 0, SEEK_SET) == 0);
        me->log_count = 0;
    }
    if (plan->ending == IS_KILLED) {
        /* It holds what the child wrote or what the parent had, or zeros, in any length; and it is a file like others. */
        int fd = open(reserved(me, "victim"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        ssize_t count = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
        if (count < 0 || count > VICTIM_BYTES)
            wrong("parent-%d/victim: read gave %zd (%s)", me->number, count, strerrorname_np(errno));
        for (ssize_t index = 0; index < count; index++)
            if (bytes[index] != 'v' && bytes[index] != 'p' && bytes[index] != 0)
                wrong("parent-%d/victim: byte %zd is %02x", me->number, index, bytes[index]);
        memset(bytes, 'p', sizeof bytes);
        if (pwrite(fd, bytes, VICTIM_BYTES, 0) != VICTIM_BYTES || ftruncate(fd, VICTIM_BYTES) != 0 || close(fd) != 0)
            wrong("parent-%d/victim: written by the parent: %s", me->number, strerrorname_np(errno));
        file_is(me, "victim", bytes, VICTIM_BYTES, 0, VICTIM_BYTES);
    }
}

/* What the process has: its descriptors, its directory, its signal actions. */
static void verify_parent(const struct parent *me)
{
    char path[4096];
    off_t offset = lseek(LOG + me->number, 0, SEEK_CUR);
    if (offset != (off_t)me->log_count * RECORD_BYTES)
        wrong("parent-%d/log: the offset is %lld (%s), must be %d", me->number, (long long)offset, strerrorname_np(errno), me->log_count * RECORD_BYTES);
    if (getcwd(path, sizeof path) == NULL || strcmp(path, home) != 0)
        wrong("parent %d: in directory %s, must be %s", me->number, path, home);
    struct sigaction usr2, term;
    if (sigaction(SIGUSR2, NULL, &usr2) != 0 || usr2.sa_handler != SIG_IGN || sigaction(SIGTERM, NULL, &term) != 0 || term.sa_handler != SIG_DFL)
        wrong("parent %d: its signal actions are not its own", me->number);
    count_operations(4);
}

/* One way to make a child: its flags of clone(2), and by what. */
enum by { BY_VFORK, BY_FORK, BY_CLONE, BY_CLONE_LIKE_FORK, BY_SPAWN };

static pid_t begin(struct parent *me, const struct plan *plan, enum by by)
{
    pid_t pid;
    switch (by) {
    case BY_VFORK:
        if ((pid = vfork()) == 0)
            child((void *)plan);
        return pid;
    case BY_FORK:
        if ((pid = fork()) == 0)
            child((void *)plan);
        return pid;
    case BY_CLONE:
        return clone(child, me->stack + STACK_BYTES, plan->flags | SIGCHLD, (void *)plan);
    case BY_CLONE_LIKE_FORK:
        if ((pid = syscall(SYS_clone, plan->flags | SIGCHLD, NULL, NULL, NULL, NULL)) == 0)
            child((void *)plan);
        return pid;
    default:
        return spawn_echo(me, plan->steps);
    }
}

/* Draws what the next child is. */
static enum by draw_plan(struct parent *me, struct plan *plan)
{
    uint64_t chance = below(&me->rng, 100), flags = draw(&me->rng);
    enum by by = chance < 32 ? BY_VFORK : chance < 47 ? BY_SPAWN : chance < 60 ? BY_FORK : chance < 86 ? BY_CLONE : BY_CLONE_LIKE_FORK;
    *plan = (struct plan){ .parent = me->number, .take = draw(&me->rng) % 1000, .version = ++me->own_version, .own_bytes = 2 + below(&me->rng, OWN_BYTES_MAX - 2) };
    if (by == BY_SPAWN) {
        plan->steps = OWN << below(&me->rng, 3);
        return by;
    }
    if (by == BY_VFORK)
        plan->flags = CLONE_VM | CLONE_VFORK;
    if (by == BY_CLONE || by == BY_CLONE_LIKE_FORK)
        plan->flags = (flags & 1 ? CLONE_FILES : 0) | (flags & 2 ? CLONE_FS : 0);
    if (by == BY_CLONE && flags & 12)
        plan->flags |= CLONE_VM | CLONE_VFORK | (flags & 16 ? CLONE_SIGHAND : 0);
    /* What it shares with its parent it leaves alone. */
    plan->steps = draw(&me->rng) & draw(&me->rng) & 511;
    plan->steps &= ~((plan->flags & CLONE_FS ? DIRECTORY : 0) | (plan->flags & CLONE_FILES ? DUPLICATE | RANGE : 0));
    plan->steps &= ~((plan->flags & CLONE_VM ? MAP : 0) | (plan->flags & CLONE_SIGHAND ? SIGNALS : 0));
    chance = below(&me->rng, 100);
    plan->ending = chance < 72 ? ENDS : chance < 84 ? EXECUTES : chance < 87 ? EXECUTES_STATIC : chance < 91 ? EXECUTES_NOTHING : chance < 95 ? KILLS_ITSELF : IS_KILLED;
    /* A child that is killed with a descriptor in its parent's table leaves it there. One in its parent's memory is killed in the middle only if asked for. */
    if (plan->ending == IS_KILLED && (plan->flags & CLONE_FILES || (plan->flags & CLONE_VM && !anywhere)))
        plan->ending = KILLS_ITSELF;
    return by;
}

static void *run_parent(void *argument)
{
    struct parent *me = argument;
    uint64_t mine = child_count / PARENTS + ((uint64_t)me->number < child_count % PARENTS);
    for (uint64_t index = 0; index < mine; index++) {
        uint64_t turn = atomic_fetch_add(&board->made, 1);
        for (int keeper = 0; keeper < KEEPERS; keeper++)
            while (atomic_load(&board->kept[keeper]) + AHEAD * OPERATIONS_PER_CHILD < turn * OPERATIONS_PER_CHILD)
                pause_briefly();
        struct plan plan;
        enum by by = draw_plan(me, &plan);
        int status = wait_for(begin(me, &plan, by));
        int expected = plan.ending == KILLS_ITSELF || plan.ending == IS_KILLED ? 1000 + SIGKILL : 0;
        if (status != expected)
            wrong("child %llu of parent %d (by %d, flags %x, steps %x, ending %d) ended with %d, must be %d; parents.h:%d: %s", (unsigned long long)index,
                  me->number, by, plan.flags, plan.steps, plan.ending, status, expected, board->parents[me->number].line,
                  strerrorname_np(board->parents[me->number].error));
        verify_files(me, &plan, by == BY_SPAWN);
        verify_parent(me);
    }
    return NULL;
}

static void begin_parents(void)
{
    for (int number = 0; number < PARENTS; number++) {
        struct parent *me = &parents[number];
        me->number = number;
        me->rng.state = seed * 1000 + 500 + number;
        me->stack = new_stack();
        snprintf(me->directory, sizeof me->directory, "%s/parent-%d", d, number);
        MUST(mkdir(me->directory, 0755) == 0);
        open_as(LOG + number, reserved(me, "log"), O_RDWR | O_CREAT | O_TRUNC, 0666);
        const char *names[] = { "own", "appended", "mapped", "victim" };
        for (int index = 0; index < 4; index++)
            MUST(close(open(reserved(me, names[index]), O_WRONLY | O_CREAT, 0666)) == 0);
    }
}
#endif
