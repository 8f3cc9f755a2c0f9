//! What depends on the processor. A port provides, under the same names:
//!
//! - [`Isa`] with `ALL`, `is_available`, `best`: the instruction sets kernels are compiled for;
//! - [`table`]: the kernels of one of them, stores non-temporal or ordinary;
//! - [`fence`], [`write_back`], `prefetch`: ordering, write-back, fetching ahead;
//! - [`timestamp`], [`timestamp_in_order`]: the processor's clock;
//! - `copy_string`, `suits_copy_string`: the processor's own copy, and where it is a good one;
//! - `has_crc`, `crc_lanes`: the processor's own CRC-32C;
//! - `has_fold`, `fold_block`, `block_table`: CRC-32C of lines in registers, and kernels that use it;
//! - `guard`: entering and leaving a guarded call, and redirecting a signal's return there.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::guard;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Isa, fence, timestamp, timestamp_in_order, write_back};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{block_table, copy_string, crc_lanes, fold_block, has_crc, has_fold, prefetch};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{suits_copy_string, table, wipe_vector_state};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("cxlraid runs on x86-64; a port adds a module here");

use crate::template::{Stripe, Update};

/// `(destination, source, bytes)`
pub(crate) type CopyKernel = unsafe fn(*mut u8, *const u8, usize);
/// `(destinations, source, bytes)`
pub(crate) type MirrorKernel = unsafe fn(&[*mut u8], *const u8, usize);
/// `(destination, bytes)`
pub(crate) type ZeroKernel = unsafe fn(*mut u8, usize);
/// See [`Update`].
pub(crate) type UpdateKernel = unsafe fn(&Update);
/// See [`Stripe`].
pub(crate) type StripeKernel = unsafe fn(&Stripe<'_>);
/// See `template::fits`.
pub(crate) type FitsKernel = unsafe fn(&Stripe<'_>) -> bool;
/// `(coefficients, sources, destination, bytes)`
pub(crate) type DotKernel = unsafe fn(&[u8], &[*const u8], *mut u8, usize);

/// The kernels of one instruction set, all storing whole lines in the same way.
pub(crate) struct Table {
    pub(crate) copy: CopyKernel,
    pub(crate) mirror: MirrorKernel,
    pub(crate) zero: ZeroKernel,
    pub(crate) update_p: UpdateKernel,
    pub(crate) update_q: UpdateKernel,
    pub(crate) update_pq: UpdateKernel,
    pub(crate) stripe_p: StripeKernel,
    pub(crate) stripe_pq: StripeKernel,
    pub(crate) parity_p: StripeKernel,
    pub(crate) parity_pq: StripeKernel,
    pub(crate) fits_p: FitsKernel,
    pub(crate) fits_pq: FitsKernel,
    pub(crate) dot: DotKernel,
}
