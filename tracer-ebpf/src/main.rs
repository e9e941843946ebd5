//! The kernel programs of `tracer`. They write fixed-size records about tracked connections into one ring.
//!
//! The loader chooses the program type of each hook: fentry, kprobe or tracepoint
//! (`tracer-userspace/bpf/src/ebpf/hooks.rs`). All program types of one hook share one body.
//!
//! Why `unsafe` is sound here; blocks with these reasons have no comment of their own:
//! - Kernel addresses are read only through `bpf_probe_read_kernel`, which fails instead of faulting. With `typed-loads`
//!   by loads that give 0 instead.
//! - Map values are plain integers. Any CPU may overwrite them at any time, so they are copied.
//! - The verifier proves the rest.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![allow(clippy::missing_safety_doc, reason = "see the reasons above")]

mod actor;
mod atomic;
mod emit;
mod flows;
mod hooks;
mod kernel;
mod limit;
mod maps;
mod sockets;
mod track;
mod user;
mod waiting;

// `cargo clippy` compiles this crate for the host, where `std` has the panic handler.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // Never reached: the verifier rejects a program that can get here.
    loop {}
}

/// The helpers that read kernel memory, write to the ring or read the stack require a GPL-compatible license.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
