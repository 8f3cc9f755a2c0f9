"""Programs use arrays whose runtime segments another process stores random words to, and cuts short: they may fail, but no signal ends them, and they end."""
import glob, mmap, os, random, shutil, signal, struct, subprocess, sys, time, uuid

library, data, root, rounds = sys.argv[1], sys.argv[2].rstrip('/'), sys.argv[3], int(sys.argv[4])
SHELL = r'''
cd "$1" || exit 1
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
  mkdir -p d$i; echo line $i >>log; cat log >d$i/copy; mv d$i/copy d$i/moved; ln -f d$i/moved link; ls -l . d$i >list
  head -c 200000 /dev/zero >big; truncate -s $((i * 9000)) big; rm -f d$i/moved; chmod 640 log; stat big
done
'''
PYTHON = r'''
import mmap, os, sys
for i in range(12):
    try:
        fd = os.open(sys.argv[1] + '/mapped', os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 100000)
        shown = mmap.mmap(fd, 100000)
        shown[i * 100] = 1
        shown.flush()
        if os.fork() == 0:
            os.pwrite(fd, b'child', 5000)
            os._exit(0)
        os.wait()
        os.pread(fd, 5000, 0)
        shown.close()
        os.close(fd)
    except (OSError, ValueError):
        pass
'''
outside = os.path.join(root, 'outside')
with open(outside, 'w') as file:
    file.write('outside')
words = 0
for seed in range(rounds):
    chance = random.Random(seed)
    members = [os.path.join(root, f'damaged{slot}') for slot in range(3)]
    for member in members:
        os.mkdir(member)
    environment = dict(os.environ, LD_PRELOAD=library, CXLRAID_PATHS=data, CXLRAID_MOUNTS=':'.join(members), CXLRAID_LEVEL='15'[seed % 2])
    subprocess.run(['touch', data + '/log'], env=environment, stderr=subprocess.DEVNULL)
    # The segment is named after the array, whose UUID is at offset 40 of a superblock. Other arrays are made and used at the same time.
    with open(members[0] + '/.cxlraid/superblock', 'rb') as file:
        segment = '/dev/shm/cxlraid-' + str(uuid.UUID(bytes=file.read(56)[40:]))
    start = lambda *words: subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers = [start('sh', '-c', SHELL, 'sh', data), start('sh', '-c', SHELL, 'sh', data), start(sys.executable, '-c', PYTHON, data)]
    with open(segment, 'r+b') as file:
        shared = mmap.mmap(file.fileno(), 0)
    used = []
    begin = time.monotonic()
    while any(worker.poll() is None for worker in workers) and time.monotonic() - begin < 30:
        if len(used) < 50 or words % 500 == 0:
            view = memoryview(shared).cast('Q')
            used = [at * 8 for at in range(1 << 15) if view[at]] + [at * 8 for at in range(1 << 15, len(view), 97) if view[at]]
            view.release()
        for _ in range(10):
            near = chance.choice(used) + chance.randrange(-16, 96) if chance.random() < 0.8 else chance.randrange(len(shared))
            at = max(0, min(near, len(shared) - 8)) // 4 * 4
            word = chance.choice([0xffffffff, 1 << 31, 1 << chance.randrange(32), chance.randrange(70000), chance.getrandbits(32)])
            struct.pack_into('=I', shared, at, word)
            words += 1
        time.sleep(0.005)
        if seed % 3 == 2 and time.monotonic() - begin > 0.15:
            length = len(shared)
            shared.close()
            os.truncate(segment, chance.choice([0, 4096, chance.randrange(length)]))
            break
    for worker in workers:
        try:
            status = worker.wait(timeout=max(1, begin + 30 - time.monotonic()))
            # A store through a mapping that cannot be served is answered so by every file system.
            is_mappings = worker is workers[2] and status == -signal.SIGBUS
            if (status < 0 or status > 128) and not is_mappings:
                print('seed', seed, 'ended by a signal', status)
        except subprocess.TimeoutExpired:
            print('seed', seed, 'hangs', worker.args[0], worker.pid)
            worker.kill()
    shared.close()
    for name in glob.glob(segment + '*'):
        os.remove(name)
    for member in members:
        shutil.rmtree(member)
print('words' if words > 20 * rounds else words, open(outside).read())
