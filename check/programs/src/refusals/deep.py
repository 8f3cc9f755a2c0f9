"""A program goes into directories that lie deeper than the kernel tells the path of, and comes out again.

What the array answers there is printed; nothing may be made on one member alone (the caller compares the members).
"""
import os, subprocess, sys

os.chdir(sys.argv[1])
start, name = os.getcwd(), 'n' * 255
for _ in range(40):
    try:
        os.mkdir(name)
        os.chdir(name)
    except OSError as error:
        print('too deep:', error.strerror)
        break


def tried(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, error.strerror)


CREATE = os.O_CREAT | os.O_RDWR
tried('create', lambda: os.open('file', CREATE))
tried('mkdir', lambda: os.mkdir('directory'))
tried('getcwd', os.getcwd)
tried('rename', lambda: os.rename('../' + name, 'x'))
tried('stat', lambda: os.stat('.'))
found = subprocess.run(['sh', '-c', 'echo text 2>&- >file; mkdir directory 2>&-; cat file 2>&-; echo tried'], capture_output=True, text=True)
print('a shell:', found.stdout.strip())
# An open directory becomes as deep when one above it is moved.
os.chdir(start)
os.makedirs('moved/' + '/'.join([name] * 2))
descriptor = os.open('moved/' + '/'.join([name] * 2), os.O_RDONLY)
inside = os.open('file', CREATE, dir_fd=descriptor)
os.write(inside, b'before ')
at = start
for _ in range((4095 - len(start)) // 256 - 1):
    at += '/' + name
os.rename('moved', at + '/moved')
tried('create by a descriptor', lambda: os.open('other', CREATE, dir_fd=descriptor))
tried('write', lambda: os.write(inside, b'after'))
tried('read', lambda: os.pread(inside, 100, 0))
os.fchdir(descriptor)
tried('create', lambda: os.open('other', CREATE))
os.chdir('..')
os.chdir('..')
tried('create further up', lambda: os.close(os.open('file', CREATE)))
os.chdir(start)
os.rename(at + '/moved', 'moved')
tried('back', lambda: open('moved/' + '/'.join([name] * 2) + '/file').read())
