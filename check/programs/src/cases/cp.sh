. "$A/cases/common.sh"
times() { (cd "$1" && find . ! -type l -printf '%T@ %m %p\n' | sort); }
first() {
    cp -a "$A/tree" "$D/tree"
    cp -a "$D/tree" "$D/second"
    cp -a "$D/second" "$W/back"
    diff -r --no-dereference "$A/tree" "$W/back"
    diff <(times "$A/tree") <(times "$D/second")
    cp "$D/tree/large" "$D/plain-copy"
    cp --sparse=always "$D/tree/sparse" "$D/sparse"
    cp -l "$D/tree/odd" "$D/hard"
    cp -s "$D/tree/odd" "$D/soft"
    cp -u "$D/tree/one" "$D/plain-copy"
    cp -b "$D/tree/odd" "$D/plain-copy"
    cp -r --preserve=links "$D/tree/folder" "$D/folder"
    cp "$D/none" "$D/x" || echo "status $?"
    cp -r "$D/tree" "$D/tree/folder" || echo "status $?"
    cp "$D/tree" "$D/y" || echo "status $?"
}
again() {
    diff -r --no-dereference "$A/tree" "$D/second"
    diff <(times "$A/tree") <(times "$D/second")
    cp -a "$D/second" "$D/third"
    cp -f "$A/tree/odd" "$D/third/large"
    cp --remove-destination "$A/tree/page" "$D/third/read-only"
    rm -rf "$D/second"
}
"$1"
listing "$D"
