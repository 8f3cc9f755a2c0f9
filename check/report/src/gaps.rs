//! The list of measurements that belong into the evaluation and are not made, each with the reason:
//! nobody shall take silence for a result.

/// What is missing, and why.
pub(crate) const GAPS: &[(&str, &str)] = &[
    (
        "F2, temporal and non-temporal stores, with and without a drain",
        "the library has one kind of store; measuring the others takes a switch in it that only a benchmark may use, which is not \
         built",
    ),
    ("md RAID in QEMU and UML", "the kernel here has no md; instruction counts in an emulator are not built"),
    ("the tables of RAIF and BDIO", "they are measured by `cargo x bench` and by hand (docs/rules.md, docs/backed.md)"),
    ("mergerfs", "not among the peers yet"),
    ("sysbench, LMDB, package installers", "not built; `cargo x servers` runs LMDB for correctness only"),
    ("the mount beside a bare pass-through FUSE and the kernel", "not built; docs/mount.md has figures taken by hand"),
];
