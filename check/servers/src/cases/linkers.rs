//! Linkers that write their output by mapping it (gold, lld and mold), and one that does not (GNU
//! ld), make programs and shared libraries of megabytes. These are byte for byte what the linkers
//! make outside of the array, and run from where they were made. strace shows which linkers mapped
//! their output. gcc maps its precompiled headers, privately and writable.

use super::{Numbers, Scene, postgresql::lose_one};
use crate::{Outcome, audit::same};
use std::fs;

const SOURCE: &str = r#"
#include <stdint.h>
#include <stdio.h>
extern const unsigned char blob[], blob_end[];
extern uint64_t in_library(const unsigned char *, const unsigned char *);
#ifdef LIBRARY
static char space[1 << 20] = { 1 };
uint64_t in_library(const unsigned char *at, const unsigned char *end)
{
    uint64_t sum = space[0];
    while (at < end)
        sum = (sum ^ *at++) * 0x100000001b3ull;
    return sum;
}
#else
int main(void)
{
    printf("%ld %016llx\n", (long)(blob_end - blob), (unsigned long long)in_library(blob, blob_end));
    return 0;
}
#endif
"#;

const BLOB: &str = "
    .section .rodata
    .globl blob, blob_end
blob:
    .incbin \"blob\"
blob_end:
    .section .note.GNU-stack,\"\",@progbits
";

/// A script that has each linker in turn make a library and programs, and link over what it made
/// before. It prints whether outputs were mapped, what the programs print, and sums of all files.
const LINK: &str = r#"
set -e -o pipefail
cd "$1"
gcc -O1 -c main.c -o main.o; gcc -O1 -fPIC -DLIBRARY -c main.c -o library.o; gcc -c blob.s -o blob.o
# Runs gcc under strace, which itself runs without the library. Says whether gcc mapped its output; mappings of 1 GiB and of 2
# MiB are the library's windows and do not count.
link() {
    env -u LD_PRELOAD strace -f -y --seccomp-bpf -s 0 -e trace=mmap -E LD_PRELOAD="$LD_PRELOAD" -o "$W/calls" gcc "$@"
    grep 'mmap(' "$W/calls" | grep -v -e ', 1073741824,' -e ', 2097152,' >"$W/mapped"
    if grep -qE 'MAP_SHARED[^,]*, [0-9]+<[^>]*(/(program|library)\.(bfd|gold|lld|mold)|/\.mold-|/cxlraid-[^/]*-map-)' "$W/mapped"; then echo mapped; else echo written; fi
}
for linker in bfd gold lld mold; do
    echo "$linker: $(link -fuse-ld=$linker -shared -Wl,-soname,library.$linker library.o -o library.$linker)"
    for n in 1 2; do
        echo "$linker: $(link -fuse-ld=$linker main.o blob.o ./library.$linker -Wl,-rpath,"\$ORIGIN" -o program.$linker)"
        ./program.$linker
    done
    gcc -fuse-ld=$linker -Wl,--strip-all main.o blob.o library.o -o whole.$linker
    ./whole.$linker
done
sha256sum program.* library.* whole.*
printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n#include <pthread.h>\n' >all.h
gcc -O1 -x c-header all.h -o all.h.gch
gcc -O1 -H -Winvalid-pch -include all.h -c main.c -o again.o 2>&1 | grep -c '^! .*all.h.gch'
sha256sum again.o main.o
strip -o stripped program.gold; objcopy --only-keep-debug program.bfd debug; ./program.lld >/dev/null; sha256sum stripped
"#;

const RUN: &str = r#"
set -e
cd "$1"
for linker in bfd gold lld mold; do ./program.$linker; ./whole.$linker; gcc -fuse-ld=$linker main.o blob.o library.o -o new.$linker; ./new.$linker; done
sha256sum new.*
"#;

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let bytes: usize = scene.sized(1_500_000, 40_000_000);
    let sources = array.host_directory("sources")?;
    let mut numbers = Numbers(23);
    let blob: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| numbers.next().to_le_bytes()).collect();
    for (name, content) in [("main.c", SOURCE.as_bytes()), ("blob.s", BLOB.as_bytes()), ("blob", &blob)] {
        fs::write(sources.join(name), content).map_err(|error| format!("{name}: {error}"))?;
    }
    let (outside, inside) = (array.work.join("plain"), array.data.join("project"));
    array.outside("cp").arg("-r").args([&sources, &outside]).done()?;
    array.inside("cp").arg("-r").args([&sources, &inside]).done()?;
    let expected = array.outside("bash").args(["-c", LINK, "link"]).arg(&outside).text()?;
    let count = |what: &str| expected.lines().filter(|line| line.ends_with(what)).count();
    if (count(": mapped"), count(": written")) != (9, 3) || expected.contains("bfd: mapped") {
        return Err(format!("outside of the array these linkers do not map their outputs as they are known to\n{expected}"));
    }
    same("what linkers make", &expected, &array.inside("bash").args(["-c", LINK, "link"]).arg(&inside).text()?)?;
    lose_one(scene)?;
    let expected = array.outside("bash").args(["-c", RUN, "run"]).arg(&outside).text()?;
    let run = array.inside("bash").args(["-c", RUN, "run"]).arg(&inside).text()?;
    same("what they make with a member away", &expected, &run)?;
    Ok(format!("{} outputs mapped and {} written, the same bytes as outside", count(": mapped"), count(": written")))
}
