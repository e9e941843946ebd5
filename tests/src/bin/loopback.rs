//! Stands for the CNI plugin of the same name: `loopback [netlink|ioctl]` with CNI_NETNS set.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tracer_tests::plugin::{Way, delete};

fn main() -> Result<()> {
    let path = PathBuf::from(std::env::var_os("CNI_NETNS").context("CNI_NETNS is not set")?);
    match std::env::args().nth(1).as_deref() {
        None | Some("netlink") => delete(&path, Way::Netlink),
        Some("ioctl") => delete(&path, Way::Ioctl),
        Some(other) => bail!("no way {other:?}"),
    }
}
