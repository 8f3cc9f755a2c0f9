//! Debian's kernel, made ready to boot fast: unpacked on the host, and those modules that the guest
//! loads, in an order that works.
//!
//! An emulated processor takes seconds to decompress a kernel. QEMU starts an uncompressed one
//! directly (PVH).

use super::tool;
use crate::{Outcome, about};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Modules for NVDIMMs, CXL memory and XFS; NVMe, virtio and ext4 are built in. What they depend on
/// is found.
const WANTED: [&str; 10] =
    ["nfit", "nd_pmem", "dax_pmem", "device_dax", "cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "cxl_port", "xfs"];

/// Magic numbers of what a kernel may be packed with, and what unpacks it.
const PACKINGS: [(&[u8], &str, &[&str]); 3] = [
    (b"\x28\xb5\x2f\xfd", "zstd", &["-dc"]),
    (b"\xfd7zXZ\0", "xz", &["-dc", "--single-stream"]),
    (b"\x1f\x8b\x08", "gzip", &["-dc"]),
];

/// Writes the kernel in `packed` (a bzImage) to `target` as an ELF file.
pub(crate) fn unpack(packed: &Path, target: &Path) -> Outcome {
    let image = fs::read(packed).map_err(about(packed.display()))?;
    for (magic, program, arguments) in PACKINGS {
        for at in image.windows(magic.len()).enumerate().filter(|(_, bytes)| *bytes == magic).map(|(at, _)| at) {
            let unpacked = filter(program, arguments, &image[at..])?;
            if unpacked.starts_with(b"\x7fELF") {
                return fs::write(target, unpacked).map_err(about(target.display()));
            }
        }
    }
    Err(format!("{}: no kernel found in it", packed.display()))
}

/// What a program makes of `input`, whatever it thinks of what follows.
fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Outcome<Vec<u8>> {
    let path = tool::need(program, if program == "xz" { "xz-utils" } else { program })?;
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(about(program))?;
    let mut pipe = child.stdin.take().ok_or("a child without a pipe")?;
    std::thread::scope(|scope| {
        // It stops reading where the packed kernel ends.
        scope.spawn(move || pipe.write_all(input).is_ok());
        child.wait_with_output().map(|output| output.stdout).map_err(about(program))
    })
}

/// Puts the wanted modules and what they need below `root`, unpacked, and their order into
/// `root/modules/list`.
pub(crate) fn modules(tree: &Path, root: &Path) -> Outcome {
    let mut files = BTreeMap::new();
    collect(tree, &mut files)?;
    let directory = root.join("modules");
    fs::create_dir_all(&directory).map_err(about(directory.display()))?;
    let mut order = Vec::new();
    for wanted in WANTED {
        add(wanted, &files, &directory, &mut order)?;
    }
    fs::write(directory.join("list"), order.join("\n")).map_err(about("the list of modules"))
}

/// Every module below `directory` by its name, with underscores.
fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Outcome {
    for entry in fs::read_dir(directory).map_err(about(directory.display()))? {
        let path = entry.map_err(about(directory.display()))?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some((name, _)) = path.file_name().and_then(|name| name.to_str()?.split_once(".ko")) {
            files.insert(name.replace('-', "_"), path.clone());
        }
    }
    Ok(())
}

/// A module after what it depends on. One that is no file is built in.
fn add(name: &str, files: &BTreeMap<String, PathBuf>, directory: &Path, order: &mut Vec<String>) -> Outcome {
    let Some(file) = files.get(name) else { return Ok(()) };
    let own = format!("{name}.ko");
    if order.contains(&own) {
        return Ok(());
    }
    let mut bytes = fs::read(file).map_err(about(file.display()))?;
    if file.extension().is_some_and(|extension| extension == "xz") {
        bytes = filter("xz", &["-dc"], &bytes)?;
    }
    for other in depends(&bytes) {
        add(&other, files, directory, order)?;
    }
    fs::write(directory.join(&own), bytes).map_err(about(&own))?;
    order.push(own);
    Ok(())
}

/// What a module says it depends on: `depends=a,b` and a NUL in its .modinfo section.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value).replace('-', "_");
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_a_module() {
        assert_eq!(depends(b"x\0license=GPL\0depends=libnvdimm,nd-btt\0retpoline=Y\0"), ["libnvdimm", "nd_btt"]);
        assert_eq!(depends(b"x\0depends=\0name=y\0"), Vec::<String>::new());
        assert_eq!(depends(b"nothing"), Vec::<String>::new());
    }
}
