//! Finds paths to enter network namespaces, and the namespace that owns an address. It searches on demand, by the names
//! that container runtimes bind (`/run/netns`) and by processes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::enter::{NetnsError, in_netns};
use super::procfs::{MAX_PROCESSES, Namespace, every_pid, namespace_of, pod_of_process};
use super::room::Room;
use super::{addresses, links};
use tracer_model::event::Netns;
use tracer_model::query::{Awaited, TargetQuery};
use tracer_model::recent::Recent;

/// Where `ip netns add`, containerd and CRI-O bind their namespaces: in our mounts and in the node's, which a container
/// lacks. CRI-O may run no pause process; then only the bound name leads to a pod without a running container.
const NAMED: [&str; 3] = ["/run/netns", "/var/run/netns", "/proc/1/root/run/netns"];
/// A healthy node has fewer namespaces.
const MAX_NAMESPACES: usize = 2048;
/// How old the list of namespaces may be for a query. To refresh it, tracer scans all of `/proc`.
///
/// For a handshake the age is less than the attempt waits before its query. So the list has every namespace that
/// existed when the attempt began. The target of an established attempt has several queries.
pub const fn max_age(awaited: Awaited) -> Duration {
    Duration::from_millis(match awaited {
        Awaited::Handshake => HANDSHAKE_MS,
        Awaited::Answer | Awaited::Nothing => SLOW_MS,
    })
}

/// How old the list may be for a question that is not about an attempt.
pub const SLOW_AGE: Duration = Duration::from_millis(SLOW_MS);
const SLOW_MS: u64 = 2_000;
const HANDSHAKE_MS: u64 = 150;
/// How old the list may be when a namespace is missing in it: the namespace may be new.
const MAX_AGE_IF_MISSING: Duration = Duration::from_millis(HANDSHAKE_MS);

/// A namespace and a path to enter it by.
#[derive(Clone, Debug)]
pub struct Place {
    pub netns: Netns,
    pub path: PathBuf,
}

impl Place {
    pub(super) fn enter<T: Send>(&self, task: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        in_netns(&self.path, task)
    }
}

/// Which namespace has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This namespace, and a path to enter it by.
    One(Netns, PathBuf),
    /// Several namespaces have it, or another namespace than the reported one, or one that could not be read may have it.
    Unsure,
    /// No namespace has it.
    Nobody,
}

/// The namespaces found so far.
#[derive(Debug, Default)]
pub struct Namespaces {
    paths: BTreeMap<Netns, PathBuf>,
    /// The processes in each namespace.
    pids: BTreeMap<Netns, Vec<u32>>,
    /// The last search may have missed the namespace of an address.
    incomplete: bool,
    /// When the last search was.
    found: Option<Instant>,
    /// A warning about skipped namespaces was already logged.
    warned: bool,
    /// The owner of an address, as found from another namespace, and its [identity](identity_of). It stays when the
    /// address is gone: the kernel removes IPv6 addresses as soon as their link is down.
    owners: Recent<(Netns, IpAddr), (Netns, u64), MAX_NAMESPACES>,
}

impl Namespaces {
    /// A path by which the namespace can be entered now.
    pub fn path(&mut self, netns: Netns) -> Option<PathBuf> {
        self.path_within(netns, Duration::ZERO)
    }

    /// As [`Self::path`], but does not search again if the last search is at most this old.
    pub fn path_within(&mut self, netns: Netns, ago: Duration) -> Option<PathBuf> {
        if !self.paths.get(&netns).is_some_and(|path| is_at(netns, path)) {
            self.refresh_if_older(ago.min(MAX_AGE_IF_MISSING));
        }
        self.paths.get(&netns).filter(|path| is_at(netns, path)).cloned()
    }

    /// The processes in a namespace, by a search that is at most this old.
    pub(super) fn pids(&mut self, netns: Netns, ago: Duration) -> &[u32] {
        self.refresh_if_older(ago);
        self.pids.get(&netns).map_or(&[], Vec::as_slice)
    }

    /// The namespace that has the address of this target, other than the one it is reached from.
    pub(super) fn owner(&mut self, query: &TargetQuery, from: &Place) -> Owner {
        let (addr, ago, began) = (query.target.ip(), max_age(query.awaited), Instant::now());
        let reported = query.reported.filter(|netns| *netns != from.netns);
        let reported = reported.and_then(|netns| Some((netns, self.path_within(netns, ago)?)));
        let (found, unread) = match &reported {
            Some((netns, path)) if has(path, addr).unwrap_or_default() && is_linked(path, from) => {
                (Owner::One(*netns, path.clone()), false)
            }
            _ => {
                self.refresh_if_older(ago);
                let reported = reported.map(|(netns, _)| netns);
                match self.search(addr, from, reported) {
                    (Owner::Nobody, _) => {
                        // An attempt that is over has no second query: search again now.
                        let is_last = query.awaited == Awaited::Nothing;
                        self.refresh_if_older(if is_last { began.elapsed() } else { ago.min(MAX_AGE_IF_MISSING) });
                        self.search(addr, from, reported)
                    }
                    found => found,
                }
            }
        };
        if let Owner::One(netns, path) = &found
            && let Some(identity) = identity_of(path)
        {
            self.owners.insert((from.netns, addr), (*netns, identity));
        }
        if unread && found == Owner::Nobody { Owner::Unsure } else { found }
    }

    /// The namespaces that have the address of this target, if several have it.
    pub(super) fn several_holders(&mut self, query: &TargetQuery, from: &Place) -> Vec<Netns> {
        self.refresh_if_older(max_age(query.awaited));
        let (holders, _) = self.holders(query.target.ip(), from);
        if holders.len() > 1 { holders.into_iter().map(|(netns, _)| netns).collect() } else { Vec::new() }
    }

    /// The namespaces that have the address, and whether one that could not be read may have it. Nested nodes use the same
    /// addresses: if some of them are linked to the prober's, only those.
    fn holders(&self, addr: IpAddr, from: &Place) -> (Vec<(Netns, PathBuf)>, bool) {
        let mut unread = self.incomplete;
        let others = self.paths.iter().filter(|(netns, path)| **netns != from.netns && is_at(**netns, path));
        let holders = others.filter(|(netns, path)| {
            let found = has(path, addr);
            // Else it has ended meanwhile.
            unread |= found.is_err() && is_at(**netns, path);
            found.unwrap_or_default()
        });
        let holders = holders.map(|(netns, path)| (*netns, path.clone())).collect();
        (prefer_linked(holders, |path| is_linked(path, from)), unread)
    }

    fn search(&self, addr: IpAddr, from: &Place, reported: Option<Netns>) -> (Owner, bool) {
        let (holders, unread) = self.holders(addr, from);
        match choose(holders, reported) {
            Owner::Nobody => (self.known_owner(addr, from, reported), unread),
            found => (found, unread),
        }
    }

    fn refresh_if_older(&mut self, ago: Duration) {
        if self.found.is_some_and(|found| found.elapsed() <= ago) {
            return;
        }
        let found = find();
        if let Some(problem) = found.room.problem().filter(|_| !self.warned) {
            tracing::warn!("{problem}");
            self.warned = true;
        }
        self.incomplete = found.may_lack_owner();
        self.paths = found.paths;
        self.pids = found.pids;
        self.found = Some(Instant::now());
    }

    /// The owner that an earlier search found, if that namespace still exists. For an IPv6 address the reported
    /// namespace also counts, because the kernel removes the address when the link goes down.
    fn known_owner(&self, addr: IpAddr, from: &Place, reported: Option<Netns>) -> Owner {
        let at = |netns: Netns| self.paths.get(&netns).filter(|path| is_at(netns, path));
        let before = self.owners.get(&(from.netns, addr)).copied();
        let before = before.filter(|(netns, _)| reported.is_none_or(|reported| reported == *netns));
        // Another namespace may have its number now.
        let is_gone = |(netns, identity)| at(netns).is_none_or(|path| identity_of(path) != Some(identity));
        let known = match before {
            Some(before) if is_gone(before) => None,
            Some((netns, _)) => Some(netns),
            None => reported.filter(|_| addr.is_ipv6()),
        };
        known.and_then(|netns| Some(Owner::One(netns, at(netns)?.clone()))).unwrap_or(Owner::Nobody)
    }
}

fn prefer_linked(mut holders: Vec<(Netns, PathBuf)>, is_linked: impl Fn(&Path) -> bool) -> Vec<(Netns, PathBuf)> {
    if holders.len() > 1 && holders.iter().any(|(_, path)| is_linked(path)) {
        holders.retain(|(_, path)| is_linked(path));
    }
    holders
}

/// Chooses among the namespaces that have an address. A process that sets up a pod's network can add any address to it.
/// Therefore the owner is unsure if there are several, or if a report names another one.
fn choose(holders: Vec<(Netns, PathBuf)>, reported: Option<Netns>) -> Owner {
    let (only, none) = (holders.len() == 1, holders.is_empty());
    match holders.into_iter().find(|(netns, _)| reported.map_or(only, |reported| reported == *netns)) {
        Some((netns, path)) => Owner::One(netns, path),
        None if none => Owner::Nobody,
        None => Owner::Unsure,
    }
}

/// Whether the namespace has the address now.
fn has(path: &Path, addr: IpAddr) -> io::Result<bool> {
    in_netns(path, || addresses::has(addr)).map_err(io::Error::other)?
}

/// Whether a device connects the two namespaces: the kernel then gives the one a number for the other.
/// With macvlan or ipvlan, only the pod's namespace has such a number.
fn is_linked(path: &Path, from: &Place) -> bool {
    let knows = |within: &Path, other: &Path| {
        let Ok(file) = fs::File::open(other) else { return false };
        in_netns(within, || links::number_of(&file).is_ok_and(|number| number.is_some())).unwrap_or(false)
    };
    knows(&from.path, path) || knows(path, &from.path)
}

#[derive(Debug)]
pub struct There {
    pub namespaces: Vec<Netns>,
    /// More namespaces may exist: some were skipped, or a process's namespace cannot be read.
    pub incomplete: bool,
    /// The problem to report if some were skipped.
    pub problem: Option<String>,
}

/// Every network namespace that can be entered now.
pub fn all() -> There {
    find().into()
}

impl From<Found> for There {
    fn from(found: Found) -> Self {
        let problem = found.room.problem();
        let incomplete = found.hidden || problem.is_some();
        Self { namespaces: found.paths.into_keys().collect(), incomplete, problem }
    }
}

/// Distinguishes a namespace from a later one with its number: its cookie. Before 5.14 the time at which the kernel made
/// its file, which stays as long as its name is bound. The file below `/proc` is made again for each look.
fn identity_of(path: &Path) -> Option<u64> {
    let made = || match path.starts_with("/proc") {
        true => Some(0),
        false => {
            let file = fs::metadata(path).ok()?;
            Some(file.ctime().cast_unsigned() << 32 | file.ctime_nsec().cast_unsigned())
        }
    };
    in_netns(path, links::net_cookie).ok()?.or_else(made)
}

/// Whether the path still leads to a namespace with this number: names are removed, and processes end.
fn is_at(netns: Netns, path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.ino() == u64::from(netns.0))
}

/// The result of one search.
#[derive(Debug)]
struct Found {
    paths: BTreeMap<Netns, PathBuf>,
    /// The processes in each of them, [`MAX_PROCESSES`] in all.
    pids: BTreeMap<Netns, Vec<u32>>,
    processes: usize,
    room: Room,
    /// The namespace of some process cannot be read.
    hidden: bool,
    /// The same of a pod's process, by its cgroup.
    hides_pod: bool,
}

impl Found {
    fn with_room(most: usize) -> Self {
        Self {
            paths: BTreeMap::new(),
            pids: BTreeMap::new(),
            processes: 0,
            room: Room::of(most),
            hidden: false,
            hides_pod: false,
        }
    }

    /// Whether the namespace of an address may be missing. The limit of one pod does not count: a pod must not hide which
    /// addresses of the node have no owner. Its own namespace is among the first, or has a name.
    fn may_lack_owner(&self) -> bool {
        self.hides_pod || self.room.is_exceeded()
    }

    /// Keeps the first path into each namespace.
    fn add(&mut self, netns: Netns, pod: impl FnOnce() -> Option<String>, path: impl FnOnce() -> PathBuf) {
        if !self.paths.contains_key(&netns) && self.room.take(pod().as_deref()) {
            self.paths.insert(netns, path());
        }
    }

    fn add_hidden(&mut self, at: Namespace, is_pod: impl FnOnce() -> bool) {
        let hidden = at == Namespace::Hidden;
        self.hidden |= hidden;
        self.hides_pod |= hidden && is_pod();
    }

    fn add_of_process(&mut self, pid: u32, at: Namespace) {
        self.add_hidden(at, || pod_of_process(pid).is_some());
        if let Namespace::At(netns) = at {
            self.add(netns, || Some(pod_of_process(pid)?.uid), || PathBuf::from(format!("/proc/{pid}/ns/net")));
            if self.paths.contains_key(&netns) && self.processes < MAX_PROCESSES {
                self.processes += 1;
                self.pids.entry(netns).or_default().push(pid);
            }
        }
    }
}

/// Finds all namespaces that can be entered. Names go before processes, because they last longer.
fn find() -> Found {
    let mut found = Found::with_room(MAX_NAMESPACES);
    for (netns, path) in named(&NAMED) {
        found.add(netns, || None, || path);
    }
    for pid in every_pid() {
        found.add_of_process(pid, namespace_of(pid));
    }
    found
}

/// The namespaces bound in these folders, each with the path by which it was found: another path may lead into other
/// mounts. All namespace files are on one device, nsfs. Where the namespace is gone, the file is on another one.
pub(super) fn named(folders: &[&str]) -> impl Iterator<Item = (Netns, PathBuf)> {
    let device = fs::metadata("/proc/self/ns/net").map(|own| own.dev()).ok();
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flat_map(Iterator::flatten);
    entries.map(|entry| entry.path()).filter_map(move |path| {
        let file = fs::metadata(&path).ok().filter(|file| Some(file.dev()) == device)?;
        Some((Netns(u32::try_from(file.ino()).ok()?), path))
    })
}

#[cfg(test)]
mod tests {
    use super::super::procfs::netns_of;
    use super::super::room::MAX_OF_POD;
    use super::*;
    use tracer_testing::{Scratch, address};

    #[test]
    fn our_own_namespace_is_found_through_a_process() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = Namespaces::default().path(own).expect("a path");
        assert!(is_at(own, &path), "{}", path.display());
        assert_eq!(Namespaces::default().path(Netns(1)), None);
    }

    /// The namespace of a pod may be newer than the last search.
    #[test]
    fn a_missing_namespace_is_searched_again_but_a_known_one_is_not() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let before = Instant::now().checked_sub(MAX_AGE_IF_MISSING * 2).expect("the machine runs longer");
        let mut namespaces = Namespaces { found: Some(before), ..Namespaces::default() };
        assert!(namespaces.path_within(own, max_age(Awaited::Answer)).is_some());
        namespaces.found = Some(before);
        namespaces.path_within(own, max_age(Awaited::Answer));
        assert_eq!(namespaces.found, Some(before), "a known namespace needs no search");
    }

    /// A pod may have thousands of processes and many queries.
    #[test]
    fn a_recent_search_is_not_repeated() {
        let mut namespaces = Namespaces::default();
        let own = netns_of(std::process::id()).expect("own namespace");
        let mut found = |seconds| (namespaces.pids(own, Duration::from_secs(seconds)).len(), namespaces.found);
        let first = found(3600);
        assert!(first.0 > 0 && found(3600) == first && found(0).1 > first.1);
    }

    #[test]
    fn a_name_in_other_mounts_is_entered_by_the_path_through_them() {
        assert!(NAMED.contains(&"/proc/1/root/run/netns"), "the node's, seen from a container");
        let bound = format!("/proc/{}/root/proc/self/ns", std::process::id());
        let own = netns_of(std::process::id()).expect("own namespace");
        let found: BTreeMap<_, _> = named(&["/no/such/folder", &bound]).collect();
        assert_eq!(found.get(&own), Some(&PathBuf::from(format!("{bound}/net"))));
    }

    #[test]
    fn an_ipv6_address_without_an_owner_belongs_to_the_reported_namespace() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
        let namespaces = Namespaces { paths: [(own, path.clone())].into(), ..Namespaces::default() };
        let elsewhere = Place { netns: Netns(1), path: path.clone() };
        let known = |addr: &str, reported| namespaces.known_owner(address(addr), &elsewhere, reported);
        assert_eq!(known("fd00::2", Some(own)), Owner::One(own, path));
        assert_eq!(known("fd00::2", None), Owner::Nobody);
        assert_eq!(known("10.88.0.2", Some(own)), Owner::Nobody, "an IPv4 address stays when its link is down");
    }

    /// The pod at an address is gone, and the kernel gave its number to the namespace of the next one.
    #[test]
    fn another_namespace_with_the_number_of_an_earlier_owner_is_not_the_owner() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
        let identity = identity_of(&path).expect("its identity");
        let known = |addr: &str, of: u64| {
            let mut namespaces = Namespaces { paths: [(own, path.clone())].into(), ..Namespaces::default() };
            namespaces.owners.insert((Netns(1), address(addr)), (own, of));
            let elsewhere = Place { netns: Netns(1), path: path.clone() };
            [None, Some(own)].map(|reported| namespaces.known_owner(address(addr), &elsewhere, reported))
        };
        for addr in ["10.88.0.2", "fd00::2"] {
            let one = || Owner::One(own, path.clone());
            assert_eq!(known(addr, identity), [one(), one()]);
            assert_eq!(known(addr, identity + 1), [Owner::Nobody, Owner::Nobody]);
        }
    }

    /// A name is bound to another namespace, or a process has entered one.
    #[test]
    fn a_path_that_leads_to_another_namespace_is_not_used() {
        let own = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
        let paths = [(Netns(1), own)].into();
        let mut namespaces = Namespaces { paths, found: Some(Instant::now()), ..Namespaces::default() };
        assert_eq!(namespaces.path_within(Netns(1), SLOW_AGE), None);
    }

    /// tracer lacks a capability, or left namespaces out.
    #[test]
    fn a_namespace_that_cannot_be_read_may_have_the_address() {
        let scratch = Scratch::new();
        let file = PathBuf::from(scratch.file("netns", ""));
        let number = fs::metadata(&file).expect("its state").ino();
        let unreadable = (Netns(u32::try_from(number).expect("a small number")), file);
        let (netns, path) = (netns_of(std::process::id()).expect("own namespace"), "/proc/self/ns/net".into());
        let (target, from) = (address("203.0.113.7:80"), Place { netns, path });
        let query =
            TargetQuery { from: netns, target, reported: None, awaited: Awaited::Answer, peer: None, pod: None };
        let owner = |paths: &[(Netns, PathBuf)], incomplete| {
            let later = Instant::now().checked_add(SLOW_AGE * 1000);
            let paths = paths.iter().cloned().collect();
            Namespaces { paths, incomplete, found: later, ..Namespaces::default() }.owner(&query, &from)
        };
        assert_eq!((owner(&[], false), owner(&[], true)), (Owner::Nobody, Owner::Unsure));
        assert_eq!(owner(&[unreadable], false), Owner::Unsure);
    }

    #[test]
    fn of_several_owners_the_linked_and_reported_one_counts() {
        let place = |netns: u32| (Netns(netns), PathBuf::from(netns.to_string()));
        let one = |netns: u32| Owner::One(Netns(netns), PathBuf::from(netns.to_string()));
        let chosen = |holders: &[u32], reported: Option<u32>, linked: &[u32]| {
            let is_linked = |path: &Path| linked.iter().any(|netns| path == Path::new(&netns.to_string()));
            choose(prefer_linked(holders.iter().copied().map(place).collect(), is_linked), reported.map(Netns))
        };
        assert_eq!(chosen(&[], Some(1), &[]), Owner::Nobody);
        assert_eq!(chosen(&[1], None, &[]), one(1));
        assert_eq!(chosen(&[1, 2], None, &[2]), one(2), "another node's");
        assert_eq!(chosen(&[1, 2], Some(1), &[2]), Owner::Unsure);
        assert_eq!(chosen(&[1, 2], None, &[1, 2]), Owner::Unsure);
        assert_eq!(chosen(&[1, 2], Some(2), &[1, 2]), one(2));
        assert_eq!(chosen(&[1, 2], Some(2), &[]), one(2), "macvlan");
        assert_eq!(chosen(&[1], Some(2), &[1]), Owner::Unsure);
    }

    #[test]
    fn hidden_or_skipped_namespaces_make_the_list_incomplete() {
        let there = |most: usize, of: &[Namespace]| {
            let mut found = Found::with_room(most);
            (1..).zip(of).for_each(|(pid, at)| found.add_of_process(pid, *at));
            let there = There::from(found);
            (there.namespaces.len(), there.incomplete, there.problem.is_some())
        };
        let at = |netns: u32| Namespace::At(Netns(netns));
        let with_ended = there(2, &[at(1), Namespace::Gone, at(2)]);
        assert_eq!(with_ended, (2, false, false), "a process that has ended has no namespace");
        assert_eq!(there(2, &[at(1), Namespace::Hidden]), (1, true, false));
        assert_eq!(there(1, &[at(1), at(2)]), (1, true, true));
    }

    /// A service of the node may hide its namespace, which is no pod's.
    #[test]
    fn only_a_hidden_process_of_a_pod_may_have_the_address_of_one() {
        let lacks = |at, is_pod| {
            let mut found = Found::with_room(2);
            found.add_hidden(at, || is_pod);
            found.may_lack_owner()
        };
        assert!(lacks(Namespace::Hidden, true));
        assert!(!lacks(Namespace::Hidden, false) && !lacks(Namespace::Gone, true));
    }

    #[test]
    fn the_namespaces_of_one_pod_leave_room_for_the_others() {
        let mut found = Found::with_room(MAX_OF_POD + 2);
        let mut add = |netns: u32, pod: Option<&str>, path: &str| {
            found.add(Netns(netns), || pod.map(Into::into), || path.into());
        };
        add(1, None, "/run/netns/a");
        add(1, Some("a"), "/proc/7/ns/net");
        (100..200).for_each(|netns| add(netns, Some("many"), "/proc/8/ns/net"));
        add(2, Some("b"), "/proc/9/ns/net");
        assert_eq!(found.paths.get(&Netns(1)), Some(&PathBuf::from("/run/netns/a")), "the name lasts longer");
        assert!(found.paths.contains_key(&Netns(2)) && found.paths.len() == MAX_OF_POD + 2);
        let reported =
            |found: &Found, what: &str| found.room.problem().is_some_and(|problem| problem.starts_with(what));
        assert!(reported(&found, "more than 64 network namespaces made by one pod"));
        assert!(!found.may_lack_owner(), "the other pods are all there");
        found.add(Netns(2), || None, PathBuf::new);
        found.add(Netns(3), || None, PathBuf::new);
        assert!(found.may_lack_owner());
        assert!(reported(&found, "more than 66 network namespaces: ") && found.paths.len() == MAX_OF_POD + 2);
        assert_eq!(Room::of(1).problem(), None);
    }
}
