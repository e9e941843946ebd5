//! What the unit tests of several crates need: files that go away with their test, and a bounded wait.
#![expect(clippy::new_without_default, reason = "for tests")]

mod scratch;
mod soon;

pub use scratch::{Scratch, TestFile};
pub use soon::{PATIENCE, soon};
