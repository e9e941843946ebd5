//! Waits for something that another thread or process does without a notification.

use std::time::{Duration, Instant};

/// A time limit for something that takes milliseconds, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Repeats `try_it` until it returns a value. Panics after [`PATIENCE`].
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
