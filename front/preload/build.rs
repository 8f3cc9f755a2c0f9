//! How libcxlraid.so is linked: nothing of libc or the compiler's start files, our constructor
//! first, no lazy binding.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let flags = [
        "-nostartfiles",
        "-nodefaultlibs",
        "-Wl,-soname,libcxlraid.so",
        // Our constructor runs before any other library's (glibc honours one such library per
        // process).
        "-Wl,-z,initfirst",
        "-Wl,-z,now",
        "-Wl,-z,nodelete",
        "-Wl,-z,defs",
        "-Wl,--gc-sections",
        "-Wl,--build-id=sha1",
    ];
    for flag in flags {
        println!("cargo:rustc-cdylib-link-arg={flag}");
    }
    println!("cargo:rustc-env=CXLRAID_PATCH_SOURCES={:016x}", sources("src/patch"));
}

/// A hash (FNV-1a) of the code that finds sites: what another build of it has found is not taken
/// from the cache.
fn sources(directory: &str) -> u64 {
    println!("cargo:rerun-if-changed={directory}");
    let entries = std::fs::read_dir(directory).expect("the package's own sources");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry of them").path()).collect();
    paths.sort();
    let bytes = paths.iter().filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).expect("one of them"));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
