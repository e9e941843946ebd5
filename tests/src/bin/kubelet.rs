//! The prober: a process named `kubelet` that makes probe attempts on request. Requests come as
//! JSON lines on stdin; each is served by a thread of its own, never by the first one, as in Go.

use std::io::BufRead;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use tracer_tests::dial::{Dial, dial};
use tracer_tests::prober::{CrowdOutcome, Reply, Request};

fn main() -> Result<()> {
    say(&Reply::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let request: Request = serde_json::from_str(&line).with_context(|| format!("request {line:?}"))?;
        thread::spawn(move || say(&serve(request)));
    }
    Ok(())
}

fn say(reply: &Reply) -> Result<()> {
    println!("{}", serde_json::to_string(reply)?);
    Ok(())
}

fn serve(request: Request) -> Reply {
    match request {
        Request::Dial(what) => Reply::Outcome(dial(&what)),
        Request::Crowd { dial, count, threads } => Reply::Crowd(crowd(dial, count, threads.max(1))),
    }
}

fn crowd(what: Dial, count: u32, threads: u32) -> CrowdOutcome {
    let began = Instant::now();
    let mut all = CrowdOutcome::default();
    thread::scope(|scope| {
        let share = |n: u32| count / threads + u32::from(n < count % threads);
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(move || many(what, share(n)))).collect();
        for worker in workers {
            all.merge(worker.join().unwrap_or_default());
        }
    });
    all.elapsed_ms = began.elapsed().as_secs_f64() * 1e3;
    all
}

fn many(what: Dial, count: u32) -> CrowdOutcome {
    let mut sum = CrowdOutcome::default();
    for _ in 0..count {
        sum.add(dial(&what));
    }
    sum
}
