. "$A/cases/common.sh"
first() {
    for file in empty one page stripe odd; do cat "$A/tree/$file" >"$D/$file"; done
    cat "$D"/{one,page,odd} >"$D/joined"
    cat "$D/joined" | cat >"$D/through-a-pipe"
    cat - "$D/one" <"$D/page" >>"$D/joined"
    cat -n "$A/tree/text" >"$D/numbered"
    cat "$D/none" || echo "status $?"
    cat "$D" || echo "status $?"
    # cat refuses to copy a file onto itself.
    cat "$D/one" >>"$D/one" || echo "status $?"
}
again() {
    cat "$D"/* | cksum
    cat "$D/numbered" "$A/tree/odd" >>"$D/empty"
    cat "$D/empty" | cksum
}
"$1"
cat "$D"/* | cksum
