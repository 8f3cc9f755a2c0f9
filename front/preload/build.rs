//! How libcxlraid.so is linked: nothing of libc or the compiler's start files, our constructor first, no lazy binding.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let flags = [
        "-nostartfiles",
        "-nodefaultlibs",
        "-Wl,-soname,libcxlraid.so",
        // Our constructor runs before any other library's (glibc honours one such library per process).
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
}
