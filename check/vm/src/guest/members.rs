//! The members of the array under test: mount points below /mnt, some of which may be missing.

use super::{
    USER_ID, devices,
    programs::{HOME, Program},
};
use crate::{
    Outcome, about,
    array::{Array, PREFIX},
};
use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

/// Mount points by slot, and which of them are left out.
#[derive(Clone)]
pub(super) struct Members {
    pub(super) array: Array,
    places: Vec<PathBuf>,
    absent: Vec<usize>,
}

impl Members {
    fn at_mount_points(array: Array) -> Outcome<Self> {
        if !Path::new(HOME).exists() {
            fs::create_dir(HOME).and_then(|()| chown(HOME, Some(USER_ID), Some(USER_ID))).map_err(about(HOME))?;
        }
        let places = (0..array.shape.member_count).map(|slot| PathBuf::from(format!("/mnt/member{slot}"))).collect();
        Ok(Self { array, places, absent: Vec::new() })
    }

    /// New file systems on these devices, mounted, owned by the user.
    pub(super) fn format(array: Array, devices: &[PathBuf]) -> Outcome<Self> {
        let members = Self::at_mount_points(array)?;
        for (slot, (device, place)) in devices.iter().zip(&members.places).enumerate() {
            devices::format(device, array.system, slot)?;
            devices::mount_dax(device, array.system, place)?;
            chown(place, Some(USER_ID), Some(USER_ID)).map_err(about(place.display()))?;
        }
        Ok(members)
    }

    /// Those that were made on these devices.
    pub(super) fn mount_these(array: Array, devices: &[PathBuf]) -> Outcome<Self> {
        let members = Self::at_mount_points(array)?;
        devices.iter().zip(&members.places).try_for_each(|(device, place)| devices::mount_dax(device, array.system, place))?;
        Ok(members)
    }

    /// Those that are there already: all but `lost_count`. Which ones only their labels say: the
    /// order of NVDIMMs is QEMU's.
    pub(super) fn mount(array: Array, lost_count: usize) -> Outcome<Self> {
        let mut members = Self::at_mount_points(array)?;
        let found = devices::by_member(array.shape.member_count - lost_count, array.system)?;
        for (slot, device) in &found {
            devices::mount_dax(device, array.system, &members.places[*slot])?;
        }
        members.absent = (0..array.shape.member_count).filter(|slot| !found.iter().any(|(there, _)| there == slot)).collect();
        if members.absent.len() == lost_count {
            Ok(members)
        } else {
            Err(format!("members {:?} are missing; {lost_count} were taken out", members.absent))
        }
    }

    pub(super) fn unmount(&self) -> Outcome {
        devices::unmount_all(&self.present().into_iter().map(|slot| self.places[slot].clone()).collect::<Vec<_>>())
    }

    /// The same with more of them left out.
    pub(super) fn without(&self, slots: &[usize]) -> Self {
        let mut fewer = self.clone();
        fewer.absent.extend(slots);
        fewer
    }

    /// Slots of those that are not there.
    pub(super) fn absent(&self) -> &[usize] {
        &self.absent
    }

    /// Slots of those that are there.
    pub(super) fn present(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|slot| !self.absent.contains(slot)).collect()
    }

    /// How many more may go.
    pub(super) fn spare_failures(&self) -> usize {
        self.array.shape.bears.saturating_sub(self.absent.len())
    }

    pub(super) fn place(&self, slot: usize) -> &Path {
        &self.places[slot]
    }

    /// The prefix as it lies on a member.
    pub(super) fn data(&self, slot: usize) -> PathBuf {
        self.places[slot].join(PREFIX.trim_start_matches('/'))
    }

    /// For CXLRAID_MOUNTS. What is left out is a path where nothing is.
    pub(super) fn mounts(&self) -> String {
        let shown = |slot: usize| {
            if self.absent.contains(&slot) { format!("/mnt/absent{slot}") } else { self.places[slot].display().to_string() }
        };
        (0..self.places.len()).map(shown).collect::<Vec<_>>().join(":")
    }

    /// `cxlraid WORDS` by the user, which must exit with `status`.
    pub(super) fn cxlraid(&self, words: &str, status: i32) -> Outcome<String> {
        Program::of_user("cxlraid").on(self).words(words).exits_with(status)
    }
}
