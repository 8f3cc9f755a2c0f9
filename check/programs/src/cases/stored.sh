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
    build
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
