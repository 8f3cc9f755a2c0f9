. "$A/cases/common.sh"
first() {
    echo one >"$D/file"
    echo two >>"$D/file"
    printf '%s\n' three four >>"$D/file"
    while read -r line; do echo "read: $line"; done <"$D/file"
    cat <<HERE >"$D/here"
a here-document in $((40 + 2)) characters
HERE
    cat <<<"a here-string" >>"$D/here"
    # One offset for a group, its subshells and its children.
    { echo a; (echo b; echo c); sh -c 'echo d'; cat "$D/here"; echo e; } >"$D/group"
    (read -r first; head -c 4; cat; echo "$first") <"$D/file" >"$D/reordered"
    exec 7<>"$D/both"
    echo "written through 7" >&7
    echo "and more" >&7
    cat "$D/both"
    exec 8<"$D/both" 9>>"$D/both"
    read -r line <&8
    echo "from 8: $line"
    echo appended >&9
    cat <&8
    exec 7>&- 8<&- 9>&-
    set -C
    echo x >"$D/file" || echo "kept: $?"
    echo y >|"$D/clobbered"
    set +C
}
pipes() {
    seq 1 2000 | tee "$D/numbers" | sort -r | sed -n '1,3p'
    sort -n "$D/numbers" | awk '{ s += $1 } END { print s }' >"$D/sum"
    cat "$D/sum"
    diff <(sort "$D/numbers") <(sort -r "$D/numbers" | sort) && echo "process substitution"
    for i in 1 2 3; do echo "$i" >"$D/loop.$i" & done
    wait
    cat "$D"/loop.*
    mapfile -t lines <"$D/file"
    echo "${#lines[@]} lines, last ${lines[-1]}"
    (cd "$D" && echo relative >here-too && cat ./here-too && pwd | sed "s|$D|D|" && cat <../"${D##*/}"/file)
    [[ -s $D/file && ! -e $D/none && -d $D && ! -x $D/file && $D/numbers -nt $A/tree/text ]] && echo "tests"
    echo "#!/bin/sh" >"$D/script.sh"
    echo 'echo "script $1 ($#)" >"$2"; exec cat "$2"' >>"$D/script.sh"
    sh "$D/script.sh" first "$D/script.out"
    . "$D/sourced" 2>&1 | sed "s|.*: line|line|;s|$D|D|" || true
    # shellcheck disable=SC2094
    while read -r number; do [[ $number == 1000 ]] && head -n 1 && break; done <"$D/numbers"
    trap 'echo "on exit" >>"$D/file"; tail -n 1 "$D/file"' EXIT
}
again() {
    tail -n 2 "$D/file"
    echo five >>"$D/file"
    exec 7<>"$D/both"
    read -r line <&7
    echo "OVER" >&7
    exec 7>&-
    cat "$D/both"
    : >"$D/group"
}
"$1"
pipes
