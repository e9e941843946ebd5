//! Atomic addition. By hand: Rust offers this target no atomic arithmetic, and LLVM's may be the
//! instruction with a result that 5.10 does not have.

/// Adds to what other CPUs add to as well, modulo 2^64.
///
/// # Safety
/// `value` points into a map.
#[inline(always)]
#[cfg(target_arch = "bpf")]
pub unsafe fn add(value: *mut u64, by: u64) {
    unsafe { core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) value, in(reg) by, options(nostack)) };
}

/// For `cargo clippy`, which looks at this crate as one for the host.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn add(value: *mut u64, by: u64) {
    unsafe { *value = (*value).wrapping_add(by) };
}
