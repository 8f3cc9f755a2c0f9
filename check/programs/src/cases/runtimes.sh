. "$A/cases/common.sh"
# Programs of other runtimes, and programs under tools that come between a program and the kernel. Which, RUNTIME says.
libraries=/usr/lib/x86_64-linux-gnu
ours=${LD_PRELOAD-}

# A program that must work on the array as on a plain directory, and without touching it.
served() {
    local name=$1
    shift
    echo "$name"
    mkdir -p "$D/$name"
    "$@"
    "$@" "$D/$name"
}
# A program in which the library stands aside: it runs as it would without, says so in one line ($1 is part of it), and gets no open file of the array.
aside() {
    local line=$1
    shift
    "$@" 2>"$W/err"
    if [[ $STRICT ]]; then
        grep -q "$line" "$W/err" && [[ $(grep -c '^cxlraid: ' "$W/err") -le 1 ]] || { echo "$*: not one line with '$line', but:"; cat "$W/err"; }
        "$@" >"$D/output" 2>"$W/err" || true
        grep -q 'closed for it\|are closed' "$W/err" || { echo "$*: no line says that its output is closed:"; cat "$W/err"; }
        [[ ! -s $D/output ]] || { echo "$*: it wrote to a file of the array:"; cat "$D/output"; }
        rm "$D/output"
    fi
}
# The same library before ours and after it.
preloads() {
    local name library
    for name in "jemalloc libjemalloc.so.2" "tcmalloc libtcmalloc_minimal.so.4" "eatmydata libeatmydata.so" "faketime faketime/libfaketime.so.1"; do
        library=$libraries/${name#* }
        [[ -e $library ]] || { echo "$library is not there"; continue; }
        served "${name% *}-first" env LD_PRELOAD="$library${ours:+:$ours}" "$A/bin/runtime"
        served "${name% *}-last" env LD_PRELOAD="${ours:+$ours:}$library" "$A/bin/runtime"
    done
    served audited env LD_AUDIT="$A/bin/audit.so" "$A/bin/runtime"
}
wrappers() {
    served faketime faketime '2020-01-01 00:00:00' "$A/bin/runtime"
    faketime '2020-01-01 00:00:00' date +%F
    served eatmydata eatmydata "$A/bin/runtime"
    served fakeroot fakeroot "$A/bin/runtime"
    fakeroot bash -c 'touch "$1/owned" && chown 1234:5678 "$1/owned" && stat -c "%u %g %s" "$1/owned"' bash "$D"
}
sanitizers() {
    local name
    for name in address address-fixed thread thread-fixed undefined; do served "$name" "$A/bin/runtime-$name"; done
    # Not named in any environment: the library is found by its place alone.
    served address-alone env -u ASAN_OPTIONS "$A/bin/runtime-address"
}
sandboxes() {
    served service "$A/bin/filter" service "$A/bin/runtime"
    served seen bwrap --dev-bind / / "$A/bin/runtime"
    served user bwrap --dev-bind / / --unshare-user --unshare-net "$A/bin/runtime"
    aside 'may not make memory executable' "$A/bin/filter" writable "$A/bin/runtime"
    # Apart from the others' /dev/shm or processes, or read-only: the array is refused, a program that does not touch it runs.
    bwrap --bind / / --dev /dev --proc /proc "$A/bin/runtime"
    bwrap --dev-bind / / --proc /proc --unshare-pid "$A/bin/runtime"
    bwrap --ro-bind / / "$A/bin/runtime"
}
debugger() {
    local run=(gdb -nx -batch -ex 'set startup-with-shell off')
    gdb_output() { grep '^[a-z0-9]* bytes, \|: sum \|^nothing touched' || true; }
    echo plain
    "${run[@]}" -ex run --args "$A/bin/runtime" "$D" | gdb_output
    echo entry
    "${run[@]}" -ex 'set $kind = "entry"' -x "$A/cases/breakpoints.py" --args "$A/bin/runtime" "$D" | gdb_output
    echo call
    "${run[@]}" -ex 'set $kind = "call"' -x "$A/cases/breakpoints.py" --args "$A/bin/runtime" 2>"$W/err" | gdb_output
    [[ ! $STRICT ]] || grep -q "a debugger's breakpoints" "$W/err" || { echo "no line of the breakpoints, but:"; cat "$W/err"; }
    # Nothing of the breakpoints is left in what later programs go by.
    "$A/bin/runtime" "$D"
}
case $RUNTIME in
musl) aside 'another C library than glibc' "$A/bin/runtime-musl" ;;
32-bit) aside 'cannot be preloaded' "$A/bin/runtime-32-bit" ;;
valgrind)
    aside 'under valgrind' valgrind -q "$A/bin/runtime"
    # What such a program starts is served again.
    [[ $1 == again ]] || served child valgrind -q bash -c '"$@"' bash "$A/bin/runtime" 2>/dev/null
    ;;
*) "$RUNTIME" ;;
esac
