. "$A/cases/common.sh"
# What was written is read back and its checksums compared, with several jobs as threads and as processes.
run() {
    name=$1
    shift
    fio --name="$name" --directory="$D" --ioengine="$ENGINE" --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 \
        --allrandrepeat=1 --fallocate=none --output="$W/$name.out" --output-format=json --group_reporting "$@" ||
        { echo "fio: $?"; cat "$W/$name.out" >&2; }
    # Errors and bytes of each group.
    grep -o '"\(error\|io_bytes\)" : [0-9]*' "$W/$name.out" | tr '\n' ' '
    echo "$name"
}
first() {
    run threads --thread --numjobs=2 --rw=randwrite --bs=4k --size=2m
    run processes --numjobs=2 --rw=write --bs=64k --size=2m --fsync=8
    run odd --thread --numjobs=2 --rw=randwrite --bsrange=512-20k --bs_unaligned --size=1m --end_fsync=1
}
again() {
    run threads --thread --numjobs=2 --rw=randread --bs=4k --size=2m
    run overwrite --thread --numjobs=2 --rw=randwrite --bs=4k --size=1m --overwrite=1 --fdatasync=16
    # A mapping cannot.
    if [[ $ENGINE != mmap ]]; then run append --rw=write --bs=3k --size=1m --file_append=1; fi
}
"$1"
