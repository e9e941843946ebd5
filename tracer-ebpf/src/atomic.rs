//! Atomic addition in assembly. Rust has no atomic arithmetic for this target, and LLVM's intrinsic may become
//! `BPF_FETCH`, which 5.10 lacks.

/// Adds to a value that other CPUs add to at the same time, modulo 2^64.
///
/// # Safety
/// `value` points into a map.
#[inline(always)]
#[cfg(target_arch = "bpf")]
pub unsafe fn add(value: *mut u64, by: u64) {
    unsafe { core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) value, in(reg) by, options(nostack)) };
}

/// For `cargo clippy`, which compiles this crate for the host.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn add(value: *mut u64, by: u64) {
    unsafe { *value = (*value).wrapping_add(by) };
}
