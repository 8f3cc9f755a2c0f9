. "$A/cases/common.sh"
# Stores through mappings by several processes and threads, synchronised again and again while the others go on. What was stored is
# verified through the mapping, and once more by other processes that read.
run() {
    engine=$1
    name=$2
    shift 2
    fio --name="$name" --directory="$D" --ioengine="$engine" --verify=crc32c --verify_fatal=1 --randseed=7 --allrandrepeat=1 \
        --fallocate=none --output="$W/$name.out" --output-format=json --group_reporting "$@" ||
        { echo "fio: $?"; cat "$W/$name.out" >&2; }
    # Errors and bytes of each group.
    grep -o '"\(error\|io_bytes\)" : [0-9]*' "$W/$name.out" | tr '\n' ' '
    echo "$engine $name"
}
own="own --numjobs=3 --rw=randwrite --bs=4k --size=3m --fsync=64"
shared="shared --filename=shared --numjobs=4 --offset_increment=2m --rw=randwrite --bsrange=4k-64k --size=2m --fdatasync=16"
first() {
    run mmap $own
    run mmap $shared
    run psync $own --verify_only
    run psync $shared --verify_only
}
again() {
    run psync $own --verify_only
    run mmap $shared --verify_only
    run mmap again --thread --numjobs=4 --rw=write --bs=16k --size=2m --fsync=32
    run mmap $shared --verify_pattern=0x5a --verify=pattern
    run psync $shared --verify_pattern=0x5a --verify=pattern --verify_only
}
"$1"
