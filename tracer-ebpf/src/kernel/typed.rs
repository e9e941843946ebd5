//! Reads kernel memory where the kernel withholds `bpf_probe_read_kernel`, as lockdown `confidentiality` does.
//!
//! `bpf_rdonly_cast` (6.2) gives an address the type of a struct of the kernel, and the verifier then allows to load its
//! fields. A load from a bad address gives 0. Each word is loaded as the first field of a struct that begins with such
//! a number.

use tracer_common::offsets::RDONLY_CAST;

use crate::maps::global;

/// A number of the kernel's memory.
trait Word: Copy {
    fn load(from: u64) -> Self;
}

macro_rules! words {
    ($($word:ty: $struct_id:ident;)*) => {$(
        impl Word for $word {
            /// A function of its own: what it computes must not take place on the stack of its callers.
            #[inline(never)]
            fn load(from: u64) -> Self {
                // The loader puts the kernel function in the place of this helper, which no kernel has.
                let cast: unsafe extern "C" fn(u64, u64) -> *const Self =
                    unsafe { core::mem::transmute(RDONLY_CAST as usize) };
                let struct_id = global!(TYPES.$struct_id);
                unsafe { cast(from, u64::from(struct_id)).read_volatile() }
            }
        }
    )*};
}

words! {
    u64: begins_with_u64;
    u32: begins_with_u32;
    u16: begins_with_u16;
    u8: begins_with_u8;
}

/// Copies `dst` from `base + offset`. What a bad address holds is 0.
#[inline(always)]
pub(super) fn copy<T>(base: u64, offset: u32, dst: &mut T) -> bool {
    let from = base + u64::from(offset);
    let to = (&raw mut *dst).cast();
    let mut at = 0;
    if base != 0 {
        copy_words::<T, u64>(from, to, &mut at);
        copy_words::<T, u32>(from, to, &mut at);
        copy_words::<T, u16>(from, to, &mut at);
        copy_words::<T, u8>(from, to, &mut at);
    }
    base != 0
}

/// Copies whole words of a `T` from `at` on.
#[inline(always)]
fn copy_words<T, W: Word>(from: u64, to: *mut u8, at: &mut usize) {
    let count = (size_of::<T>() - *at) / size_of::<W>();
    if count == 1 {
        unsafe { to.add(*at).cast::<W>().write_unaligned(W::load(from + *at as u64)) };
    } else if count > 1 {
        copy_many::<W>(from + *at as u64, unsafe { to.add(*at) }, count);
    }
    *at += count * size_of::<W>();
}

#[inline(never)]
fn copy_many<W: Word>(from: u64, to: *mut u8, count: usize) {
    for at in (0..count).map(|n| n * size_of::<W>()) {
        unsafe { to.add(at).cast::<W>().write_unaligned(W::load(from + at as u64)) };
    }
}

/// Copies a string, NUL padded.
#[inline(always)]
pub(super) fn copy_str<const N: usize>(base: u64, offset: u32, dst: &mut [u8; N]) -> bool {
    const { assert!(N.is_multiple_of(8)) }
    let done = copy(base, offset, dst);
    // As the helper does, it cuts the string before its last byte.
    dst[N - 1] = 0;
    pad(dst.as_mut_ptr().cast(), N / 8);
    done
}

/// Zeroes what follows the first NUL. Without branches: each would double what the verifier follows.
#[inline(never)]
fn pad(words: *mut u64, count: usize) {
    let mut ended = 0u64;
    for at in 0..count {
        let at = unsafe { words.add(at) };
        let word = unsafe { at.read_unaligned() };
        // The highest bit of the first byte that is 0.
        let zeros = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
        let first = zeros & zeros.wrapping_neg();
        let before = (first >> 7).wrapping_sub(1);
        let until_now = ((ended | ended.wrapping_neg()) >> 63).wrapping_sub(1);
        unsafe { at.write_unaligned(word & before & until_now) };
        ended |= first;
    }
}
