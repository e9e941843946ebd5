//! Memory of the current task.

#[cfg(feature = "typed-loads")]
pub use self::formatted::{bytes, head, string};

#[cfg(not(feature = "typed-loads"))]
mod helpers {
    use aya_ebpf::helpers::{bpf_probe_read_user, generated::bpf_probe_read_user_str};

    #[inline(always)]
    pub fn bytes<const N: usize>(from: u64) -> Option<[u8; N]> {
        unsafe { bpf_probe_read_user(from as *const _) }.ok()
    }

    /// The first eight bytes of a string, in the order of memory.
    #[inline(always)]
    pub fn head(from: u64) -> Option<u64> {
        unsafe { bpf_probe_read_user(from as *const _) }.ok()
    }

    /// Copies a NUL-terminated string, cut to `size`. Returns its length with the NUL; a negative number is an error.
    #[inline(always)]
    pub fn string(to: *mut u8, size: u32, from: u64) -> i64 {
        unsafe { bpf_probe_read_user_str(to.cast(), size, from as *const _) }
    }
}
#[cfg(not(feature = "typed-loads"))]
pub use self::helpers::{bytes, head, string};

/// Where the kernel withholds `bpf_probe_read_kernel`, aya puts the older `bpf_probe_read` in the place of the helpers for
/// user memory, too, and the kernel withholds that as well. So `bpf_snprintf` (5.13) reads strings here. What cannot be
/// read is an empty string.
#[cfg(feature = "typed-loads")]
mod formatted {
    use aya_ebpf::helpers::generated::bpf_snprintf;

    /// A string in user memory.
    static FORMAT: [u8; 5] = *b"%pus\0";

    #[inline(always)]
    pub fn bytes<const N: usize>(from: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (byte, at) in bytes.iter_mut().zip(from..) {
            *byte = one(at);
        }
        Some(bytes)
    }

    /// A byte is a string that is cut after it.
    #[inline(never)]
    fn one(from: u64) -> u8 {
        let mut text = [0; 2];
        string(text.as_mut_ptr(), 2, from);
        text[0]
    }

    #[inline(always)]
    pub fn head(from: u64) -> Option<u64> {
        let mut text = [0u64; 2];
        (string(text.as_mut_ptr().cast(), 9, from) > 0).then_some(text[0])
    }

    #[inline(always)]
    pub fn string(to: *mut u8, size: u32, from: u64) -> i64 {
        let mut pointer = from;
        let length = unsafe { bpf_snprintf(to.cast(), size, FORMAT.as_ptr().cast(), &raw mut pointer, 8) };
        length.min(i64::from(size))
    }
}
