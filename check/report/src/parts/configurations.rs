//! The configurations of the thesis' chapter 5, and what stands beside them.

use crate::fio::FILE;
use crate::ground::{Ground, Place, Shape};
use crate::plan::Plan;
use crate::record::Sample;

/// What a configuration lies on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// An ordinary directory of the tmpfs, without the library.
    Plain,
    /// An array; `broken` if its first member is lost.
    Array { shape: Shape, broken: bool },
    /// ext4 on a loop device over the tmpfs.
    Ext4,
    /// btrfs on loop devices over the tmpfs: profile, devices, options of the mount.
    Btrfs(&'static str, usize, &'static str),
}

/// A bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Configuration {
    pub(crate) name: &'static str,
    pub(crate) base: Base,
    /// fio's engine.
    pub(crate) engine: &'static str,
}

const fn array(name: &'static str, shape: Shape, broken: bool) -> Configuration {
    Configuration { name, base: Base::Array { shape, broken }, engine: "psync" }
}

/// btrfs on so many loop devices. The profile is that of its data and of its metadata.
pub(super) const fn btrfs(name: &'static str, profile: &'static str, devices: usize, options: &'static str) -> Configuration {
    Configuration { name, base: Base::Btrfs(profile, devices, options), engine: "psync" }
}

const fn shape(level: &'static str, members: usize, chunk_bytes: u64, journal: bool) -> Shape {
    Shape { level, members, chunk_bytes, journal }
}

pub(crate) const POSIX: Configuration = Configuration { name: "posix", base: Base::Plain, engine: "psync" };
pub(crate) const LIBPMEM: Configuration = Configuration { name: "libpmem", base: Base::Plain, engine: "libpmem" };
/// fio without a file: the most that it can call.
pub(crate) const NULL: Configuration = Configuration { name: "null engine", base: Base::Plain, engine: "null" };
pub(crate) const EXT4: Configuration = Configuration { name: "ext4 on loop", base: Base::Ext4, engine: "psync" };
pub(crate) const MAPPING: Configuration = array("mapping", shape("1", 1, 4096, false), false);
pub(crate) const RAID1: Configuration = array("raid1", shape("1", 3, 4096, false), false);
pub(crate) const RAID1_JOURNAL: Configuration = array("raid1_journal", shape("1", 3, 4096, true), false);
pub(crate) const RAID1_BROKEN: Configuration = array("raid1_broken", shape("1", 3, 4096, false), true);
pub(crate) const RAID5: Configuration = array("raid5", shape("5", 3, 4096, false), false);
pub(crate) const RAID5_64K: Configuration = array("raid5, 64 KiB chunks", shape("5", 3, 64 << 10, false), false);
pub(crate) const RAID5_JOURNAL: Configuration = array("raid5_journal", shape("5", 3, 4096, true), false);
pub(crate) const RAID5_BROKEN: Configuration = array("raid5_broken", shape("5", 3, 4096, false), true);
pub(crate) const BTRFS_RAID1: Configuration = btrfs("btrfs raid1", "raid1", 3, "");
pub(crate) const BTRFS_RAID5: Configuration = btrfs("btrfs raid5", "raid5", 3, "");
/// The places that programs are compared on: arrays, and the file systems that a user would pick
/// instead on the same memory.
pub(crate) const PROGRAMS: [Configuration; 6] = [POSIX, RAID1, RAID5_64K, EXT4, BTRFS_RAID1, BTRFS_RAID5];

impl Configuration {
    /// The same with other chunks.
    pub(crate) fn with_chunks(mut self, bytes: u64) -> Self {
        if let Base::Array { shape, .. } = &mut self.base {
            shape.chunk_bytes = bytes;
        }
        self
    }

    /// Bytes that the plan's file takes on it at most, with the file system around it.
    pub(crate) fn takes_bytes(&self, plan: &Plan) -> u64 {
        let bytes = plan.file_bytes;
        // A byte more or less of metadata beside each file.
        let around = 16 << 20;
        around
            + match self.base {
                Base::Plain => bytes,
                Base::Array { shape, .. } if shape.level == "1" => bytes * shape.members as u64,
                Base::Array { shape, .. } => bytes * shape.members as u64 / (shape.members as u64 - 1),
                Base::Ext4 => bytes + (64 << 20),
                // What is written goes elsewhere each time, until a device is full; a quick run ends
                // long before.
                Base::Btrfs(_, count, _) if plan.is_quick() => (bytes + (32 << 20)) * count as u64,
                Base::Btrfs(_, count, _) => device_bytes(bytes) * count as u64,
            }
    }

    /// Makes the place, with room for two files of `bytes`. Err says why it cannot be had.
    fn empty_place(&self, ground: &Ground, bytes: u64) -> Result<Place, String> {
        match self.base {
            Base::Plain => ground.plain(),
            Base::Array { shape, .. } => ground.array(shape),
            Base::Ext4 => ground.ext4(bytes * 5 / 4 + (64 << 20)),
            Base::Btrfs(profile, count, options) => ground.btrfs(profile, count, device_bytes(bytes), options),
        }
    }

    /// Makes the place, with the file that fio works on. Err says why it cannot be had.
    fn place(&self, ground: &Ground, plan: &Plan) -> Result<Place, String> {
        let bytes = plan.file_bytes;
        let place = self.empty_place(ground, bytes)?;
        if self.engine == "null" {
            return Ok(place);
        }
        let filled = ground.fill(&place, FILE, bytes);
        match self.base {
            Base::Array { broken: true, .. } => filled.and_then(|()| ground.lose_first(&place))?,
            _ => filled?,
        }
        Ok(place)
    }

    /// True for what a machine may lack; an array that cannot be made is a failure.
    pub(crate) const fn is_peer(&self) -> bool {
        !matches!(self.base, Base::Array { .. })
    }
}

/// The room for a file that grows: a file system's device is sparse, so it takes what is written.
const LOG_BYTES: u64 = 4 << 30;

/// The size of each device of a btrfs for a file of `bytes`.
const fn device_bytes(bytes: u64) -> u64 {
    bytes * 5 / 4 + (256 << 20)
}

/// The places of configurations, and the names of those that cannot be had with the reason.
pub(crate) struct Places {
    pub(crate) found: Vec<(Configuration, Place)>,
    pub(crate) absent: Vec<(&'static str, String)>,
}

impl Places {
    /// Places with the file that fio works on.
    pub(crate) fn make(ground: &Ground, plan: &Plan, configurations: &[Configuration]) -> Result<Self, String> {
        if stage::process::find_program("fio").is_none() {
            let why = "fio is not installed";
            let absent = configurations.iter().map(|one| (one.name, why.to_owned())).collect();
            return Ok(Self { found: Vec::new(), absent });
        }
        Self::made(configurations, |one| one.place(ground, plan))
    }

    /// Places without a file.
    pub(crate) fn make_empty(ground: &Ground, configurations: &[Configuration]) -> Result<Self, String> {
        Self::made(configurations, |one| one.empty_place(ground, LOG_BYTES))
    }

    /// Returns a left-out bar for each configuration if `program`, which they need, is not installed.
    pub(crate) fn without(program: &str, figure: &str, configurations: &[Configuration]) -> Option<Vec<Sample>> {
        let why = format!("{program} is not installed");
        let absent = || configurations.iter().map(|one| Sample::absent(figure, one.name, &why)).collect();
        stage::process::find_program(program).is_none().then(absent)
    }

    /// The bars that are left out since their file systems cannot be had.
    pub(crate) fn left_out(&self, figure: &str) -> Vec<Sample> {
        self.absent.iter().map(|(name, why)| Sample::absent(figure, name, why)).collect()
    }

    fn made(configurations: &[Configuration], make: impl Fn(&Configuration) -> Result<Place, String>) -> Result<Self, String> {
        let mut places = Self { found: Vec::new(), absent: Vec::new() };
        for configuration in configurations {
            match make(configuration) {
                Ok(place) => places.found.push((*configuration, place)),
                Err(why) if configuration.is_peer() => places.absent.push((configuration.name, why)),
                Err(why) => return Err(format!("{}: {why}", configuration.name)),
            }
        }
        Ok(places)
    }

    pub(crate) fn discard(self, ground: &Ground) -> Result<(), String> {
        self.found.iter().try_for_each(|(_, place)| ground.discard(place))
    }
}
