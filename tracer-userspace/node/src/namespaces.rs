//! Where a network namespace can be entered, and which one owns an address: found when asked, by the
//! names that container runtimes bind (`/run/netns`) and by processes.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::enter::{NetnsError, in_netns};
use super::procfs::{MAX_PROCESSES, Namespace, every_pid, namespace_of};
use super::room::Room;
use super::{addresses, cgroup, links};
use tracer_model::event::Netns;
use tracer_model::query::{Awaited, TargetQuery};
use tracer_model::recent::Recent;

/// Where `ip netns add`, containerd and CRI-O bind the namespaces that they make: as we see it, and as the
/// node sees it, because a container lacks the node's mounts. Where CRI-O spares the pause process, no other way leads to a
/// pod without a running container.
const NAMED: [&str; 3] = ["/run/netns", "/var/run/netns", "/proc/1/root/run/netns"];
/// No node that works has more.
const MAX_NAMESPACES: usize = 2048;
/// So long what was found is not looked for again, which takes all of `/proc`. Less than an attempt waits for its handshake
/// before its target is looked at: what was there when it began is found. One that was established is looked at again.
pub const fn kept_for(awaited: Awaited) -> Duration {
    Duration::from_millis(match awaited {
        Awaited::Handshake => LEAST_MS,
        Awaited::Answer | Awaited::Nothing => 2_000,
    })
}

const LEAST_MS: u64 = 150;
/// Nor is it before this what was not found: it may have been made meanwhile.
const LEAST: Duration = Duration::from_millis(LEAST_MS);

/// A namespace and a way into it.
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
    /// This one, and a way into it.
    One(Netns, PathBuf),
    /// Several, or another than is reported.
    Unsure,
    /// None that can be entered.
    Nobody,
}

/// The namespaces found so far.
#[derive(Debug, Default)]
pub struct Namespaces {
    paths: BTreeMap<Netns, PathBuf>,
    /// The processes in each.
    pids: BTreeMap<Netns, Vec<u32>>,
    /// When they were found.
    found: Option<Instant>,
    /// It was reported that some are left out.
    noted: bool,
    /// Which namespace an address was found in, seen from another; kept when the address is gone, as IPv6 addresses are
    /// as soon as their link is down.
    owners: Recent<(Netns, IpAddr), Netns, MAX_NAMESPACES>,
}

impl Namespaces {
    /// A path by which the namespace can be entered now.
    pub fn path(&mut self, netns: Netns) -> Option<PathBuf> {
        self.path_unless_since(netns, Duration::ZERO)
    }

    /// The same; all is not looked through again if it was so long ago at most.
    pub fn path_unless_since(&mut self, netns: Netns, ago: Duration) -> Option<PathBuf> {
        if !self.paths.get(&netns).is_some_and(|path| is_at(netns, path)) {
            self.find_unless_since(ago.min(LEAST));
        }
        self.paths.get(&netns).cloned()
    }

    /// The processes in a namespace, as they were so long ago at most.
    pub(super) fn pids(&mut self, netns: Netns, ago: Duration) -> &[u32] {
        self.find_unless_since(ago);
        self.pids.get(&netns).map_or(&[], Vec::as_slice)
    }

    /// The namespace that has the address of this target, other than the one it is reached from.
    pub(super) fn owner(&mut self, look: &TargetQuery, from: &Place) -> Owner {
        let (addr, ago, began) = (look.target.ip(), kept_for(look.awaited), Instant::now());
        let reported = look.reported.filter(|netns| *netns != from.netns);
        let reported = reported.and_then(|netns| Some((netns, self.path_unless_since(netns, ago)?)));
        let found = match &reported {
            Some((netns, path)) if has(path, addr) && is_linked(path, from) => Owner::One(*netns, path.clone()),
            _ => {
                self.find_unless_since(ago);
                let reported = reported.map(|(netns, _)| netns);
                match self.search(addr, from, reported) {
                    Owner::Nobody => {
                        // Nobody asks again for an attempt that is over.
                        let is_last = look.awaited == Awaited::Nothing;
                        self.find_unless_since(if is_last { began.elapsed() } else { ago.min(LEAST) });
                        self.search(addr, from, reported)
                    }
                    found => found,
                }
            }
        };
        if let Owner::One(netns, _) = &found {
            self.owners.insert((from.netns, addr), *netns);
        }
        found
    }

    fn search(&self, addr: IpAddr, from: &Place, reported: Option<Netns>) -> Owner {
        let holders = self.paths.iter().filter(|(netns, path)| **netns != from.netns && has(path, addr));
        let holders = holders.map(|(netns, path)| (*netns, path.clone())).collect();
        match choose(holders, reported, |path| is_linked(path, from)) {
            Owner::Nobody => self.known_owner(addr, from, reported),
            found => found,
        }
    }

    fn find_unless_since(&mut self, ago: Duration) {
        if self.found.is_some_and(|found| found.elapsed() <= ago) {
            return;
        }
        let found = find();
        if let Some(problem) = found.room.problem().filter(|_| !self.noted) {
            tracing::warn!("{problem}");
            self.noted = true;
        }
        self.paths = found.paths;
        self.pids = found.pids;
        self.found = Some(Instant::now());
    }

    /// Where it was found before, if that namespace is still there; of an IPv6 address, which goes with its link, where it is
    /// reported to be.
    fn known_owner(&self, addr: IpAddr, from: &Place, reported: Option<Netns>) -> Owner {
        let before =
            self.owners.get(&(from.netns, addr)).filter(|known| reported.is_none_or(|reported| reported == **known));
        let known = before.or(reported.as_ref().filter(|_| addr.is_ipv6()));
        let there = |netns: &Netns| self.paths.get(netns).filter(|path| is_at(*netns, path));
        known.and_then(|netns| Some(Owner::One(*netns, there(netns)?.clone()))).unwrap_or(Owner::Nobody)
    }
}

/// Nested nodes use the same addresses: of several namespaces those that are linked to the one that asks count. Who may set up
/// the network of a pod can give it any address: of several that count, and where another is reported to have it, it is none.
fn choose(mut holders: Vec<(Netns, PathBuf)>, reported: Option<Netns>, is_linked: impl Fn(&Path) -> bool) -> Owner {
    if holders.len() > 1 && holders.iter().any(|(_, path)| is_linked(path)) {
        holders.retain(|(_, path)| is_linked(path));
    }
    let (only, none) = (holders.len() == 1, holders.is_empty());
    match holders.into_iter().find(|(netns, _)| reported.map_or(only, |reported| reported == *netns)) {
        Some((netns, path)) => Owner::One(netns, path),
        None if none => Owner::Nobody,
        None => Owner::Unsure,
    }
}

/// The namespace has the address now.
fn has(path: &Path, addr: IpAddr) -> bool {
    in_netns(path, || addresses::has(addr)).unwrap_or_default()
}

/// A device of one has its other end in the other: the first then has a number for the second. Of a macvlan or ipvlan only the
/// pod's namespace has one.
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
    /// There may be others: some were left out, or a process keeps its own from us.
    pub incomplete: bool,
    /// What is to be reported if some were left out.
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

/// Whether the path still leads there: names are removed, processes end, and numbers are used again.
fn is_at(netns: Netns, path: &Path) -> bool {
    inode(path) == Some(netns)
}

fn inode(path: &Path) -> Option<Netns> {
    u32::try_from(fs::metadata(path).ok()?.ino()).ok().map(Netns)
}

/// The namespaces of a moment.
#[derive(Debug)]
struct Found {
    paths: BTreeMap<Netns, PathBuf>,
    /// The processes in each of them, [`MAX_PROCESSES`] in all.
    pids: BTreeMap<Netns, Vec<u32>>,
    processes: usize,
    room: Room,
    /// A process keeps its own from us.
    hidden: bool,
}

impl Found {
    fn with_room(most: usize) -> Self {
        Self { paths: BTreeMap::new(), pids: BTreeMap::new(), processes: 0, room: Room::of(most), hidden: false }
    }

    /// The first way into a namespace is kept.
    fn add(&mut self, netns: Netns, pod: impl FnOnce() -> Option<String>, path: impl FnOnce() -> PathBuf) {
        if !self.paths.contains_key(&netns) && self.room.take(pod().as_deref()) {
            self.paths.insert(netns, path());
        }
    }

    fn add_of_process(&mut self, pid: u32, at: Namespace) {
        self.hidden |= at == Namespace::Hidden;
        if let Namespace::At(netns) = at {
            self.add(netns, || pod_of(pid), || PathBuf::from(format!("/proc/{pid}/ns/net")));
            if self.paths.contains_key(&netns) && self.processes < MAX_PROCESSES {
                self.processes += 1;
                self.pids.entry(netns).or_default().push(pid);
            }
        }
    }
}

/// All that can be entered. Names go before processes: they last longer.
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

/// What is bound in these folders. It is entered by the path that it was found by: others may lead into other mounts.
fn named(folders: &[&str]) -> impl Iterator<Item = (Netns, PathBuf)> {
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flat_map(Iterator::flatten);
    entries.filter_map(|entry| inode(&entry.path()).map(|netns| (netns, entry.path())))
}

fn pod_of(pid: u32) -> Option<String> {
    cgroup::pod_process(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?).map(|pod| pod.uid)
}

#[cfg(test)]
mod tests {
    use super::super::procfs::netns_of;
    use super::super::room::MAX_OF_POD;
    use super::*;

    #[test]
    fn our_own_namespace_is_found_through_a_process() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = Namespaces::default().path(own).expect("a path");
        assert!(is_at(own, &path), "{}", path.display());
        assert_eq!(Namespaces::default().path(Netns(1)), None);
    }

    /// A pod that was made after the last look through all is not taken for nobody.
    #[test]
    fn what_was_not_found_is_looked_for_again_soon() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let before = Instant::now().checked_sub(LEAST * 2).expect("the machine runs longer");
        let mut namespaces = Namespaces { found: Some(before), ..Namespaces::default() };
        assert!(namespaces.path_unless_since(own, kept_for(Awaited::Answer)).is_some());
        namespaces.found = Some(before);
        namespaces.path_unless_since(own, kept_for(Awaited::Answer));
        assert_eq!(namespaces.found, Some(before), "what is known is not looked for");
    }

    /// A pod may have thousands of processes and be looked at all the time.
    #[test]
    fn what_was_found_a_moment_ago_is_not_looked_for_again() {
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
    fn an_ipv6_address_that_nobody_has_is_where_it_is_reported_to_be() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let path = PathBuf::from(format!("/proc/{}/ns/net", std::process::id()));
        let namespaces = Namespaces { paths: [(own, path.clone())].into(), ..Namespaces::default() };
        let elsewhere = Place { netns: Netns(1), path: path.clone() };
        let known =
            |addr: &str, reported| namespaces.known_owner(addr.parse().expect("an address"), &elsewhere, reported);
        assert_eq!(known("fd00::2", Some(own)), Owner::One(own, path));
        assert_eq!(known("fd00::2", None), Owner::Nobody);
        assert_eq!(known("10.88.0.2", Some(own)), Owner::Nobody, "that stays when its link is down");
    }

    #[test]
    fn of_several_that_have_an_address_the_linked_one_that_is_reported_to_counts() {
        let place = |netns: u32| (Netns(netns), PathBuf::from(netns.to_string()));
        let one = |netns: u32| Owner::One(Netns(netns), PathBuf::from(netns.to_string()));
        let chosen = |holders: &[u32], reported: Option<u32>, linked: &[u32]| {
            let is_linked = |path: &Path| linked.iter().any(|netns| path == Path::new(&netns.to_string()));
            choose(holders.iter().copied().map(place).collect(), reported.map(Netns), is_linked)
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
    fn what_is_hidden_or_left_out_leaves_the_list_incomplete() {
        let there = |most: usize, of: &[Namespace]| {
            let mut found = Found::with_room(most);
            (1..).zip(of).for_each(|(pid, at)| found.add_of_process(pid, *at));
            let there = There::from(found);
            (there.namespaces.len(), there.incomplete, there.problem.is_some())
        };
        let at = |netns: u32| Namespace::At(Netns(netns));
        assert_eq!(there(2, &[at(1), Namespace::Gone, at(2)]), (2, false, false), "what has ended is in none");
        assert_eq!(there(2, &[at(1), Namespace::Hidden]), (1, true, false));
        assert_eq!(there(1, &[at(1), at(2)]), (1, true, true));
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
        found.add(Netns(2), || None, PathBuf::new);
        found.add(Netns(3), || None, PathBuf::new);
        assert!(reported(&found, "more than 66 network namespaces: ") && found.paths.len() == MAX_OF_POD + 2);
        assert_eq!(Room::of(1).problem(), None);
    }
}
