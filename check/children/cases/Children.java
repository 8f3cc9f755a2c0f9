import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** Threads that write and read files while the main thread starts children: Children DIRECTORY. */
public final class Children {
    private static final int FILES = 40, SIZE = 3000, CHILDREN = 20;
    private static volatile boolean over;
    private static final List<String> failures = Collections.synchronizedList(new ArrayList<>());
    private static Path directory;

    private static byte[] content(String writer, int file, int version) {
        byte[] piece = (writer + "." + file + "." + version + "|").getBytes(StandardCharsets.US_ASCII);
        byte[] bytes = new byte[SIZE];
        for (int at = 0; at < SIZE; at++) {
            bytes[at] = piece[at % piece.length];
        }
        return bytes;
    }

    private static void must(boolean condition, String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
    }

    private static void keep(String writer) {
        try {
            for (int version = 1; !over; version++) {
                for (int file = 0; file < FILES; file++) {
                    try (RandomAccessFile stream = new RandomAccessFile(directory.resolve("company-" + writer + "-" + file).toFile(), "rw")) {
                        stream.setLength(0);
                        for (int start = 0; start < SIZE; start += 1000) {
                            stream.write(content(writer, file, version), start, 1000);
                        }
                        must(stream.getFilePointer() == SIZE, "the offset is " + stream.getFilePointer() + " after " + SIZE + " bytes");
                    }
                }
                for (int file = 0; file < FILES; file++) {
                    byte[] found = Files.readAllBytes(directory.resolve("company-" + writer + "-" + file));
                    must(Arrays.equals(found, content(writer, file, version)), "company-" + writer + "-" + file + ": " + found.length + " bytes, not those written");
                }
            }
        } catch (IOException | IllegalStateException error) {
            failures.add("thread " + writer + ": " + error.getMessage());
        }
    }

    private static int run(ProcessBuilder builder) throws IOException, InterruptedException {
        return builder.start().waitFor();
    }

    private static void children() throws IOException, InterruptedException {
        File log = directory.resolve("log").toFile();
        for (int number = 0; number < CHILDREN && failures.isEmpty(); number++) {
            must(run(new ProcessBuilder("true")) == 0, "child " + number + " failed");
            ProcessBuilder echo = new ProcessBuilder("echo", "child", Integer.toString(number));
            must(run(echo.directory(directory.toFile()).redirectOutput(ProcessBuilder.Redirect.appendTo(log))) == 0, "echo " + number + " failed");
            Process cat = new ProcessBuilder("cat", "quiet-" + number % 10).directory(directory.toFile()).start();
            byte[] read = cat.getInputStream().readAllBytes();
            must(cat.waitFor() == 0 && Arrays.equals(read, content("q", number % 10, 0)), "cat " + number + " gave " + read.length + " bytes");
        }
    }

    public static void main(String[] arguments) throws Exception {
        directory = Path.of(arguments[0]);
        for (int file = 0; file < 10; file++) {
            Files.write(directory.resolve("quiet-" + file), content("q", file, 0));
        }
        List<Thread> threads = new ArrayList<>();
        for (String writer : new String[] {"a", "b"}) {
            threads.add(new Thread(() -> keep(writer)));
        }
        threads.forEach(Thread::start);
        try {
            children();
        } catch (IOException | IllegalStateException error) {
            failures.add("main thread: " + error.getMessage());
        }
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
        for (int file = 0; file < 10; file++) {
            if (!Arrays.equals(Files.readAllBytes(directory.resolve("quiet-" + file)), content("q", file, 0))) {
                failures.add("quiet-" + file + ", which nobody writes, has changed");
            }
        }
        failures.forEach(System.err::println);
        System.out.println(CHILDREN + " times three children");
        System.exit(failures.isEmpty() ? 0 : 1);
    }
}
