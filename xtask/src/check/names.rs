//! Checks that the tree names no path of the developer's machine, and no host of its package managers.
//!
//! The configuration of the machine names the hosts, so that this file need not.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::sh::{self, regex};

/// Public hosts, which the tree may name.
const PUBLIC: &[&str] = &[
    "deb.debian.org",
    "security.debian.org",
    "snapshot.debian.org",
    "crates.io",
    "static.crates.io",
    "index.crates.io",
    "github.com",
    "pypi.org",
    "files.pythonhosted.org",
    "static.rust-lang.org",
    "localhost",
    "127.0.0.1",
];

/// Fails if a file of the tree names the machine.
pub(crate) fn check() -> Result<()> {
    let mut grep = sh::command("git");
    grep.args(["grep", "--untracked", "--line-number", "--fixed-strings"]);
    for name in paths().iter().chain(&hosts()) {
        grep.arg("-e").arg(name);
    }
    let output = grep.output().context("cannot start git")?;
    match output.status.code() {
        Some(1) => Ok(()),
        Some(0) => {
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            // Report only the place: the name must not appear in logs.
            let places = lines.lines().map(|line| line.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"));
            bail!("names of this machine are in the tree:\n  {}", places.collect::<Vec<_>>().join("\n  "))
        }
        _ => bail!("git grep: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// This tree, the directory it is in, and the hidden files of this user.
fn paths() -> Vec<String> {
    let root = sh::root();
    let deep = |path: &&Path| path.components().count() > 2;
    let trees = [Some(root), root.parent()].into_iter().flatten().filter(deep).map(|path| path.display().to_string());
    let home = std::env::var("HOME").ok().filter(|home| home.len() > 1).map(|home| format!("{home}/."));
    trees.chain(home).collect()
}

/// The hosts of apt, pip and cargo on this machine, and its proxies.
fn hosts() -> Vec<String> {
    let mut text =
        sh::capture(sh::command("apt-get").args(["indextargets", "--no-release-info", "--format", "$(URI)"]))
            .unwrap_or_default();
    text += &sh::capture(sh::command("python3").args(["-m", "pip", "config", "list"])).unwrap_or_default();
    let home = std::env::var("HOME").unwrap_or_default();
    for file in [".cargo/config.toml", ".cargo/config", ".npmrc", ".pip/pip.conf"] {
        text += &fs::read_to_string(Path::new(&home).join(file)).unwrap_or_default();
    }
    let proxies = std::env::vars().filter(|(name, _)| {
        let name = name.to_lowercase();
        ["proxy", "index", "registry", "mirror"].iter().any(|word| name.contains(word))
    });
    proxies.for_each(|(_, value)| text = format!("{text}\n{value}"));
    named(&text)
}

/// The hosts of the addresses in a text.
fn named(text: &str) -> Vec<String> {
    let addresses = regex(r"://(?:[\w.:-]*@)?([\w-]+(?:\.[\w-]+)+)");
    let hosts = addresses.captures_iter(text).map(|address| address[1].to_owned());
    hosts.filter(|host| !PUBLIC.contains(&host.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_configurations() {
        let text = "index = \"sparse+https://user@cache.example.net:8080/x\" http://mirror.example.org/debian\nhttps://pypi.org/simple";
        assert_eq!(named(text), ["cache.example.net", "mirror.example.org"]);
    }
}
