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
cp "$A/tree/odd" "$D/fits"
cmp "$A/tree/odd" "$D/fits" && echo "works again"
