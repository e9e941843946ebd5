//! `cargo xtask vm RELEASE -- COMMAND`: runs a command as root under another kernel.
//!
//! QEMU emulates the processor, because Debian's kernels hang under nested KVM on some machines, and CI has no KVM. The
//! guest sees this machine's file system copy-on-write, and can write only to `target/vm/RELEASE`. There it leaves the
//! output and the exit code, because the console also has messages of the kernel.

mod guest;
pub(crate) mod kernels;
mod place;
pub(crate) mod virtme;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

pub(crate) use guest::{HUNG, Job};
pub(crate) use kernels::{RELEASES, Release};
pub(crate) use place::Place;

use crate::{setup, sh};

/// Which kernel, and what to do there.
#[derive(clap::Args)]
pub(crate) struct VmArgs {
    /// The kernel: 5.10, 6.1, 6.12, sid, 5.10-tracepoints or 6.12-lockdown
    #[arg(value_parser = kernels::find, required_unless_present_any = ["list", "fetch"])]
    release: Option<&'static Release>,
    /// The command; without one, the kernel's release is printed
    #[arg(last = true)]
    command: Vec<String>,
    /// Say which kernels there are
    #[arg(long)]
    list: bool,
    /// Only fetch: the given kernel, or all of them
    #[arg(long)]
    fetch: bool,
    /// Fetch again what is there: the suites get newer kernels
    #[arg(long)]
    refresh: bool,
    /// Minutes after which the machine is ended
    #[arg(long, default_value_t = 20)]
    minutes: u64,
}

/// The command. The exit code is that of the command in the guest.
pub(crate) fn run(args: &VmArgs) -> Result<()> {
    if args.list {
        return list();
    }
    setup::ensure(setup::Purpose::Test)?;
    // A release with other settings uses the kernel of another release.
    let kernels = || RELEASES.iter().filter(|release| release.has_own_kernel()).collect();
    let wanted: Vec<&Release> = args.release.map_or_else(kernels, |release| vec![release]);
    for release in &wanted {
        kernels::ensure(release, args.refresh)?;
    }
    match args.release {
        Some(release) if !args.fetch => boot(release, args),
        _ => Ok(()),
    }
}

fn boot(release: &'static Release, args: &VmArgs) -> Result<()> {
    let default = || vec!["uname".to_owned(), "-a".to_owned()];
    let command = if args.command.is_empty() { default() } else { args.command.clone() };
    let limit = Duration::from_secs(args.minutes * 60);
    let job = Job { release, commands: vec![command], directory: std::env::current_dir()?, limit, echo: true };
    match job.run()? {
        0 => Ok(()),
        code => {
            bail!(sh::Exit { code: u8::try_from(code).unwrap_or(1), message: format!("the command ended with {code}") })
        }
    }
}

fn list() -> Result<()> {
    for release in RELEASES {
        let have = kernels::cached(release)?.map_or_else(|| "not fetched yet".to_owned(), |kernel| kernel.version);
        println!("{:16} Debian {:19} {have}", release.name, release.suite);
    }
    Ok(())
}

/// The folder of a release's script, output and console.
pub(crate) fn directory(release: &Release) -> PathBuf {
    sh::target().join("vm").join(release.name)
}
