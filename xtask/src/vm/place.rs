//! Runs programs under this kernel, or under another one in a virtual machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Job, Release, directory};
use crate::sh;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Here,
    Machine(&'static Release),
}

impl Place {
    /// The name of the kernel. For this machine: the first two numbers of its version.
    pub(crate) fn kernel(self) -> Result<String> {
        let Self::Machine(release) = self else {
            let version = fs::read_to_string("/proc/sys/kernel/osrelease").context("the version of this kernel")?;
            return Ok(version.split('.').take(2).collect::<Vec<_>>().join("."));
        };
        Ok(release.name.to_owned())
    }

    /// The folder for files of the programs. A virtual machine can write only there.
    pub(crate) fn directory(self) -> Result<PathBuf> {
        let place = match self {
            Self::Here => sh::target().join("here"),
            Self::Machine(release) => directory(release),
        };
        fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        Ok(place)
    }

    pub(crate) fn heading(self) -> Result<String> {
        Ok(self.kernel()? + if matches!(self, Self::Here) { " (here)" } else { "" })
    }

    /// Runs programs one after the other and returns the exit code of the last one. `limit` is for a virtual machine
    /// only.
    pub(crate) fn run(self, commands: Vec<Vec<String>>, limit: Duration, echo: bool) -> Result<i32> {
        let Self::Machine(release) = self else {
            let mut code = -1;
            for words in &commands {
                let status = sh::command(&words[0]).args(&words[1..]).status().context("cannot start the program")?;
                code = status.code().unwrap_or(-1);
            }
            return Ok(code);
        };
        Job { release, commands, directory: sh::root().to_owned(), limit, echo }.run()
    }
}
