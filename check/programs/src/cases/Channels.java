// Java's FileChannel, Files and streams.
import java.io.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.util.*;
import java.util.stream.*;
import java.util.zip.CRC32;
import static java.nio.file.StandardOpenOption.*;

public class Channels {
    static Path d, w;
    static Random random;

    static byte[] bytes(int count) {
        byte[] bytes = new byte[count];
        random.nextBytes(bytes);
        return bytes;
    }

    static String sum(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return bytes.length + ":" + Long.toHexString(crc.getValue());
    }

    static void channel() throws IOException {
        Path file = d.resolve("channel");
        byte[] model = new byte[400000];
        int size = 0;
        try (FileChannel channel = FileChannel.open(file, CREATE, READ, WRITE)) {
            for (int round = 0; round < 150; round++) {
                int at = random.nextInt(300000), count = 1 + random.nextInt(20000);
                byte[] data = bytes(count);
                if (channel.write(ByteBuffer.wrap(data), at) != count) throw new IOException("short write");
                System.arraycopy(data, 0, model, at, count);
                size = Math.max(size, at + count);
                ByteBuffer back = round % 2 == 0 ? ByteBuffer.allocate(5000) : ByteBuffer.allocateDirect(5000);
                int read = channel.read(back, at);
                back.flip();
                if (!back.equals(ByteBuffer.wrap(model, at, read))) throw new IOException("different at " + at);
            }
            System.out.println(channel.size() == size);
            channel.position(1000);
            channel.write(new ByteBuffer[] { ByteBuffer.wrap("gather".getBytes()), ByteBuffer.allocate(0), ByteBuffer.wrap("ed".getBytes()) });
            System.out.println(channel.position());
            channel.position(1000);
            ByteBuffer[] scattered = { ByteBuffer.allocate(3), ByteBuffer.allocate(5) };
            System.out.println(channel.read(scattered) + " " + new String(scattered[1].array()));
            channel.truncate(123457);
            channel.force(true);
            System.out.println(channel.position() + " " + channel.size());
            try (FileLock lock = channel.lock(0, 100, false)) {
                System.out.println(lock.isValid());
            }
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_ONLY, 1000, 100000);
            byte[] mapped = new byte[100000];
            map.get(mapped);
            System.out.println(sum(mapped));
            MappedByteBuffer copy = channel.map(FileChannel.MapMode.PRIVATE, 0, 5000);
            copy.put(0, (byte) 1);
            System.out.println(copy.get(0));
            MappedByteBuffer shared = channel.map(FileChannel.MapMode.READ_WRITE, 0, 5000);
            shared.put(10, (byte) 77);
            shared.put(4999, (byte) 78);
            shared.force();
            ByteBuffer stored = ByteBuffer.allocate(4990);
            channel.read(stored, 10);
            System.out.println(stored.get(0) + " " + stored.get(4989));
        }
        System.out.println(sum(Files.readAllBytes(file)));
    }

    /** A mapping of many stripes that grows the file, stored to all over and synchronised in parts; read back by calls. */
    static void largeMapping() throws IOException {
        Path file = d.resolve("large");
        int size = 6 << 20;
        try (FileChannel channel = FileChannel.open(file, CREATE, READ, WRITE)) {
            channel.write(ByteBuffer.wrap(bytes(1 << 20)));
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_WRITE, 0, size);
            for (int round = 0; round < 20; round++) {
                for (int store = 0; store < 200; store++) {
                    map.putLong(random.nextInt(size / 8) * 8, random.nextLong());
                }
                if (round % 3 == 0) {
                    map.force(random.nextInt(size / 2), size / 2);
                }
            }
            map.put(size - 4096, bytes(4096));
            map.force();
            System.out.println(channel.size() + " " + map.get(size - 1));
        }
        System.out.println(sum(Files.readAllBytes(file)));
    }

    static void transfers() throws IOException {
        Path from = d.resolve("channel"), host = w.resolve("transferred");
        try (FileChannel in = FileChannel.open(from, READ);
             FileChannel out = FileChannel.open(d.resolve("transferred"), CREATE, WRITE);
             FileChannel outside = FileChannel.open(host, CREATE, READ, WRITE, TRUNCATE_EXISTING)) {
            System.out.println(in.transferTo(100, 100000, out));
            System.out.println(in.transferTo(0, 123457, outside));
            System.out.println(out.transferFrom(outside.position(0), 100000, 50000));
        }
        System.out.println(sum(Files.readAllBytes(d.resolve("transferred"))) + " " + sum(Files.readAllBytes(host)));
        try (FileChannel appending = FileChannel.open(d.resolve("appended"), CREATE, APPEND)) {
            for (int line = 0; line < 100; line++) appending.write(ByteBuffer.wrap(("line " + line + "\n").getBytes()));
        }
        System.out.println(Files.readAllLines(d.resolve("appended")).size());
    }

    static void files() throws IOException {
        Files.createDirectories(d.resolve("tree/a/b"));
        for (int n = 0; n < 12; n++) Files.write(d.resolve("tree/a/file" + n), bytes(n * 1000));
        Files.copy(d.resolve("tree/a/file7"), d.resolve("tree/copied"), StandardCopyOption.COPY_ATTRIBUTES);
        Files.move(d.resolve("tree/a/file8"), d.resolve("tree/moved"), StandardCopyOption.ATOMIC_MOVE);
        Files.move(d.resolve("tree/a/file9"), w.resolve("moved-out"), StandardCopyOption.REPLACE_EXISTING);
        Files.copy(w.resolve("moved-out"), d.resolve("tree/a/b/in-again"));
        Files.createSymbolicLink(d.resolve("tree/link"), Path.of("a/file3"));
        Files.setPosixFilePermissions(d.resolve("tree/moved"), PosixFilePermissions.fromString("rwxr-x--x"));
        Files.setLastModifiedTime(d.resolve("tree/moved"), FileTime.fromMillis(1234567890123L));
        PosixFileAttributes attributes = Files.readAttributes(d.resolve("tree/moved"), PosixFileAttributes.class);
        System.out.println(attributes.size() + " " + attributes.permissions().size() + " " + attributes.lastModifiedTime());
        try (Stream<Path> paths = Files.walk(d.resolve("tree"))) {
            paths.map(path -> d.relativize(path).toString()).sorted().forEach(System.out::println);
        }
        for (Path path : List.of(d.resolve("none"), d.resolve("tree/a/file1/x"))) {
            try {
                Files.newInputStream(path);
            } catch (IOException error) {
                System.out.println(error.getClass().getSimpleName());
            }
        }
        Path temporary = Files.createTempFile(d, "t", "");
        System.out.println(Files.size(temporary) + " " + Files.deleteIfExists(temporary) + " " + Files.notExists(temporary));
        try {
            Files.delete(d.resolve("tree"));
        } catch (DirectoryNotEmptyException error) {
            System.out.println("not empty");
        }
        Files.writeString(d.resolve("text"), "\u00e4\u00f6\u00fc".repeat(20000), StandardCharsets.UTF_16);
        try (BufferedReader reader = Files.newBufferedReader(d.resolve("text"), StandardCharsets.UTF_16)) {
            System.out.println(reader.readLine().length());
        }
    }

    static void streams() throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(d.resolve("random").toFile(), "rwd")) {
            file.setLength(70000);
            file.seek(69990);
            file.writeUTF("past the end");
            file.seek(65530);
            System.out.println(file.read() + " " + file.length() + " " + file.getFilePointer());
        }
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(d.resolve("data").toFile()), 777))) {
            for (int n = 0; n < 20000; n++) out.writeInt(n);
        }
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(d.resolve("data").toFile())))) {
            in.skipBytes(4 * 12345);
            System.out.println(in.readInt() + " " + in.available());
        }
    }

    static void threads() throws Exception {
        try (FileChannel channel = FileChannel.open(d.resolve("threads"), CREATE, READ, WRITE)) {
            List<Thread> threads = new ArrayList<>();
            for (int index = 0; index < 4; index++) {
                int me = index;
                Thread thread = new Thread(() -> {
                    try {
                        byte[] piece = new byte[3001];
                        Arrays.fill(piece, (byte) ('a' + me));
                        for (int n = 0; n < 50; n++) channel.write(ByteBuffer.wrap(piece), (n * 4L + me) * piece.length);
                    } catch (IOException error) {
                        System.out.println(error);
                    }
                });
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads) thread.join();
        }
        System.out.println(sum(Files.readAllBytes(d.resolve("threads"))));
    }

    public static void main(String[] arguments) throws Exception {
        d = Path.of(arguments[1]);
        w = Path.of(arguments[2]);
        random = new Random(arguments[0].hashCode());
        if (arguments[0].equals("again")) {
            System.out.println(sum(Files.readAllBytes(d.resolve("channel"))) + " " + sum(Files.readAllBytes(d.resolve("data"))));
            d = d.resolve("again");
            Files.createDirectory(d);
        }
        channel();
        largeMapping();
        transfers();
        files();
        streams();
        threads();
    }
}
