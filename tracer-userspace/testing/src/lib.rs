//! For unit tests of several crates: addresses, texts, temporary files, and a wait with a time limit.
#![expect(clippy::new_without_default, reason = "for tests")]

mod address;
mod scratch;
mod soon;
mod text;

pub use address::address;
pub use scratch::{Scratch, TestFile};
pub use soon::{PATIENCE, soon};
pub use text::{assert_ends, assert_has, assert_lacks, assert_starts};
