//! Waits for a state of the kernel that has no event.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Generous, also for an emulated processor.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns once `done` is true. `what` names that state.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() > deadline {
            bail!("waited {PATIENCE:?} until {what}");
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}
