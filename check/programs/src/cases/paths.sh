. "$A/cases/common.sh"
# The border between the host and the array, crossed by names of all kinds.
first() {
    mkdir -p "$D/x/y" "$W/host"
    echo host >"$W/host/file"
    echo inside >"$D/x/file"
    cd "$D/x/y"
    pwd | sed "s|$D|D|"
    cat ../file ./../../x/file ".././file"
    # Out of the array, and back in, by dots.
    up=$(dirname "$D")
    cat "../../../$(basename "$D")/x/file"
    cat "$up/./$(basename "$D")//x///file"
    cat "$W/host/../host/file"
    ln -s "$W/host/file" "$D/to-host"
    ln -s "$D/x/file" "$D/to-inside"
    ln -s ../x "$D/x/relative"
    cat "$D/to-host" "$D/to-inside" "$D/x/relative/file"
    echo "through a link to the host" >>"$D/to-host"
    cat "$W/host/file"
    cd "$D/x/relative/y"
    /bin/pwd | sed "s|$D|D|"
    echo "from a physical directory" >here
    cd "$up"
    cat "$(basename "$D")/x/y/here"
    # A name that only begins like the prefix is the host's.
    mkdir "$D-not"
    echo similar >"$D-not/file"
    ls "$D-not"
    rm -r "$D-not"
    cd /
    cat "${D#/}/x/file"
    python3 - "$D" "$W" <<'PYTHON'
import os, sys
d, w = sys.argv[1:]
fd = os.open(d + "/x", os.O_RDONLY | os.O_DIRECTORY)
print(os.listdir(fd).__len__(), os.stat("file", dir_fd=fd).st_size, sorted(os.listdir("/proc/self/fd"))[0])
os.chdir(d + "/x/y")
print(os.getcwd() == d + "/x/y", os.path.exists("../file"), os.path.exists("/proc/self/cwd/../file"))
os.fchdir(fd)
print(os.getcwd() == d + "/x", open("file").read().strip())
print(os.path.realpath("relative") == d + "/x", os.path.samefile("relative", "."))
os.close(os.open(w + "/host/via", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
os.rename("y/here", "moved", src_dir_fd=fd, dst_dir_fd=fd)
print(os.readlink("/proc/self/cwd") == d + "/x", os.path.exists(w + "/host/via"))
f = open("moved")
print(open("/proc/self/fd/%d" % f.fileno()).read().strip())
print(open("/dev/fd/%d" % f.fileno()).read().strip())
PYTHON
}
again() {
    cat "$D/to-inside" "$D/x/moved"
    cat "$D/to-host"
    cd "$D/x"
    rm relative
    ln -s "$D" top
    cat top/x/top/x/file
    mkdir -p top/x/top/z
    cd top/z
    /bin/pwd | sed "s|$D|D|"
    cd -P ../.. && /bin/ls "$(basename "$D")"
    rmdir "$D/z"
    rmdir "$D" 2>/dev/null || echo "the top stays"
}
"$1"
