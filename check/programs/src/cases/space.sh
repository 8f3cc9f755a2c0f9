. "$A/cases/common.sh"
# A member without room: an error for the program, nothing half written, and work again once there is room.
"$A/bin/fill" "$D/big"
cksum <"$D/big" >"$W/sum"
dd status=none if=/dev/zero of="$D/second" bs=1M count=50 2>"$W/errors" || echo "dd: $?"
grep -o 'No space left on device' "$W/errors"
rm -f "$D/second"
cksum <"$D/big" | diff "$W/sum" -
mkdir "$D/folder" && ls -1 "$D"
cp "$D/big" "$D/copy" 2>/dev/null || echo "cp: $?"
rm -f "$D/copy"
truncate -s 10000 "$D/big"
# Without room a file with holes is cut and punched as on the host, and what is left of it is the same.
RANDOM=7
on_both() { "$@" "$W/sparse" && "$@" "$D/sparse" || echo "$*: $?"; }
writes() { for _ in {1..20}; do dd status=none if=/dev/urandom bs=1000 count=3 seek=$((RANDOM % 3000)) conv=notrunc of="$1"; done; }
truncate -s 3100000 "$W/sparse" && writes "$W/sparse"
cp --sparse=always "$W/sparse" "$D/sparse"
cat /dev/zero >"$D/filler" 2>/dev/null && echo "no end of room"
for _ in {1..60}; do
    size=$(stat -c %s "$W/sparse") at=$(((RANDOM << 15 | RANDOM) % 3100000))
    case $((RANDOM % 5)) in
    0) on_both fallocate -p -o $at -l $((RANDOM * 8 + 1)) ;;
    1)
        # Zeros may need room, past the end too. What fails has changed nothing.
        at=$((at + size / 2)) length=$((RANDOM * 8 + 1))
        fallocate -z -o $at -l $length "$D/sparse" 2>/dev/null && fallocate -z -o $at -l $length "$W/sparse"
        ;;
    2) on_both truncate -s $((size + RANDOM * 4)) ;;
    *) on_both truncate -s $((size > RANDOM * 4 ? size - RANDOM * 4 : 0)) ;;
    esac
    cmp "$W/sparse" "$D/sparse" || break
done
rm -f "$D/filler" "$D/sparse"
cp "$A/tree/odd" "$D/fits"
cmp "$A/tree/odd" "$D/fits" && echo "works again"
