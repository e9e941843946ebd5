//! For unit tests of several crates: addresses, temporary files, and a wait with a time limit.
#![expect(clippy::new_without_default, reason = "for tests")]

mod address;
mod scratch;
mod soon;

pub use address::address;
pub use scratch::{Scratch, TestFile};
pub use soon::{PATIENCE, soon};
