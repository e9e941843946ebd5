//! The checks of `tracer doctor`, again and again while a daemon runs.

use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval};

use crate::doctor::{self, Options};
use crate::event::{Fact, Findings};

/// Between two looks at the node: the checks take tenths of a second of one CPU.
const EVERY: Duration = Duration::from_secs(60);

/// Checks the node, until nobody takes the facts. On a thread of the pool for what blocks.
pub async fn checkup(options: Options, tx: Sender<Fact>) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = tx.closed() => return,
        }
        let options = options.clone();
        let Ok(findings) = tokio::task::spawn_blocking(move || doctor::run(&options)).await else { return };
        if tx.send(Fact::Findings(Box::new(Findings { findings }))).await.is_err() {
            return;
        }
    }
}
