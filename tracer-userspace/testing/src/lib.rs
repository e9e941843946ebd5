//! For unit tests of several crates: temporary files, and a wait with a time limit.
#![expect(clippy::new_without_default, reason = "for tests")]

mod scratch;
mod soon;

pub use scratch::{Scratch, TestFile};
pub use soon::{PATIENCE, soon};
