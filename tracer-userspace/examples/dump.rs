//! Loads every hook and prints what it sees, one observation a line: `dump [SECONDS] [--all] [--tls PORT] [--without-fentry] [--without-kprobe]`.
#![expect(clippy::disallowed_methods, reason = "outside the core: runs for some seconds")]

use std::time::{Duration, Instant};

use tracer::{
    decode,
    ebpf::{self, hooks::Form},
    observe,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args: Vec<String> = std::env::args().collect();
    let seconds = args.get(1).and_then(|s| s.parse().ok()).unwrap_or(10);
    let probers = vec!["kubelet".to_owned()];
    let options = ebpf::LoadOptions {
        probers: probers.clone(),
        all_connections: args.iter().any(|a| a == "--all"),
        no_syscall_hooks: false,
        ring_bytes: None,
    };
    let begin = Instant::now();
    let refused: Vec<Form> = [Form::Fentry, Form::Kprobe, Form::Tracepoint]
        .into_iter()
        .filter(|form| args.iter().any(|a| *a == format!("--without-{}", form.name())))
        .collect();
    let mut loaded = ebpf::load_without(&options, &refused)?;
    eprintln!("loaded in {:?}", begin.elapsed());
    for hook in &loaded.status.hooks {
        eprintln!("  {:24} {}", hook.hook, hook.form);
    }
    for hook in &loaded.status.missing {
        eprintln!("- {:24} {} (lost: {})", hook.hook, hook.reason, hook.lost);
    }
    if let Some(port) = args.iter().position(|a| a == "--tls").and_then(|i| args.get(i + 1)?.parse().ok()) {
        eprintln!("watch_tls: {}", loaded.watch_tls(port));
    }
    println!("ready");
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let _ = tokio::time::timeout(Duration::from_millis(500), loaded.ring.readable()).await;
        let names = &mut loaded.names;
        loaded.ring.drain(4096, |bytes| match decode::decode(bytes) {
            Ok(event) => {
                if let Some(seen) = observe::observe(&event, names, &probers) {
                    println!("{}", serde_json::to_string(&seen).unwrap_or_default());
                }
            }
            Err(error) => println!("{error}"),
        });
        loaded.retry_module_hooks();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eprintln!("{:?}", loaded.counters());
    for (name, info) in loaded.program_infos().filter(|(_, i)| i.run_count() > 0) {
        eprintln!(
            "  {name:24} {:>8} runs {:>6} ns",
            info.run_count(),
            info.run_time().as_nanos() / u128::from(info.run_count())
        );
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        status
            .lines()
            .filter(|l| ["VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem"].iter().any(|p| l.starts_with(p)))
            .for_each(|l| eprintln!("{l}"));
    }
    Ok(())
}
