//! The kernel half of `tracer`: thin programs that read facts where they happen, keep only what
//! concerns a tracked connection, and write fixed-size records into one ring.
//!
//! Which form of a hook is used (fentry, kprobe, raw tracepoint) is decided by the loader
//! (`tracer-userspace/bpf/src/ebpf/hooks.rs`); all forms of one event share one body.
//!
//! `unsafe`: every pointer here is a kernel address that is only ever read through
//! `bpf_probe_read_kernel`, which fails instead of faulting; map values are plain integers that any
//! CPU may overwrite at any time and are therefore copied out; the verifier proves the rest. The
//! blocks carry no comment of their own where this is the reason.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![allow(clippy::missing_safety_doc, reason = "the blanket reason stands above")]

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
mod waiting;

// `cargo clippy` looks at this crate as one for the host, which brings its own panic handler.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // Never reached: the verifier refuses a program that can get here.
    loop {}
}

/// `bpf_probe_read_kernel`, ring buffer and stack helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
