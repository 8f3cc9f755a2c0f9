. "$A/cases/common.sh"
first() {
    cd "$D"
    mkdir -p a/b/c 'with blank' "$(printf 'name\xc3\xa4')"
    touch -d '2001-02-03 04:05:06.789 UTC' old
    touch -r old same-time
    stat -c '%n %a %s %F %y' old same-time
    ln -s old link
    ln -sfn a/b link-to-folder
    ln old hard
    readlink -f link-to-folder | sed "s|$D|D|"
    realpath --relative-to="$D" link
    install -m 0751 "$A/tree/odd" installed
    chmod u+s,o-rx installed
    chmod -R g+w a
    truncate -s 12345 installed
    truncate -s +100000 installed
    sort -o sorted "$A/tree/text"
    sort -o sorted sorted
    split -b 70000 "$A/tree/large" part.
    cat part.* | cmp - "$A/tree/large"
    cp "$A/tree/text" edited
    sed -i.bak 's/the/THE/g;3d' edited
    tac edited | rev | rev | tac | cmp - edited
    cut -c 1-10 edited | uniq -c | tail -n 2
    head -c 100000 "$A/tree/large" | tail -c 12345 | cksum
    tail -n 3 edited
    shred -n 1 -s 100 --random-source="$A/tree/large" old
    mkfifo pipe
    (echo through the pipe >pipe &) && cat pipe
    rm pipe
    mktemp -p . name.XXXXXX | wc -c
    rm -f name.*
    wc edited installed sorted
    grep -rl THE . | sort
    du --apparent-size -b installed
    test -L link && test link -ef old && echo tests
    find . -name 'part.*' -size +60k -delete
    find . -type f -empty
    comm -3 sorted <(sort edited) | wc -l
    dd status=none if=edited | sha256sum
    rmdir a || echo "status $?"
    rm none || echo "status $?"
    ls -1F --color=never
    tee x y <"$A/tree/one" | wc -c
    join x y
    csplit -s -f piece. edited 5 10
    nl piece.00
    od -A d -t x1 -N 32 installed
    env -i PATH="$PATH" LC_ALL=C LD_PRELOAD="${LD_PRELOAD:-}" wc -c edited
}
again() {
    cd "$D"
    stat -c '%n %a %s %h' installed hard link
    sed -i '1i a new line' edited
    rm -r a 'with blank'
    ln -f edited hard
    sort -u -o sorted edited sorted
    ls -1A
}
"$1"
listing "$D" | sed 's/name\..*/name/'
