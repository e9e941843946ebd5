//! What another thread does, and nothing tells of.

use std::time::{Duration, Instant};

/// Tries until it works, a few seconds at most.
#[track_caller]
pub fn soon<T>(mut try_it: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = try_it() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
