//! The node of memory to which the running processor belongs.

use core::arch::asm;

/// The segment whose limit the kernel sets, per processor, to the processor's number and in the
/// bits from 12 on its node's (arch/x86/include/asm/segment.h, `__CPUNODE_SEG`): how the kernel's
/// own getcpu(2) without a system call finds them.
const PROCESSOR_SEGMENT: u32 = 15 * 8 + 3;

/// The number of the node, 0 where the kernel does not tell. The thread may be on another processor
/// by the time it is looked at.
#[inline]
#[must_use]
pub fn current() -> usize {
    let limit: u32;
    // SAFETY: lsl reads the limit of a segment. Of one that is not there it writes nothing, and the
    // register keeps its 0.
    unsafe {
        asm!(
            "lsl {limit:e}, {segment:e}",
            limit = inout(reg) 0_u32 => limit,
            segment = in(reg) PROCESSOR_SEGMENT,
            options(nostack, nomem, pure)
        );
    }
    (limit >> 12) as usize
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_node_is_the_one_that_the_kernel_tells() {
        let mut told = [u32::MAX; 2];
        let [processor, node] = [0, 1].map(|index| core::ptr::from_mut(&mut told[index]) as usize);
        // SAFETY: getcpu(2) writes two numbers.
        let done = unsafe { crate::raw::syscall(309, [processor, node, 0, 0, 0, 0]) };
        assert_eq!(done, 0);
        // A machine with one node has the processor anywhere on it.
        if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
            assert_eq!(super::current(), told[1] as usize);
        }
    }
}
