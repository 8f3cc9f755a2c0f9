. "$A/cases/common.sh"
# Programs, scripts and libraries that lie on the array themselves.
first() {
    cd "$D"
    cp /bin/echo echo
    ./echo "by a relative name"
    "$D/echo" "by an absolute one"
    (exec -a renamed ./echo "under another name")
    printf '#!/bin/bash\necho "script ${0##*/} $1"\n' >script
    printf '#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:], __file__ == sys.argv[0])\n' >script.py
    chmod +x script script.py
    ./script a
    PATH=$D:$PATH script.py b c
    sh ./script d
    chmod -x echo
    ./echo "not executable" 2>/dev/null || echo "status $?"
    chmod +x echo
    ln -s echo link
    ./link "through a link"
    find . -name echo -exec {} found \;
    cp "$A/bin/library.so" library.so
    python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).through_stdio(sys.argv[2].encode()))' "$D/library.so" "$D/by-library"
    interpreters
    build
}
# What names the program that runs: its own name, and its link under /proc.
interpreters() {
    cp /bin/cat mycat
    cp "$(readlink -f /usr/bin/readlink)" myreadlink
    ./mycat /proc/self/comm
    ./myreadlink /proc/self/exe
    # Lines that name an interpreter, read as the kernel reads them.
    local line
    for line in '/bin/sh\r' '' ' /bin/echo  a b ' '\t/bin/echo\ta' '/bin/echo\fa' '/nowhere/x' '/bin/echo a\0b' "/$(printf 'a%.0s' {1..300})" "$(printf ' %.0s' {1..300})/bin/echo" "/bin/echo $(printf 'a%.0s' {1..300})"; do
        printf "#!$line\necho not the interpreter\n" >lines
        chmod +x lines
        # Without the shell's own second try.
        python3 -c 'import os, sys
try: os.execv(sys.argv[1], ["lines", "1"])
except OSError as error: print(error.strerror)' "$D/lines"
    done
    # A script of the host with an interpreter of the array, and one that is named by a relative path.
    printf '#!/bin/echo interpreted by\n' >interpreter
    chmod +x interpreter
    printf '#!%s first\n' "$D/interpreter" >"$W/host-script"
    chmod +x "$W/host-script"
    "$W/host-script" a b | sed "s|$W|W|"
    env "$W/host-script" c | sed "s|$W|W|"
    printf '#!./interpreter\n' >relative
    chmod +x relative
    ./relative d
    rm "$W/host-script"
}
build() {
    cp "$A/c/stdio.c" "$A/c/check.h" .
    cc -O1 -w -o stdio stdio.c
    mkdir -p out
    ./stdio "$D/out" | cksum
    printf 'print("imported")\n' >module.py
    python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import module; print(module.__file__ == sys.argv[1] + "/module.py")' "$D"
    perl -e 'open(F, ">>", "perl") or die; print F "line $_\n" for 1 .. 1000; close F; print -s "perl", "\n"' 2>/dev/null || echo "no perl"
}
again() {
    cd "$D"
    ./echo "again"
    ./script again
    ./stdio "$D/out" | cksum
    printf '#!/bin/bash\necho "changed $1"\n' >script
    ./script now
    mv echo moved
    ./moved "after a move"
    build
}
"$1"
