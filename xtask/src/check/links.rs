//! Checks that links inside the documentation lead to a file, and to a heading in it.

use anyhow::Result;

use super::pages;
use crate::{packages, sh};

/// Fails with each broken link. Does not check links to other hosts.
pub(crate) fn check() -> Result<()> {
    let Some(programs) = packages::programs()? else { return Ok(()) };
    let mut lychee = sh::command(programs.join("lychee"));
    lychee.args(["--offline", "--include-fragments", "--no-progress", "--quiet", "--"]);
    sh::run(lychee.args(pages()?))
}
