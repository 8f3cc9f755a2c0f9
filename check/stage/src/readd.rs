//! A member that was away is brought back, as `cxlraid re-add` does.
//!
//! It is for a process of its own, without interception. The array is what the usual variables say.

use crate::scrub::View;
use array::{Array, Config, Standing};
use namespace::Content;
use std::os::unix::ffi::OsStringExt as _;

/// Brings every member back that is there and out, and has all files computed. Nobody uses the
/// array. Returns the slots.
///
/// # Errors
/// Why a member cannot be brought back; then it is out as before.
pub fn re_add() -> Result<Vec<usize>, String> {
    persist::fault::install_handlers().map_err(|error| format!("handlers: {error:?}"))?;
    let variable = |name: &str| std::env::var_os(name).map(|value| value.into_vec());
    let config = Config::from_lookup(variable).map_err(|error| error.to_string())?.ok_or("no array in the environment")?;
    let members = Array::foresee(&config).map_err(|error| error.to_string())?;
    let is_away = |standing| !matches!(standing, Standing::InSync | Standing::Missing);
    let slots: Vec<usize> = members.iter().filter(|member| is_away(member.standing)).map(|member| member.slot).collect();
    for &slot in &slots {
        namespace::fill(&config, slot, Content::Kept).map_err(|error| format!("member {slot}: {error}"))?;
    }
    let view = View::attach()?;
    view.compute()?;
    Ok(slots)
}
