. "$A/cases/common.sh"
copy() { dd status=none "$@" || echo "dd: status $?"; }
first() {
    copy if="$A/tree/large" of="$D/by-1" bs=1 count=3000
    copy if="$A/tree/large" of="$D/by-512" bs=512 conv=fsync
    copy if="$A/tree/large" of="$D/by-4097" bs=4097 conv=fdatasync
    copy if="$A/tree/large" of="$D/by-64K" bs=64K
    copy if="$A/tree/large" of="$D/by-1M" bs=1M iflag=fullblock
    copy if=/dev/zero of="$D/zeros" bs=100000 count=7
    copy if=/dev/null of="$D/sparse" bs=1 seek=500000 count=0
}
again() {
    cmp "$A/tree/large" "$D/by-512"
    copy if="$D/by-1M" of="$D/by-1" bs=3333 skip=5
}
patch() {
    copy if="$A/tree/odd" of="$D/by-64K" bs=1000 seek=77 conv=notrunc
    copy if="$A/tree/odd" of="$D/by-1M" bs=1K seek=2000 conv=notrunc,fsync
    copy if="$A/tree/odd" of="$D/zeros" bs=8K oflag=append conv=notrunc
    copy if="$D/by-4097" of="$D/by-4097" bs=4096 skip=10 conv=notrunc count=3
    copy if="$D/by-512" of="$D/swapped" bs=64K conv=swab,sync
    copy if="$A/tree/text" of="$D/upper" conv=ucase ibs=100 obs=3000
    copy if="$D/sparse" of="$D/dense" bs=64K conv=sparse
    copy if="$D/by-1M" bs=70000 count=2 skip=1 | cksum
    copy if="$D/none" of="$D/x"
}
"$1"
patch
cd "$D" && cksum ./*
