/* Fork while another thread is always inside a write: writer DIRECTORY WAY COUNT. The child executes a program, ends, or works on files itself. */
#include "children.h"

enum { RECORD_BYTES = 100, RECORDS = 500 };
static atomic_int over;
static int fd;

static void *write_always(void *argument)
{
    (void)argument;
    unsigned char record[RECORD_BYTES], back[RECORD_BYTES];
    for (int round = 0; !atomic_load(&over); round++) {
        MUST((round % 3 != 0 || ftruncate(fd, 0) == 0) && lseek(fd, 0, SEEK_SET) == 0);
        for (int index = 0; index < RECORDS; index++) {
            fill(record, RECORD_BYTES, index);
            ssize_t count = write(fd, record, RECORD_BYTES);
            if (count != RECORD_BYTES)
                wrong("record %d: write gave %zd (%s)", index, count, strerrorname_np(errno));
        }
        off_t offset = lseek(fd, 0, SEEK_CUR);
        if (offset != RECORD_BYTES * RECORDS)
            wrong("the offset is %lld after %d bytes", (long long)offset, RECORD_BYTES * RECORDS);
        for (int index = 0; index < RECORDS; index++) {
            fill(record, RECORD_BYTES, index);
            ssize_t count = pread(fd, back, RECORD_BYTES, (off_t)index * RECORD_BYTES);
            if (count != RECORD_BYTES)
                wrong("record %d: pread gave %zd (%s)", index, count, strerrorname_np(errno));
            same_bytes("the records", back, record, RECORD_BYTES, index * RECORD_BYTES);
        }
    }
    return NULL;
}

/* What a child does that is forked by a program with threads: only calls that are async-signal-safe. */
static void work(const char *directory, int number)
{
    char text[40], back[40];
    int length = snprintf(text, sizeof text, "child %d\n", number);
    int own = open(in(directory, "child"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (own < 0 || write(own, text, length) != length || pread(own, back, sizeof back, 0) != length || memcmp(text, back, length) != 0)
        _exit(81);
    if (lseek(own, 0, SEEK_CUR) != length || close(own) != 0)
        _exit(82);
    struct stat stat;
    if (fstat(fd, &stat) != 0 || stat.st_size > RECORD_BYTES * RECORDS)
        _exit(83);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    int count = atoi(argv[3]), failed = 0;
    pthread_t thread;
    fd = open(in(argv[1], "records"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && pthread_create(&thread, NULL, write_always, NULL) == 0);
    for (int index = 0; index < count; index++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (strcmp(argv[2], "exec") == 0)
                execl("/bin/true", "true", (char *)NULL);
            else if (strcmp(argv[2], "work") == 0)
                work(argv[1], index);
            _exit(0);
        }
        int status = wait_for(pid);
        if (status != 0)
            wrong("child %d ended with %d", index, status);
    }
    atomic_store(&over, 1);
    MUST(pthread_join(thread, NULL) == 0);
    printf("%s: %d children, %d failed\n", argv[2], count, failed);
    show_content(in(argv[1], "records"));
    return 0;
}
