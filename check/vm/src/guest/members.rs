//! The members of the array under test: mount points below /mnt, some of which may be missing.

use super::{
    USER_ID, devices,
    programs::{HOME, Program},
};
use crate::{
    Outcome, about,
    array::{FileSystem, PREFIX, Shape},
};
use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

/// Mount points by slot, and which of them are left out.
#[derive(Clone)]
pub(super) struct Members {
    pub(super) shape: Shape,
    places: Vec<PathBuf>,
    absent: Vec<usize>,
}

impl Members {
    fn at_mount_points(shape: Shape) -> Outcome<Self> {
        if !Path::new(HOME).exists() {
            fs::create_dir(HOME).and_then(|()| chown(HOME, Some(USER_ID), Some(USER_ID))).map_err(about(HOME))?;
        }
        let places = (0..shape.member_count).map(|slot| PathBuf::from(format!("/mnt/member{slot}"))).collect();
        Ok(Self { shape, places, absent: Vec::new() })
    }

    /// New file systems on these devices, mounted, owned by the user.
    pub(super) fn format(shape: Shape, system: FileSystem, devices: &[PathBuf]) -> Outcome<Self> {
        let members = Self::at_mount_points(shape)?;
        for (slot, (device, place)) in devices.iter().zip(&members.places).enumerate() {
            devices::format(device, system, slot)?;
            devices::mount_dax(device, system, place)?;
            chown(place, Some(USER_ID), Some(USER_ID)).map_err(about(place.display()))?;
        }
        Ok(members)
    }

    /// Those that were made on these devices.
    pub(super) fn mount_these(shape: Shape, system: FileSystem, devices: &[PathBuf]) -> Outcome<Self> {
        let members = Self::at_mount_points(shape)?;
        devices.iter().zip(&members.places).try_for_each(|(device, place)| devices::mount_dax(device, system, place))?;
        Ok(members)
    }

    /// Those that are there already; `without` says which one must not be.
    pub(super) fn mount(shape: Shape, system: FileSystem, without: Option<usize>) -> Outcome<Self> {
        let mut members = Self::at_mount_points(shape)?;
        let found = devices::by_member(shape.member_count - usize::from(without.is_some()), system)?;
        for (slot, device) in &found {
            devices::mount_dax(device, system, &members.places[*slot])?;
        }
        members.absent = (0..shape.member_count).filter(|slot| !found.iter().any(|(there, _)| there == slot)).collect();
        let expected: Vec<usize> = without.into_iter().collect();
        if members.absent == expected {
            Ok(members)
        } else {
            Err(format!("members {:?} are missing instead of {expected:?}", members.absent))
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

    /// Slots of those that are there.
    pub(super) fn present(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|slot| !self.absent.contains(slot)).collect()
    }

    /// How many more may go.
    pub(super) fn spare_failures(&self) -> usize {
        self.shape.bears.saturating_sub(self.absent.len())
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
