//! Namespaces that came while the tracer watched, and the paths by which processes named them.

use std::collections::{BTreeSet, VecDeque};

use tracer_model::event::{Netns, NetnsOp, NetnsOpKind, NetnsOpen};
use tracer_model::recent::{Recent, remember};

/// Namespaces kept of which it is known when they were made.
const MAX_MADE: usize = 4096;
const MAX_OPENS: usize = 512;
/// How far back an open of a namespace path may lie from the operation it explains.
const OPEN_WINDOW_NS: u64 = 10_000_000_000;

/// What was seen of namespaces.
#[derive(Debug, Default)]
pub struct Namespaces {
    /// When a namespace was first heard of, if it was made while the tracer watched.
    made: Recent<Netns, u64, MAX_MADE>,
    opens: VecDeque<Opened>,
    /// Entries are seen: a path that led nowhere explains nothing.
    follows: bool,
}

/// A path that names a namespace, and where it led.
#[derive(Debug)]
struct Opened {
    time: u64,
    open: NetnsOpen,
    /// Where its process was next. Plugins enter a pod by its path, and go home by a descriptor of their own.
    led_to: Option<Netns>,
}

impl Namespaces {
    /// A namespace that nobody was in at the start (`old`: somebody was, or may have been) and that was not heard of since is new.
    /// An inode number is used again: an end makes it unknown.
    pub(super) fn observe(&mut self, time: u64, op: &NetnsOp, old: bool) {
        match op.op {
            NetnsOpKind::End => {
                self.made.remove(&op.netns);
            }
            NetnsOpKind::Unshare | NetnsOpKind::Clone => self.made.insert(op.netns, time),
            NetnsOpKind::Switch if !old && !self.made.contains_key(&op.netns) => self.made.insert(op.netns, time),
            NetnsOpKind::Switch | NetnsOpKind::Setns => {}
        }
        if !matches!(op.op, NetnsOpKind::End | NetnsOpKind::Clone) {
            self.observe_entry(time, op);
        }
    }

    pub(super) fn observe_open(&mut self, time: u64, open: &NetnsOpen) {
        remember(MAX_OPENS, &mut self.opens, Opened { time, open: open.clone(), led_to: None });
    }

    /// A process is in this namespace from now on.
    fn observe_entry(&mut self, time: u64, op: &NetnsOp) {
        self.follows = true;
        if let Some(path) = self.taken(op, time).and_then(|at| self.opens.get_mut(at)) {
            path.led_to = if path.is_left_by(op) { Some(op.netns) } else { op.actor.netns };
        }
    }

    /// The path that a thread goes by: the last that it opened itself, if it came nowhere by that yet; else the last that its
    /// process opened, if that is the only one by which nobody came anywhere. Of several of other threads it may be any.
    fn taken(&self, op: &NetnsOp, time: u64) -> Option<usize> {
        let of_process = |(_, it): &(usize, &Opened)| it.is_of(&[op.actor.pid], time);
        let newest_first: Vec<(usize, &Opened)> = self.opens.iter().enumerate().rev().filter(of_process).collect();
        let own = newest_first.iter().find(|(_, it)| it.open.actor.tid == op.actor.tid);
        if let Some((at, _)) = own.filter(|(_, it)| it.led_to.is_none()) {
            return Some(*at);
        }
        let (at, last) = newest_first.first().filter(|(_, it)| it.led_to.is_none())?;
        let mut paths = BTreeSet::from([last.open.path.as_str()]);
        let several = newest_first.iter().any(|(_, it)| paths.insert(&it.open.path) && it.led_to.is_none());
        // Who has been somewhere by a path of its own may be coming home from there.
        let goes = own.is_none() || last.is_left_by(op);
        (goes && !several).then_some(*at)
    }

    /// When it was made, if that was seen.
    pub fn made(&self, netns: Netns) -> Option<u64> {
        self.made.get(&netns).copied()
    }

    /// The path by which one of these processes last came into a namespace, before `time`; where entries are not seen, the
    /// one by which it last named one that is not its own.
    pub fn path(&self, pids: &[u32], netns: Netns, time: u64) -> Option<&str> {
        let led_there = |it: &&Opened| if self.follows { it.led_to == Some(netns) } else { true };
        self.opens.iter().rev().filter(|it| it.is_of(pids, time)).find(led_there).map(|it| it.open.path.as_str())
    }

    /// One of these processes named a namespace that is not its own.
    pub fn named_one(&self, pids: &[u32], time: u64) -> bool {
        self.opens.iter().any(|it| it.is_of(pids, time))
    }

    /// The path by which a process is about to enter a namespace: nobody came anywhere by it yet.
    pub fn path_of_entry(&self, op: &NetnsOp, time: u64) -> Option<&str> {
        let path = self.opens.get(self.taken(op, time)?)?;
        path.is_left_by(op).then_some(path.open.path.as_str())
    }
}

impl Opened {
    /// The process goes from where it opened the path: who comes from elsewhere has been somewhere by it, seen or not, and may
    /// be coming home. Where namespaces are not known, a thread that leaves one goes by what it opened itself.
    fn is_left_by(&self, op: &NetnsOp) -> bool {
        let (opener, actor) = (&self.open.actor, &op.actor);
        let stays = actor.netns.is_none_or(|from| from == op.netns);
        opener.netns.zip(actor.netns).map_or(stays || opener.tid == actor.tid, |(opened, left)| opened == left)
    }

    /// Opened by one of these processes shortly before, and no way back.
    fn is_of(&self, pids: &[u32], time: u64) -> bool {
        let recent = self.time <= time && time - self.time <= OPEN_WINDOW_NS;
        recent && pids.contains(&self.open.actor.pid) && !names_itself(&self.open)
    }
}

/// `/proc/self/…`, `/proc/thread-self/…` or the opener's own pid: how a plugin remembers the way back.
fn names_itself(open: &NetnsOpen) -> bool {
    let Some(rest) = open.path.strip_prefix("/proc/") else { return false };
    let first = rest.split('/').next().unwrap_or_default();
    first == "self"
        || first == "thread-self"
        || first.parse() == Ok(open.actor.pid)
        || first.parse() == Ok(open.actor.tid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::Actor;

    const PLUGIN: u32 = 50;
    const THREAD: u32 = 51;
    const HOME: Netns = Netns(1);
    const AWAY: Netns = Netns(2);

    fn actor() -> Actor {
        Actor { pid: PLUGIN, tid: THREAD, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None }
    }

    fn op(netns: u32, op: NetnsOpKind) -> NetnsOp {
        NetnsOp { actor: actor(), ancestors: Vec::new(), netns: Netns(netns), op }
    }

    fn opened(paths: &[&str]) -> Namespaces {
        let mut namespaces = Namespaces::default();
        for (time, path) in (1..).zip(paths) {
            namespaces.observe_open(time, &NetnsOpen { actor: actor(), path: (*path).to_owned() });
        }
        namespaces
    }

    #[test]
    fn a_namespace_is_made_once_and_ends() {
        let mut namespaces = Namespaces::default();
        namespaces.observe(1, &op(7, NetnsOpKind::Unshare), false);
        namespaces.observe(2, &op(7, NetnsOpKind::Switch), false);
        assert_eq!(namespaces.made(Netns(7)), Some(1), "who enters it does not make it");
        namespaces.observe(3, &op(7, NetnsOpKind::End), false);
        assert_eq!(namespaces.made(Netns(7)), None);
        namespaces.observe(4, &op(7, NetnsOpKind::Clone), true);
        assert_eq!(namespaces.made(Netns(7)), Some(4), "the number is used again");
    }

    #[test]
    fn what_is_entered_for_the_first_time_is_new_unless_it_was_there_at_the_start() {
        let mut namespaces = Namespaces::default();
        namespaces.observe(1, &op(7, NetnsOpKind::Switch), true);
        namespaces.observe(1, &op(8, NetnsOpKind::Setns), false);
        namespaces.observe(1, &op(9, NetnsOpKind::Switch), false);
        assert_eq!([7, 8, 9].map(|netns| namespaces.made(Netns(netns))), [None, None, Some(1)]);
    }

    #[test]
    fn the_newest_is_kept_whatever_its_number() {
        let mut namespaces = Namespaces::default();
        let last = 10 + u32::try_from(MAX_MADE).expect("a number");
        (11..=last).for_each(|netns| namespaces.observe(u64::from(netns), &op(netns, NetnsOpKind::Unshare), false));
        namespaces.observe(10_000, &op(1, NetnsOpKind::Unshare), false);
        namespaces.observe(10_001, &op(2, NetnsOpKind::Unshare), false);
        assert_eq!([1, 2, last].map(|netns| namespaces.made(Netns(netns)).is_some()), [true; 3]);
        assert_eq!([11, 12].map(|netns| namespaces.made(Netns(netns))), [None; 2], "the oldest went");
    }

    #[test]
    fn the_path_is_the_last_that_leads_elsewhere() {
        let there = "/run/netns/cni-1";
        let own = format!("/proc/{PLUGIN}/ns/net");
        let thread = format!("/proc/{THREAD}/ns/net");
        let namespaces =
            opened(&["/run/netns/cni-0", there, "/proc/self/ns/net", "/proc/thread-self/ns/net", &own, &thread]);
        let path = |pids: &[u32], time| namespaces.path(pids, HOME, time);
        assert_eq!(path(&[9, PLUGIN], 100), Some(there));
        assert_eq!(path(&[9], 100), None, "another process");
        assert_eq!(path(&[PLUGIN], 1), Some("/run/netns/cni-0"), "before the second");
        assert_eq!(path(&[PLUGIN], 100 + OPEN_WINDOW_NS), None, "too long ago");
        assert_eq!(opened(&["/proc/77/ns/net"]).path(&[PLUGIN], HOME, 100), Some("/proc/77/ns/net"));
    }

    /// From `from` into `to`, by this thread.
    fn enter(from: Netns, to: Netns, tid: u32) -> NetnsOp {
        let actor = Actor { tid, netns: Some(from), ..actor() };
        NetnsOp { actor, ancestors: Vec::new(), netns: to, op: NetnsOpKind::Setns }
    }

    #[test]
    fn who_was_in_a_pod_and_comes_home_did_not_come_by_its_path() {
        let mut namespaces = opened(&["/run/netns/cni-1"]);
        assert_eq!(namespaces.path_of_entry(&enter(HOME, AWAY, THREAD), 10), Some("/run/netns/cni-1"));
        namespaces.observe(10, &enter(HOME, AWAY, THREAD), false);
        assert_eq!(namespaces.path_of_entry(&enter(AWAY, HOME, THREAD), 11), None);
        namespaces.observe(11, &enter(AWAY, HOME, THREAD), false);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 12), Some("/run/netns/cni-1"));
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 12), None);
        assert!(namespaces.named_one(&[PLUGIN], 12) && !namespaces.named_one(&[9], 12));
    }

    #[test]
    fn a_path_that_leads_home_is_how_it_came_there() {
        let mut namespaces = opened(&["/proc/77/ns/net", "/proc/self/ns/net"]);
        assert_eq!(namespaces.path_of_entry(&enter(HOME, HOME, 99), 10), Some("/proc/77/ns/net"));
        namespaces.observe(10, &enter(HOME, HOME, 99), false);
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 11), Some("/proc/77/ns/net"));
        assert_eq!(namespaces.path_of_entry(&enter(HOME, HOME, 99), 12), None, "reported once");
    }

    /// A runtime with several threads: another one opened the path of the next pod meanwhile.
    #[test]
    fn a_thread_that_comes_home_does_not_come_by_anothers_path() {
        let unknown = opened(&["/run/netns/cni-2"]);
        assert_eq!(unknown.path_of_entry(&enter(AWAY, HOME, 99), 10), None);
        assert_eq!(unknown.path_of_entry(&enter(AWAY, HOME, THREAD), 10), Some("/run/netns/cni-2"));
        let mut known = Namespaces::default();
        let open = NetnsOpen { actor: Actor { netns: Some(HOME), ..actor() }, path: "/run/netns/cni-2".to_owned() };
        known.observe_open(1, &open);
        assert_eq!(known.path_of_entry(&enter(AWAY, HOME, 99), 10), None);
        assert_eq!(
            known.path_of_entry(&enter(HOME, AWAY, 99), 10),
            Some("/run/netns/cni-2"),
            "opened by another thread"
        );
    }

    const OTHER: u32 = 52;

    /// A runtime that sets up two pods at once: threads 51 and 52 open the paths of one each.
    fn two_pods() -> Namespaces {
        let mut namespaces = Namespaces::default();
        for (time, tid, path) in [(1, THREAD, "/run/netns/cni-1"), (2, OTHER, "/run/netns/cni-2")] {
            let actor = Actor { tid, netns: Some(HOME), ..actor() };
            namespaces.observe_open(time, &NetnsOpen { actor, path: path.to_owned() });
        }
        namespaces
    }

    #[test]
    fn of_the_paths_of_two_threads_each_goes_by_its_own() {
        let mut namespaces = two_pods();
        let (first, second) = (AWAY, Netns(3));
        assert_eq!(namespaces.path_of_entry(&enter(HOME, first, THREAD), 10), Some("/run/netns/cni-1"));
        namespaces.observe(10, &enter(HOME, first, THREAD), false);
        namespaces.observe(11, &enter(first, HOME, THREAD), false);
        namespaces.observe(12, &enter(HOME, second, OTHER), false);
        let path = |netns| namespaces.path(&[PLUGIN], netns, 20);
        assert_eq!([first, second].map(path), [Some("/run/netns/cni-1"), Some("/run/netns/cni-2")]);
    }

    #[test]
    fn which_of_two_paths_a_third_thread_goes_by_is_not_known() {
        let mut namespaces = two_pods();
        assert_eq!(namespaces.path_of_entry(&enter(HOME, AWAY, 99), 10), None);
        namespaces.observe(10, &enter(HOME, AWAY, 99), false);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 11), None);
        namespaces.observe(12, &enter(HOME, AWAY, THREAD), false);
        assert_eq!(
            namespaces.path_of_entry(&enter(HOME, Netns(3), 99), 13),
            Some("/run/netns/cni-2"),
            "the only one left"
        );
    }

    /// The kernel held the entry back: its cgroup enters too many.
    #[test]
    fn who_comes_home_from_where_it_was_not_seen_to_go_did_not_come_by_its_path() {
        let mut namespaces = Namespaces::default();
        let open = NetnsOpen { actor: Actor { netns: Some(HOME), ..actor() }, path: "/run/netns/cni-1".to_owned() };
        namespaces.observe_open(1, &open);
        assert_eq!(namespaces.path_of_entry(&enter(AWAY, HOME, THREAD), 10), None);
        namespaces.observe(10, &enter(AWAY, HOME, THREAD), false);
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 11), None);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 11), Some("/run/netns/cni-1"));
    }

    #[test]
    fn opens_are_bounded() {
        let namespaces = opened(&["/run/netns/a"; MAX_OPENS + 9]);
        assert_eq!(namespaces.opens.len(), MAX_OPENS);
        assert_eq!(namespaces.opens.front().map(|it| it.time), Some(10), "the oldest went");
    }
}
