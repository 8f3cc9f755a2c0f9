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
# An engine that maps takes no offset (fio 3.33 maps from the file's start whatever it is), so jobs share no file.
own="own --numjobs=3 --rw=randrw --bs=4k --size=3m --fsync=64"
many="many --thread --numjobs=2 --nrfiles=3 --rw=randwrite --bsrange=4k-64k --size=6m --fdatasync=16"
first() {
    run mmap $own
    run mmap $many
}
again() {
    run psync $own --verify_only
    run mmap $many --overwrite=1
}
"$1"
