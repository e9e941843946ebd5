//! Stands for the container runtime: runs a CNI plugin for every line on stdin
//! (`PLUGIN NETNS_PATH [ARG]`), answers `done PID` or `failed: why`, and lives on as a daemon does.

use std::io::BufRead;
use std::process::Command;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match run(&line?) {
            Ok(pid) => println!("done {pid}"),
            Err(error) => println!("failed: {error:#}"),
        }
    }
    Ok(())
}

fn run(line: &str) -> Result<u32> {
    let mut words = line.split_whitespace();
    let plugin = words.next().context("which plugin")?;
    let netns = words.next().context("which namespace")?;
    let mut child = Command::new(plugin)
        .args(words)
        .env("CNI_COMMAND", "DEL")
        .env("CNI_CONTAINERID", "5a1f")
        .env("CNI_IFNAME", "lo")
        .env("CNI_NETNS", netns)
        .spawn()
        .with_context(|| format!("start {plugin}"))?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{plugin}: {status}");
    }
    Ok(child.id())
}
