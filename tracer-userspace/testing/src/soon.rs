//! What another thread does, and nothing tells of.

use std::time::{Duration, Instant};

/// For what happens in milliseconds, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Tries until it works.
#[track_caller]
pub fn soon<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = try_it() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
