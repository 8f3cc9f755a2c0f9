. "$A/cases/common.sh"
first() {
    tar -C "$A" --sort=name -cf "$D/from-host.tar" tree
    mkdir "$D/out" "$W/out"
    tar -C "$D/out" -xpf "$D/from-host.tar"
    diff -r --no-dereference "$A/tree" "$D/out/tree"
    tar -C "$D/out" --sort=name -cf "$D/again.tar" tree
    cmp "$D/from-host.tar" "$D/again.tar"
    tar -C "$D/out" --sort=name -cf - tree | gzip -n >"$D/zipped.tar.gz"
    tar -C "$W/out" -xzpf "$D/zipped.tar.gz"
    diff -r --no-dereference "$A/tree" "$W/out/tree"
    tar -C "$A/tree" -rf "$D/again.tar" odd page
    tar -tf "$D/again.tar"
    tar -C "$D/out" -S --sort=name -cf "$D/sparse.tar" tree/sparse
    tar -C "$D/out" -df "$D/from-host.tar"
    tar -xf "$D/none.tar" || echo "status $?"
}
again() {
    tar -C "$D/out" -df "$D/from-host.tar"
    mkdir "$D/in"
    tar -C "$D/in" -xzpf "$D/zipped.tar.gz" --exclude=large
    tar -C "$D/in" -xSf "$D/sparse.tar"
    tar --delete -f "$D/again.tar" tree/large
    tar -tf "$D/again.tar" | tail -n 5
    tar -C "$D/out" -xpf "$D/from-host.tar" --overwrite --exclude=tree/read-only
}
"$1"
listing "$D"
