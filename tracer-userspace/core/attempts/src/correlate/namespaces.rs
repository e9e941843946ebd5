//! Network namespaces that were made while tracer watched, and the paths by which processes entered them.

use std::collections::{BTreeSet, VecDeque};

use tracer_model::event::{Netns, NetnsOp, NetnsOpKind, NetnsOpen};
use tracer_model::recent::{Recent, remember};

/// How many namespaces are kept with the time when they were made.
const MAX_MADE: usize = 4096;
const MAX_OPENS: usize = 512;
/// Entries kept for one namespace.
const MAX_ENTRIES: usize = 16;
/// How long before an entry into a namespace a process may have opened its path.
const OPEN_WINDOW_NS: u64 = 10_000_000_000;

/// The namespaces and the opened paths.
#[derive(Debug, Default)]
pub struct Namespaces {
    /// When each namespace was made, if tracer watched then.
    made: Recent<Netns, u64, MAX_MADE>,
    /// When processes last entered each namespace.
    entered: Recent<Netns, VecDeque<u64>, MAX_MADE>,
    opens: VecDeque<Opened>,
    /// This kernel shows entries, so only a path by which a process entered a namespace explains something.
    has_entries: bool,
}

/// A path that names a namespace, and the namespace that its process entered by it.
#[derive(Debug)]
struct Opened {
    time: u64,
    open: NetnsOpen,
    /// The next namespace of the process, or where it was led by the same path before: a runtime makes a file, a namespace
    /// for it, and opens the file. CNI plugins enter a pod by its path, and return by a descriptor of their own.
    led_to: Option<Netns>,
}

impl Namespaces {
    /// Takes in an operation on a namespace. `old`: a process was in it at the start of tracer, or may have been. A
    /// process that enters another unknown namespace shows that it is new. The kernel reuses inode numbers, so an end
    /// makes a namespace unknown.
    pub(super) fn observe(&mut self, time: u64, op: &NetnsOp, old: bool) {
        match op.op {
            NetnsOpKind::End => {
                self.made.remove(&op.netns);
                self.entered.remove(&op.netns);
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
        let is_same = |it: &&Opened| it.open.path == open.path && it.is_of(&[open.actor.pid], time);
        let led_to = self.opens.iter().rev().find(is_same).and_then(|it| it.led_to);
        remember(MAX_OPENS, &mut self.opens, Opened { time, open: open.clone(), led_to });
    }

    /// A namespace was made, by what is seen of its links.
    pub(super) fn observe_new(&mut self, time: u64, netns: Netns) {
        self.made.insert(netns, time);
    }

    /// Another namespace has this number now: paths that led to the earlier one do not lead there.
    pub(super) fn forget_paths(&mut self, netns: Netns) {
        self.opens.retain(|it| it.led_to != Some(netns));
    }

    /// A process enters this namespace.
    fn observe_entry(&mut self, time: u64, op: &NetnsOp) {
        self.has_entries = true;
        remember(MAX_ENTRIES, self.entered.or_default(op.netns), time);
        if let Some(path) = self.entry_path(op, time).and_then(|at| self.opens.get_mut(at)) {
            path.led_to = if path.is_left_by(op) { Some(op.netns) } else { op.actor.netns };
        }
    }

    /// The path by which a thread enters a namespace: the last one that it opened itself, if that is unused. Otherwise
    /// the last one that its process opened, if that is the only unused one: of several, the thread may use any.
    fn entry_path(&self, op: &NetnsOp, time: u64) -> Option<usize> {
        let of_process = |(_, it): &(usize, &Opened)| it.is_of(&[op.actor.pid], time);
        let newest_first: Vec<(usize, &Opened)> = self.opens.iter().enumerate().rev().filter(of_process).collect();
        let own = newest_first.iter().find(|(_, it)| it.open.actor.tid == op.actor.tid);
        if let Some((at, _)) = own.filter(|(_, it)| it.led_to.is_none()) {
            return Some(*at);
        }
        let (at, last) = newest_first.first().filter(|(_, it)| it.led_to.is_none())?;
        let mut paths = BTreeSet::from([last.open.path.as_str()]);
        let several = newest_first.iter().any(|(_, it)| paths.insert(&it.open.path) && it.led_to.is_none());
        // A thread that entered a namespace by its own path may be on its way back.
        let enters = own.is_none() || last.is_left_by(op);
        (enters && !several).then_some(*at)
    }

    /// When a namespace was made, if tracer watched then.
    pub fn made(&self, netns: Netns) -> Option<u64> {
        self.made.get(&netns).copied()
    }

    /// When a process last entered a namespace after `from`, and not after `to`. A container runtime does so to start a
    /// container.
    pub fn entered(&self, netns: Netns, from: u64, to: u64) -> Option<u64> {
        self.entered.get(&netns)?.iter().rev().copied().find(|time| *time > from && *time <= to)
    }

    /// The path by which one of these processes last entered a namespace before `time`. If the kernel shows no entries,
    /// the last path of another namespace that it opened.
    pub fn path(&self, pids: &[u32], netns: Netns, time: u64) -> Option<&str> {
        let led_there = |it: &&Opened| if self.has_entries { it.led_to == Some(netns) } else { true };
        self.opens.iter().rev().filter(|it| it.is_of(pids, time)).find(led_there).map(|it| it.open.path.as_str())
    }

    /// One of these processes opened the path of another namespace.
    pub fn has_opened_path(&self, pids: &[u32], time: u64) -> bool {
        self.opens.iter().any(|it| it.is_of(pids, time))
    }

    /// The path by which a process is about to enter a namespace, if it is unused.
    pub fn path_of_entry(&self, op: &NetnsOp, time: u64) -> Option<&str> {
        let path = self.opens.get(self.entry_path(op, time)?)?;
        path.is_left_by(op).then_some(path.open.path.as_str())
    }
}

impl Opened {
    /// The process leaves the namespace in which it opened the path. From another namespace it may be on its way back,
    /// even if tracer did not see it enter that one. If the namespaces are not known, a thread uses the path that it
    /// opened itself.
    fn is_left_by(&self, op: &NetnsOp) -> bool {
        let (opener, actor) = (&self.open.actor, &op.actor);
        let stays = actor.netns.is_none_or(|from| from == op.netns);
        opener.netns.zip(actor.netns).map_or(stays || opener.tid == actor.tid, |(opened, left)| opened == left)
    }

    /// One of these processes opened the path shortly before, and it is not the way back.
    fn is_of(&self, pids: &[u32], time: u64) -> bool {
        let recent = self.time <= time && time - self.time <= OPEN_WINDOW_NS;
        recent && pids.contains(&self.open.actor.pid) && !names_itself(&self.open)
    }
}

/// The path is `/proc/self/…`, `/proc/thread-self/…` or has the opener's own pid: a plugin keeps that for the way back.
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

    #[test]
    fn a_later_entry_does_not_hide_an_earlier_one() {
        let mut namespaces = Namespaces::default();
        [5, 9].into_iter().for_each(|time| namespaces.observe(time, &op(7, NetnsOpKind::Switch), false));
        assert_eq!(namespaces.entered(Netns(7), 4, 6), Some(5));
        assert_eq!([(5, 8), (9, 20)].map(|(from, to)| namespaces.entered(Netns(7), from, to)), [None; 2]);
        namespaces.observe(10, &op(7, NetnsOpKind::End), false);
        assert_eq!(namespaces.entered(Netns(7), 0, 20), None);
    }

    /// containerd sets up the next pod in a namespace with the number of an earlier one.
    #[test]
    fn the_path_of_an_earlier_namespace_does_not_lead_to_the_next_one_with_its_number() {
        let mut namespaces = opened(&["/run/netns/cni-1"]);
        namespaces.observe(10, &enter(HOME, AWAY, THREAD), false);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 12), Some("/run/netns/cni-1"));
        namespaces.forget_paths(AWAY);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 12), None);
    }

    fn opened(paths: &[&str]) -> Namespaces {
        let mut namespaces = Namespaces::default();
        for (time, path) in (1..).zip(paths) {
            namespaces.observe_open(time, &NetnsOpen { actor: actor(), path: (*path).to_owned() });
        }
        namespaces
    }

    #[test]
    fn a_namespace_is_made_once_until_its_end() {
        let mut namespaces = Namespaces::default();
        namespaces.observe(1, &op(7, NetnsOpKind::Unshare), false);
        namespaces.observe(2, &op(7, NetnsOpKind::Switch), false);
        assert_eq!(namespaces.made(Netns(7)), Some(1), "an entry does not make it");
        namespaces.observe(3, &op(7, NetnsOpKind::End), false);
        assert_eq!(namespaces.made(Netns(7)), None);
        namespaces.observe(4, &op(7, NetnsOpKind::Clone), true);
        assert_eq!(namespaces.made(Netns(7)), Some(4), "the number is used again");
    }

    #[test]
    fn a_namespace_that_a_process_enters_first_is_new_unless_it_was_there_at_the_start() {
        let mut namespaces = Namespaces::default();
        namespaces.observe(1, &op(7, NetnsOpKind::Switch), true);
        namespaces.observe(1, &op(8, NetnsOpKind::Setns), false);
        namespaces.observe(1, &op(9, NetnsOpKind::Switch), false);
        assert_eq!([7, 8, 9].map(|netns| namespaces.made(Netns(netns))), [None, None, Some(1)]);
    }

    #[test]
    fn the_path_is_the_last_one_of_another_namespace() {
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

    /// This thread goes from `from` into `to`.
    fn enter(from: Netns, to: Netns, tid: u32) -> NetnsOp {
        let actor = Actor { tid, netns: Some(from), ..actor() };
        NetnsOp { actor, ancestors: Vec::new(), netns: to, op: NetnsOpKind::Setns }
    }

    #[test]
    fn a_thread_that_returns_from_a_pod_did_not_use_the_path_of_the_pod() {
        let mut namespaces = opened(&["/run/netns/cni-1"]);
        assert_eq!(namespaces.path_of_entry(&enter(HOME, AWAY, THREAD), 10), Some("/run/netns/cni-1"));
        namespaces.observe(10, &enter(HOME, AWAY, THREAD), false);
        assert_eq!(namespaces.path_of_entry(&enter(AWAY, HOME, THREAD), 11), None);
        namespaces.observe(11, &enter(AWAY, HOME, THREAD), false);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 12), Some("/run/netns/cni-1"));
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 12), None);
        assert!(namespaces.has_opened_path(&[PLUGIN], 12) && !namespaces.has_opened_path(&[9], 12));
    }

    #[test]
    fn a_path_of_the_own_namespace_explains_the_entry() {
        let mut namespaces = opened(&["/proc/77/ns/net", "/proc/self/ns/net"]);
        assert_eq!(namespaces.path_of_entry(&enter(HOME, HOME, 99), 10), Some("/proc/77/ns/net"));
        namespaces.observe(10, &enter(HOME, HOME, 99), false);
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 11), Some("/proc/77/ns/net"));
        assert_eq!(namespaces.path_of_entry(&enter(HOME, HOME, 99), 12), None, "reported once");
    }

    /// A runtime makes a file and a namespace for it, and opens the file. Another thread enters the node by an old descriptor.
    #[test]
    fn the_path_of_a_namespace_that_the_process_made_leads_nowhere_else() {
        let mut namespaces = Namespaces::default();
        let open = NetnsOpen { actor: Actor { netns: Some(HOME), ..actor() }, path: "/run/netns/cni-1".to_owned() };
        namespaces.observe_open(1, &open);
        let unshare = NetnsOp { op: NetnsOpKind::Unshare, ..enter(HOME, AWAY, 98) };
        namespaces.observe(2, &unshare, false);
        namespaces.observe_open(3, &open);
        assert_eq!(namespaces.path_of_entry(&enter(HOME, HOME, 99), 4), None);
        namespaces.observe(4, &enter(HOME, HOME, 99), false);
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 5), None);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 5), Some("/run/netns/cni-1"));
    }

    /// A runtime with several threads: another thread has opened the path of the next pod.
    #[test]
    fn a_thread_that_returns_did_not_use_the_path_of_another_thread() {
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
    fn two_threads_use_their_own_paths() {
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
    fn the_path_of_a_third_thread_is_unknown_if_two_are_unused() {
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

    /// The kernel program reported no entry, because the cgroup enters too many namespaces.
    #[test]
    fn a_thread_that_returns_from_an_unseen_entry_did_not_use_the_path() {
        let mut namespaces = Namespaces::default();
        let open = NetnsOpen { actor: Actor { netns: Some(HOME), ..actor() }, path: "/run/netns/cni-1".to_owned() };
        namespaces.observe_open(1, &open);
        assert_eq!(namespaces.path_of_entry(&enter(AWAY, HOME, THREAD), 10), None);
        namespaces.observe(10, &enter(AWAY, HOME, THREAD), false);
        assert_eq!(namespaces.path(&[PLUGIN], HOME, 11), None);
        assert_eq!(namespaces.path(&[PLUGIN], AWAY, 11), Some("/run/netns/cni-1"));
    }
}
