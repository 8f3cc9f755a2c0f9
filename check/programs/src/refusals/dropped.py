"""A program of root's drops its rights before it has changed any name: it goes on with what everybody may do."""
import os, sys, threading

shared, way = sys.argv[1:]
OTHER = 65534


def drop():
    if way == 'setresuid':
        os.setgroups([])
        os.setresgid(OTHER, OTHER, OTHER)
        os.setresuid(OTHER, OTHER, OTHER)
    elif way == 'setuid':
        os.setuid(OTHER)
    elif way == 'thread':
        thread = threading.Thread(target=lambda: os.setresuid(OTHER, OTHER, OTHER))
        thread.start()
        thread.join()


os.listdir(shared)
drop()
os.mkdir(shared + '/directory')
with open(shared + '/directory/file', 'w') as file:
    file.write('mine')
os.rename(shared + '/directory/file', shared + '/moved')
print(open(shared + '/moved').read(), os.stat(shared + '/moved').st_uid)
os.unlink(shared + '/moved')
os.rmdir(shared + '/directory')
print(os.listdir(shared))
