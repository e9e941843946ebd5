//! Where a network namespace can be entered, and which one owns an address: found when asked, by the
//! names that container runtimes bind (`/run/netns`) and by processes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::procfs::{NetnsError, in_netns, netns_of};
use super::{addresses, links};
use crate::correlate::recent::Recent;
use crate::event::Netns;

/// Where `ip netns add`, containerd and CRI-O bind the namespaces that they make.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];
/// No node that works has more.
const MAX_NAMESPACES: usize = 2048;

/// A namespace and a way into it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) netns: Netns,
    pub(super) path: PathBuf,
}

impl Place {
    /// Runs `task` inside.
    pub(super) fn enter<T: Send>(&self, task: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        in_netns(&self.path, task)
    }
}

/// The namespaces found so far.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    paths: BTreeMap<Netns, PathBuf>,
    /// Which namespace an address was found in, seen from another; kept when the address is gone, as IPv6 addresses are
    /// as soon as their link is down.
    owners: Recent<(Netns, IpAddr), Netns, MAX_NAMESPACES>,
}

impl Namespaces {
    /// A path by which the namespace can be entered now.
    pub(super) fn path(&mut self, netns: Netns) -> Option<PathBuf> {
        if !self.paths.get(&netns).is_some_and(|path| is_at(netns, path)) {
            self.paths = find();
        }
        self.paths.get(&netns).cloned()
    }

    /// The namespace that has this address, other than the one it is reached from. Nested nodes use the
    /// same addresses: one that is linked to that goes first.
    pub(super) fn owner(&mut self, addr: IpAddr, from: &Place) -> Option<(Netns, PathBuf)> {
        let known = self.known_owner(addr, from);
        if known.as_ref().is_some_and(|(_, path)| has(path, addr)) {
            return known;
        }
        self.paths = find();
        let owners = self.paths.iter().filter(|(netns, path)| **netns != from.netns && has(path, addr));
        let mut owners: Vec<(Netns, PathBuf)> = owners.map(|(netns, path)| (*netns, path.clone())).collect();
        if owners.len() > 1 {
            owners.retain(|(_, path)| is_linked(path, from));
        }
        let found = owners.into_iter().next();
        if let Some((netns, _)) = &found {
            self.owners.insert((from.netns, addr), *netns);
        }
        found.or(known)
    }

    /// Where it was found before, if that namespace is still there.
    fn known_owner(&self, addr: IpAddr, from: &Place) -> Option<(Netns, PathBuf)> {
        let netns = *self.owners.get(&(from.netns, addr))?;
        let path = self.paths.get(&netns).filter(|path| is_at(netns, path))?;
        Some((netns, path.clone()))
    }
}

/// The namespace has the address now.
fn has(path: &Path, addr: IpAddr) -> bool {
    in_netns(path, addresses::of_thread).unwrap_or_default().contains(&addr)
}

/// A device of one has its other end in the other: the first then has a number for the second.
fn is_linked(path: &Path, from: &Place) -> bool {
    let Ok(file) = fs::File::open(path) else { return false };
    from.enter(|| links::number_of(&file).is_ok_and(|number| number.is_some())).unwrap_or(false)
}

/// Every network namespace that can be entered now.
#[must_use]
pub fn all() -> Vec<Netns> {
    find().into_keys().collect()
}

/// Whether the path still leads there: names are removed, processes end, and numbers are used again.
fn is_at(netns: Netns, path: &Path) -> bool {
    inode(path) == Some(netns)
}

fn inode(path: &Path) -> Option<Netns> {
    u32::try_from(fs::metadata(path).ok()?.ino()).ok().map(Netns)
}

/// All that can be entered. Names go before processes: they last longer.
fn find() -> BTreeMap<Netns, PathBuf> {
    let mut paths = BTreeMap::new();
    for path in of_processes().chain(named()) {
        if let Some((netns, path)) = path
            && paths.len() < MAX_NAMESPACES
        {
            paths.insert(netns, path);
        }
    }
    paths
}

fn named() -> impl Iterator<Item = Option<(Netns, PathBuf)>> {
    let entries = NAMED.iter().filter_map(|folder| fs::read_dir(folder).ok()).flat_map(Iterator::flatten);
    entries.map(|entry| inode(&entry.path()).map(|netns| (netns, entry.path())))
}

fn of_processes() -> impl Iterator<Item = Option<(Netns, PathBuf)>> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        netns_of(pid).map(|netns| (netns, PathBuf::from(format!("/proc/{pid}/ns/net"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_is_found_through_a_process() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = Namespaces::default().path(own).expect("a path");
        assert!(is_at(own, &path), "{}", path.display());
        assert_eq!(Namespaces::default().path(Netns(1)), None);
    }
}
