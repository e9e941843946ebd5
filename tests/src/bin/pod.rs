//! A pod's process. `pod MODE ADDRESS:PORT` serves (modes: tracer_tests::server::Mode);
//! `pod appliance DEVICE IPV4` resets every SYN from below the kernel, `pod mute DEVICE IPV4`
//! swallows it. Prints `listening …` once it does.

use anyhow::{Context, Result, bail};
use tracer_tests::server::{Mode, appliance, serve};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["appliance", device, address] => appliance::run(device, address.parse()?, true),
        ["mute", device, address] => appliance::run(device, address.parse()?, false),
        [mode, address] => serve(address, Mode::parse(mode).with_context(|| format!("no mode {mode:?}"))?),
        _ => bail!("usage: pod MODE ADDRESS:PORT | pod appliance|mute DEVICE IPV4"),
    }
}
