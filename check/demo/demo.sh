#!/usr/bin/env bash
# A RAID 5 array on tmpfs loses a member under running, unmodified programs. Nothing may be lost: every result is compared
# with the same programs' work on a plain directory, and any difference ends the demo with status 1.
#
# demo.sh DIRECTORY: where cxlraid and libcxlraid.so are. `make demo` builds them and calls this.
set -euo pipefail

readonly BIN=${1:?usage: demo.sh DIRECTORY with cxlraid and libcxlraid.so}
readonly REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Programs see the array here; on the host there is no such directory.
readonly DATA=/cxlraid-demo
readonly CXLRAID=$BIN/cxlraid

work=$(mktemp -d "/dev/shm/cxlraid.demo.XXXXXX")
readonly work
readonly MEMBERS=("$work/member0" "$work/member1" "$work/member2")
readonly PLAIN=$work/plain
export XDG_CONFIG_HOME=$work/config
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@example.org GIT_AUTHOR_DATE='2026-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@example.org GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export LC_ALL=C

checks=0
worker_pid=

clean_up() {
    local status=$?
    trap - EXIT
    "$CXLRAID" stop kept >/dev/null 2>&1 || true
    if [[ -n ${disk:-} ]]; then rm -rf "$disk"; fi
    if [[ -n $worker_pid ]]; then kill "$worker_pid" 2>/dev/null && wait "$worker_pid" 2>/dev/null; fi
    "$CXLRAID" stop demo >/dev/null 2>&1 || true
    rm -rf "$work"
    if [[ $status -ne 0 ]]; then echo "demo: FAILED (status $status)" >&2; fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
say() { printf '  %s\n' "$*"; }
fail() {
    echo "demo: $*" >&2
    exit 1
}
passed() {
    checks=$((checks + 1))
    say "ok: $*"
}
# Shows a command as a reader would type it.
show() { printf '  $ %s\n' "$*"; }

# Runs an ordinary program on the array.
on() { "$CXLRAID" run demo -- "$@"; }

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
timed() {
    local begun
    begun=$(now_ms)
    "$@" >&2
    echo $(($(now_ms) - begun))
}

# --- the work: the same programs, once on the array and once on a plain directory -------------------------------------------

make_host_files() {
    mkdir -p "$PLAIN" "$work/host/tree" "${MEMBERS[@]}"
    local folder
    for folder in base core control docs; do cp -a "$REPO/$folder" "$work/host/tree/"; done
    head -c $((48 << 20)) /dev/urandom >"$work/host/tree/random.bin"
    : >"$work/host/tree/empty"
    ln -s core/layout "$work/host/tree/link"
}

# first_work RUNNER ROOT: RUNNER is `on`, or `env` for a plain directory.
first_work() {
    local run=$1 root=$2
    "$run" cp -a "$work/host/tree" "$root/tree"
    "$run" tar -C "$root" --sort=name -cf "$root/tree.tar" tree/core tree/docs
    "$run" sqlite3 "$root/rows.db" "create table rows(id integer primary key, text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
        insert into rows select i, hex(i * 7919) from n;"
    "$run" git init -q -b main "$root/repo"
    "$run" cp -a "$root/tree/core/layout" "$root/repo/"
    "$run" git -C "$root/repo" add .
    "$run" git -C "$root/repo" commit -q -m 'layout'
    "$run" python3 -c '
import os, sys
with open(sys.argv[1] + "/synced", "wb") as out:
    for line in range(1000):
        out.write(b"line %d\n" % line)
        if line % 100 == 0:
            out.flush()
            os.fsync(out.fileno())
' "$root"
}

more_work() {
    local run=$1 root=$2
    "$run" cp -a "$work/host/tree/control" "$root/control"
    "$run" sqlite3 "$root/rows.db" "update rows set text = text || '!' where id % 3 = 0; delete from rows where id % 7 = 0;"
    "$run" cp "$root/synced" "$root/repo/synced"
    "$run" git -C "$root/repo" add .
    "$run" git -C "$root/repo" commit -q -m 'synced'
    "$run" bash -c 'for i in 1 2 3; do echo "appended $i" >>"$1/synced"; done; mv "$1/tree/empty" "$1/tree/renamed"' - "$root"
}

# Sums of everything but what holds times and inode numbers (git's index) and what the worker rewrites.
sums() {
    local run=$1 root=$2
    "$run" sh -c 'cd "$1" && find . -type f ! -path "*/.git/index" ! -name records -print0 | sort -z | xargs -0 sha256sum' - "$root"
}

compare() {
    local what=$1
    sums on "$DATA" >"$work/array.sums"
    sums env "$PLAIN" >"$work/plain.sums"
    if ! diff "$work/plain.sums" "$work/array.sums" >"$work/diff"; then
        head -n 20 "$work/diff" >&2
        fail "$what: files on the array differ from those on the plain directory"
    fi
    passed "$what: $(wc -l <"$work/array.sums") files, all sha256 sums as on a plain directory"
    [[ $(on sqlite3 "$DATA/rows.db" 'pragma integrity_check') == ok ]] || fail "$what: sqlite3 finds the database damaged"
    [[ $(on git -C "$DATA/repo" rev-parse HEAD) == $(git -C "$PLAIN/repo" rev-parse HEAD) ]] || fail "$what: another commit"
    on git -C "$DATA/repo" fsck --strict 2>&1 | grep -v '^notice' >"$work/fsck" || true
    [[ ! -s $work/fsck ]] || fail "$what: git fsck: $(cat "$work/fsck")"
    passed "$what: sqlite3 integrity_check and git fsck are content"
}

# --- losing a member ----------------------------------------------------------------------------------------------------------

# A device that is gone: every load from it faults (the files end before the byte asked for), and its directory is away.
# What tells cxlraid apart from its data goes first, as one device would go at one moment.
lose() {
    local member=$1
    find "$member/.cxlraid" -type f -exec truncate -s 0 {} +
    find "$member" -type f -exec truncate -s 0 {} +
    mv "$member" "$member.lost"
}

wait_for_round() {
    local wanted=$1 tries
    for ((tries = 0; tries < 600; tries++)); do
        kill -0 "$worker_pid" 2>/dev/null || return 1
        if [[ -s $work/progress && $(cat "$work/progress") -ge $wanted ]]; then return 0; fi
        sleep 0.1
    done
    fail "the worker made no progress for a minute"
}

lose_under_a_program() {
    (cd "$PLAIN" && find tree -type f -size -1024k -print0 | sort -z | xargs -0 sha256sum) >"$work/worker.sums"
    show "cxlraid run demo -- python3 worker.py $DATA &"
    on python3 "$REPO/check/demo/worker.py" "$DATA" "$work/worker.sums" "$work/progress" >"$work/worker.out" 2>&1 &
    worker_pid=$!
    wait_for_round 10 || fail "the worker ended: $(cat "$work/worker.out")"
    local before
    before=$(cat "$work/progress")
    say "round $before: now member1 is taken away under it"
    lose "${MEMBERS[1]}"
    if wait_for_round $((before + 100)); then touch "$work/progress.stop"; fi
    local status=0
    wait "$worker_pid" || status=$?
    worker_pid=
    sed 's/^/  /' "$work/worker.out"
    [[ $status -eq 0 ]] || fail "the worker ended with status $status"
    passed "the running program noticed nothing"
}

expect_degraded() {
    local status=0
    show "cxlraid status demo"
    "$CXLRAID" status demo | sed 's/^/  /' || status=${PIPESTATUS[0]}
    [[ $status -eq 3 ]] || fail "cxlraid status: exit status $status, must be 3"
    passed "status says degraded, by its exit status (3) too"
}

# --- what it costs ----------------------------------------------------------------------------------------------------------

copy_time() {
    local runner=$1 target=$2 times=() round
    for round in 1 2 3; do
        "$runner" rm -rf "$target/copy"
        times+=("$(timed "$runner" cp -a "$work/host/tree" "$target/copy")")
    done
    "$runner" rm -rf "$target/copy"
    printf '%s\n' "${times[@]}" | sort -n | sed -n 2p
}

kib() { du -sk "$1" | cut -f1; }

show_capacity() {
    local data member total=0 sizes=()
    data=$(kib "$PLAIN")
    for member in "${MEMBERS[@]}"; do
        sizes+=("$(($(kib "$member") / 1024))")
        total=$((total + $(kib "$member")))
    done
    say "data: $((data / 1024)) MiB; members: ${sizes[*]} MiB, together $((total * 100 / data)) % of the data (3 members of RAID 5: 150 %)"
}

# --- memory that a disk keeps -----------------------------------------------------------------------------------------------

# A database whose process is killed; then what a restart of the machine does to memory.
lose_memory() {
    # Where the programs were built is a disk nearly everywhere.
    disk=$(mktemp -d "$BIN/cxlraid.demo.XXXXXX")
    local fast=$work/fast kept=/cxlraid-demo-kept acknowledged found writer
    mkdir "$fast"
    show "cxlraid create kept --fast /dev/shm/… --backing … --at $kept"
    "$CXLRAID" create kept --fast "$fast" --backing "$disk" --force --at "$kept" 2>/dev/null | sed 's/^/  /'
    show "cxlraid run kept -- python3 (a commit to SQLite, an acknowledgement, and so on) &"
    "$CXLRAID" run kept -- python3 -c '
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1] + "/rows.db", isolation_level=None)
rows.execute("pragma synchronous = full")
rows.execute("create table rows(number integer)")
with open(sys.argv[2], "w", buffering=1) as told:
    number = 0
    while True:
        rows.execute("insert into rows values(?)", (number,))
        print(number, file=told)
        number += 1
' "$kept" "$work/told" &
    writer=$!
    worker_pid=$writer
    until [[ -s $work/told && $(wc -l <"$work/told") -ge 200 ]]; do
        kill -0 "$writer" 2>/dev/null || fail 'the database ended'
        sleep 0.05
    done
    kill -9 "$writer"
    wait "$writer" 2>/dev/null || true
    worker_pid=
    local uuid
    uuid=$("$CXLRAID" status kept --json | sed -n 's/.*"uuid": "\(.*\)".*/\1/p' | head -n 1)
    rm -rf "$fast" "/dev/shm/cxlraid-${uuid:?}"*
    say 'the database was killed, and memory is empty, as after a restart of the machine'
    acknowledged=$(tail -n 1 "$work/told")
    show "cxlraid run kept -- sqlite3 $kept/rows.db 'select max(number) from rows'"
    found=$("$CXLRAID" run kept -- sqlite3 "$kept/rows.db" 'pragma integrity_check; select max(number) from rows' | tr '\n' ' ')
    [[ ${found%% *} == ok && $(cut -d' ' -f2 <<<"$found") -ge $acknowledged ]] || fail "found $found, acknowledged $acknowledged"
    passed "of $((acknowledged + 1)) acknowledged commits none is lost"
    local tries
    for ((tries = 0; tries < 600; tries++)); do
        if "$CXLRAID" status kept >/dev/null; then break; fi
        sleep 0.1
    done
    show "cxlraid status kept"
    "$CXLRAID" status kept | sed 's/^/  /'
    cmp "$fast$kept/rows.db" "$disk$kept/rows.db" || fail 'memory and disk differ'
    passed 'memory holds everything again, and no command was needed for it'
}

# --- the demo -----------------------------------------------------------------------------------------------------------------

main() {
    [[ -x $CXLRAID && -f $BIN/libcxlraid.so ]] || fail "$BIN: cxlraid or libcxlraid.so is not there; run 'cargo x build'"
    [[ ! -e $DATA ]] || fail "$DATA exists on this host; the demo needs it as the array's path"
    make_host_files

    title '1. An array of three directories, each standing for a device'
    show "cxlraid create demo --level 5 --at $DATA member0 member1 member2"
    "$CXLRAID" create demo --level 5 --at "$DATA" "${MEMBERS[@]}" 2>/dev/null | sed 's/^/  /'

    title '2. Unmodified programs work on it: cp, tar, sqlite3, git, python3'
    show "cxlraid run demo -- cp -a tree $DATA/tree     (and so on)"
    first_work on "$DATA"
    [[ ! -e $DATA ]] || fail "$DATA appeared on the host: the programs were not intercepted"
    first_work env "$PLAIN"
    compare 'three members'
    show_capacity
    local plain healthy degraded
    plain=$(copy_time env "$PLAIN")
    healthy=$(copy_time on "$DATA")

    title '3. A member is lost while a program reads, verifies and rewrites files'
    lose_under_a_program
    expect_degraded

    title '4. Everything reads back, and writing goes on with two members'
    compare 'two members'
    more_work on "$DATA"
    more_work env "$PLAIN"
    compare 'after more writing'
    degraded=$(copy_time on "$DATA")

    title '5. What it cost'
    say "cp -a of the tree ($(($(kib "$work/host/tree") / 1024)) MiB, $(find "$work/host/tree" | wc -l) names), median of 3:"
    say "  plain tmpfs ${plain} ms, array ${healthy} ms, array without a member ${degraded} ms"
    say 'capacity: one member of the three, whatever the level stores on them'

    title '6. Memory that a disk keeps: the machine restarts under a database'
    lose_memory

    [[ ! -e $DATA ]] || fail "$DATA appeared on the host"
    printf '\nchecks: %d passed, 0 failed\n' "$checks"
}

main
