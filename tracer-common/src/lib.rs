//! The types that the eBPF programs and userspace share. Also decisions of the programs that need no kernel: plain functions that
//! are tested on the host.
//!
//! Every type is `repr(C)`. The compiler checks that each event begins with its header and is aligned to 8 bytes. Numbers
//! are written out and never reused. A value that the running kernel cannot give is [`ABSENT32`] or [`ABSENT64`], never
//! zero.
#![no_std]

/// Declares an enum with its numbers on the wire, and the conversion from a number. With the feature `serde`, recordings have the
/// names of its variants.
macro_rules! numbered {
    (
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
        #[repr(u16)]
        pub enum $name { $($(#[$doc])* $variant = $number,)* }

        impl $name {
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

pub mod actor;
pub mod answer;
pub mod conn;
pub mod drop;
pub mod events;
pub mod header;
pub mod limit;
pub mod link;
pub mod listen;
pub mod names;
pub mod netfilter;
pub mod netns;
pub mod offsets;
pub mod packet;
pub mod ports;
pub mod reset;
pub mod ring;
pub mod state;
pub mod stats;
pub mod tracking;
pub mod tuple;
pub mod waiting;

/// Frames of a kernel stack in an event.
pub const STACK_DEPTH: usize = 12;

/// A 32-bit field that the running kernel does not have.
pub const ABSENT32: u32 = u32::MAX;
/// A 64-bit field that the running kernel does not have.
pub const ABSENT64: u64 = u64::MAX;
/// An errno that is not known. (0 is a known value: no error.)
pub const ABSENT_ERRNO: i32 = i32::MIN;
