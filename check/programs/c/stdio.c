/* Buffered C streams: every mode, seeking, switching between reading and writing, buffers of every kind. */
#include "check.h"
#include <wchar.h>

static const char *directory;

static void write_lines(const char *name, int count)
{
    FILE *stream = fopen(in(directory, name), "w");
    MUST(stream);
    for (int line = 0; line < count; line++)
        MUST(fprintf(stream, "line %d: %*d|%s\n", line, line % 60, line * 7, line % 3 ? "odd" : "third") > 0);
    printf("%s: at %ld before closing\n", name, ftell(stream));
    MUST(fclose(stream) == 0);
}

static void read_lines(const char *name)
{
    FILE *stream = fopen(in(directory, name), "r");
    MUST(stream);
    char line[256];
    uint64_t hash = 0;
    int count = 0;
    while (fgets(line, sizeof line, stream)) {
        hash = sum(line, strlen(line), hash);
        count++;
    }
    printf("%s: %d lines, sum %016llx, eof %d, error %d\n", name, count, (unsigned long long)hash, feof(stream) != 0, ferror(stream));
    rewind(stream);
    MUST(fgets(line, sizeof line, stream));
    printf("first: %s", line);
    fclose(stream);
}

static void seek_and_patch(const char *name)
{
    FILE *stream = fopen(in(directory, name), "r+");
    MUST(stream);
    char piece[16];
    MUST(fseek(stream, 1000, SEEK_SET) == 0 && fread(piece, 1, 10, stream) == 10);
    printf("at 1000: %.10s, now at %ld\n", piece, ftell(stream));
    MUST(fseek(stream, -5, SEEK_CUR) == 0 && fwrite("PATCH", 1, 5, stream) == 5);
    MUST(fseek(stream, -20, SEEK_END) == 0 && fputs("NEAR THE END", stream) >= 0);
    MUST(fseek(stream, 70000, SEEK_SET) == 0 && fputs("far", stream) >= 0);
    MUST(fflush(stream) == 0);
    MUST(fseek(stream, 1005, SEEK_SET) == 0);
    int c = getc(stream);
    ungetc('#', stream);
    printf("patched: %c, pushed back: %c\n", c, getc(stream));
    fpos_t position;
    MUST(fgetpos(stream, &position) == 0 && fseek(stream, 0, SEEK_END) == 0);
    printf("length %ld\n", ftell(stream));
    MUST(fsetpos(stream, &position) == 0);
    printf("back at %ld\n", ftell(stream));
    fclose(stream);
}

static void append(const char *name)
{
    for (int round = 0; round < 3; round++) {
        FILE *stream = fopen(in(directory, name), round == 2 ? "a+" : "a");
        MUST(stream);
        fprintf(stream, "appended %d\n", round);
        if (round == 2) {
            char line[64];
            rewind(stream);
            MUST(fgets(line, sizeof line, stream));
            printf("a+ reads from the start: %s", line);
            fseek(stream, 0, SEEK_SET);
            fputs("still at the end\n", stream);
        }
        fclose(stream);
    }
}

static void reopen(const char *name, const char *other)
{
    FILE *stream = fopen(in(directory, name), "r");
    MUST(stream && (stream = freopen(in(directory, other), "w", stream)));
    fputs("through a reopened stream\n", stream);
    fclose(stream);
    int kept = dup(1);
    fflush(stdout);
    MUST(freopen(in(directory, "as-stdout"), "w", stdout));
    printf("standard output in the array\n");
    fflush(stdout);
    MUST(dup2(kept, 1) == 1);
    close(kept);
    stream = fopen(in(directory, "as-stdout"), "r");
    char line[64];
    MUST(stream && fgets(line, sizeof line, stream));
    printf("read back: %s", line);
    fclose(stream);
}

static void buffers(const char *name)
{
    static char own[333];
    int modes[] = { _IOFBF, _IOLBF, _IONBF };
    for (int index = 0; index < 3; index++) {
        FILE *stream = fopen(in(directory, name), index ? "a" : "w");
        MUST(stream && setvbuf(stream, modes[index] == _IONBF ? NULL : own, modes[index], modes[index] == _IONBF ? 0 : sizeof own) == 0);
        for (int item = 0; item < 200; item++)
            fprintf(stream, "%d %d\n", index, item);
        fclose(stream);
    }
    show_content(in(directory, name));
}

static void descriptors(const char *name)
{
    int fd = open(in(directory, name), O_RDWR | O_CREAT | O_TRUNC, 0640);
    MUST(fd >= 0);
    FILE *stream = fdopen(fd, "w+");
    MUST(stream);
    fputs("before the descriptor, ", stream);
    fflush(stream);
    MUST(write(fd, "raw, ", 5) == 5);
    fputs("after\n", stream);
    fclose(stream);
    fd = open(in(directory, name), O_WRONLY | O_APPEND);
    dprintf(fd, "%s %d\n", "dprintf", 42);
    close(fd);
    show_content(in(directory, name));
}

static void binary(const char *name)
{
    static unsigned char out[100003], back[100003];
    fill(out, sizeof out, 5);
    FILE *stream = fopen(in(directory, name), "wb+");
    MUST(stream && fwrite(out, 7, sizeof out / 7, stream) == sizeof out / 7);
    MUST(fseek(stream, 0, SEEK_SET) == 0);
    size_t count = fread(back, 1, sizeof back, stream);
    printf("%zu bytes back, %s\n", count, memcmp(out, back, count) ? "different" : "the same");
    MUST(ftruncate(fileno(stream), 50001) == 0 && fseek(stream, 0, SEEK_END) == 0);
    printf("cut to %ld\n", ftell(stream));
    fclose(stream);
    SHOW((long)(fopen(in(directory, "none/such"), "r") ? 0 : -1));
    SHOW((long)(fopen(in(directory, name), "wx") ? 0 : -1));
    SHOW(remove(in(directory, "none")));
    SHOW(rename(in(directory, name), in(directory, "renamed")));
}

int main(int argc, char **argv)
{
    (void)argc;
    directory = argv[1];
    write_lines("lines", 5000);
    read_lines("lines");
    seek_and_patch("lines");
    append("log");
    reopen("lines", "reopened");
    buffers("buffers");
    descriptors("descriptors");
    binary("binary");
    show_content(in(directory, "lines"));
    show_content(in(directory, "log"));
    return 0;
}
