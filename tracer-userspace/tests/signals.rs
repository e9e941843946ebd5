//! Signals of a live run. There is one test only, because a signal reaches the whole process.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;
use tracer::pipeline::{Attached, EventSource, LiveConfig, run};
use tracer_bpf::ebpf::LoadOptions;
use tracer_model::event::{Observation, Start};
use tracer_output::sink::{Format, SinkConfig};

use common::{Scratch, soon};

/// A source without events.
struct Quiet;

impl EventSource for Quiet {
    async fn readable(&mut self) -> io::Result<()> {
        std::future::pending().await
    }
    fn drain(&mut self, _max: usize, _into: &mut Vec<Observation>) -> usize {
        0
    }
    fn lost(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    fn query(&mut self, _: tracer_model::query::Query) -> Option<tracer_model::event::ObservationKind> {
        None
    }
}

fn config(file: PathBuf) -> LiveConfig {
    LiveConfig {
        output: SinkConfig::new(Format::Ndjson, Some(file)),
        duration: Some(Duration::from_secs(30)),
        load: LoadOptions { probers: vec!["kubelet".into()], all_connections: true, ..LoadOptions::default() },
        node_name: "n1".into(),
        ..LiveConfig::default()
    }
}

#[test]
fn sighup_reopens_the_file_and_sigterm_ends_the_run() {
    let dir = Scratch::new();
    let path = dir.path("out");
    let rotated = path.with_extension("1");
    let config = config(path.clone());
    let run = std::thread::spawn(move || {
        run(&config, |_, _, _| {
            let (_, changes) = mpsc::channel(1);
            Ok(Attached {
                events: Quiet,
                since_boot_ns: 1,
                start: Start::default(),
                prober_pids: vec![],
                observations: vec![],
                changes,
                problems: vec![],
            })
        })
        .unwrap()
    });
    soon("the start record", || std::fs::read_to_string(&path).ok()?.contains(r#""type":"start""#).then_some(()));
    std::fs::rename(&path, &rotated).unwrap();
    kill(Pid::this(), Signal::SIGHUP).unwrap();
    soon("the file again", || path.exists().then_some(()));
    kill(Pid::this(), Signal::SIGTERM).unwrap();
    assert_eq!(run.join().unwrap(), 0);
    let last = std::fs::read_to_string(&path).unwrap();
    assert!(last.contains(r#""type":"stop""#) && last.contains(r#""reason":"signal""#), "{last}");
    assert_eq!(std::fs::read_to_string(&rotated).unwrap().lines().count(), 1);
}
