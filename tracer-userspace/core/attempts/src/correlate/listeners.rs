//! Processes that began or stopped to listen while tracer watched.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use tracer_model::event::{Listen, Netns};
use tracer_model::recent::{Recent, remember};

const MAX: usize = 4096;
/// Ends kept of a port and address. With SO_REUSEPORT, each worker may have a listener of its own.
const MAX_ENDS: usize = 16;
/// A process that ends closes all its listeners within this time.
pub const TOGETHER_NS: u64 = 100_000_000;
/// A process that hands its port over stops to listen within this time.
const HANDOVER_NS: u64 = 60_000_000_000;

/// Namespace, port, address, and whether the socket takes no IPv4. A process may listen on 127.0.0.1 while it prepares,
/// and then on all addresses.
type Key = (Netns, u16, IpAddr, bool);

/// The events of one port and address of a namespace.
#[derive(Clone, Debug)]
struct Port {
    /// The first begin; `None` if the first event was an end.
    first: Option<(u64, Listen)>,
    last: (u64, Listen),
    /// The last begin. Listeners of other processes may have ended since.
    begin: Option<(u64, Listen)>,
    /// When the last begin was known. A process that bound the port began to listen at some time before.
    begun_by: u64,
    /// How many listeners began while tracer watched, and have not ended.
    open: usize,
    /// The last ends, oldest first. A listener can come back within a millisecond, and several can end together.
    ends: VecDeque<(u64, Listen)>,
}

impl Port {
    /// Of listeners that a process closes together, the first one counts.
    fn add_end(&mut self, time: u64, listen: &Listen) {
        let is_same = |(at, it): &(u64, Listen)| it.actor.pid == listen.actor.pid && *at + TOGETHER_NS > time;
        if self.last.1.begins || !self.ends.iter().any(is_same) {
            remember(MAX_ENDS, &mut self.ends, (time, listen.clone()));
        }
    }

    /// The begin of a process that listens: of the last one, or of the first one if the last one has stopped. A process
    /// may have several listeners, and stop with one of them.
    fn listening(&self) -> Option<&(u64, Listen)> {
        let last = self.begin.as_ref().filter(|_| self.open > 0)?;
        let pid = |(_, it): &(u64, Listen)| it.actor.pid;
        let goes_on = |it: &&(u64, Listen)| !self.ends.iter().any(|end| end.0 >= it.0 && pid(end) == pid(it));
        let first = self.first.as_ref();
        let is_one = first.is_some_and(|first| pid(first) == pid(last));
        if is_one { Some(last) } else { Some(last).into_iter().chain(first).find(goes_on) }
    }
}

/// Listeners by namespace, port and address.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    ports: Recent<Key, Port, MAX>,
    /// Ports that a process has bound, and when. Whether it listens is not known yet. Also ports of a listener for one device:
    /// whether that is the device of the target's connections is not known.
    bound: Recent<Key, u64, MAX>,
}

/// A socket bound to `bound` takes connections to `dst`. `0.0.0.0` takes none to an IPv6 address. `::` takes both,
/// unless it [is for IPv6 only](serves).
pub fn takes(bound: IpAddr, dst: IpAddr) -> bool {
    let (bound, dst) = (bound.to_canonical(), dst.to_canonical());
    bound == dst || (bound.is_unspecified() && (bound.is_ipv6() || dst.is_ipv4()))
}

/// Whether the listener takes connections to `dst`. For one of one device this is not known.
pub fn serves(listen: &Listen, dst: IpAddr) -> bool {
    takes_of(listen.addr.ip(), listen.only_v6, dst)
}

fn takes_of(bound: IpAddr, only_v6: bool, dst: IpAddr) -> bool {
    takes(bound, dst) && !(only_v6 && dst.to_canonical().is_ipv4())
}

impl Listeners {
    pub(super) fn observe(&mut self, time: u64, listen: &Listen) {
        let key = (listen.netns, listen.addr.port(), listen.addr.ip().to_canonical(), listen.only_v6);
        if listen.one_device || listen.bound && listen.begins {
            return self.bound.insert(key, time);
        }
        let bound = self.bound.remove(&key);
        if listen.bound {
            return;
        }
        let since = bound.filter(|_| listen.begins);
        let event = (since.unwrap_or(time), listen.clone());
        if self.ports.get_mut(&key).is_none() {
            let first = listen.begins.then(|| event.clone());
            let (last, ends) = (event.clone(), VecDeque::new());
            self.ports.insert(key, Port { first, last, begin: None, begun_by: 0, open: 0, ends });
        }
        if let Some(port) = self.ports.get_mut(&key) {
            match listen.begins {
                true => {
                    (port.begin, port.begun_by) = (Some(event.clone()), time);
                    port.open += 1;
                }
                false => {
                    port.add_end(time, listen);
                    port.open = port.open.saturating_sub(1);
                }
            }
            port.last = event;
        }
    }

    /// The namespace is gone, or another one has its number now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.ports.retain(|(at, ..), _| *at != netns);
        self.bound.retain(|(at, ..), _| *at != netns);
    }

    /// The last begin or end on a port, at any address.
    pub fn last(&self, netns: Netns, port: u16) -> Option<&(u64, Listen)> {
        self.on_ports(netns, port, port).map(|it| &it.last).max_by_key(|(time, _)| *time)
    }

    /// The last begin or end of a listener that takes connections to this target.
    pub fn last_at(&self, netns: Netns, dst: SocketAddr) -> Option<&(u64, Listen)> {
        self.at(netns, dst).map(|it| &it.last).max_by_key(|(time, _)| *time)
    }

    /// The begin of a process that listens for this target, and has not stopped.
    pub fn open_at(&self, netns: Netns, dst: SocketAddr) -> Option<&(u64, Listen)> {
        self.at(netns, dst).filter_map(Port::listening).max_by_key(|(time, _)| *time)
    }

    /// The last ends of listeners that take connections to this target. Others may have begun since.
    pub(crate) fn ends_at(&self, netns: Netns, dst: SocketAddr) -> impl Iterator<Item = &(u64, Listen)> {
        self.at(netns, dst).flat_map(|it| &it.ends)
    }

    /// Another process that had begun to listen for this target shortly before this end, and has not stopped. The process
    /// may have handed the port over to it (SO_REUSEPORT). `all_known`: the begins of all listeners there were seen. If
    /// none of them is left, a worker has ended the listener that it inherited.
    pub(super) fn successor(
        &self,
        (at, ended): &(u64, Listen),
        dst: SocketAddr,
        all_known: bool,
    ) -> Option<&(u64, Listen)> {
        let left = self.at(ended.netns, dst).filter(|it| it.open > 0 || !all_known);
        let begins = left.filter_map(|it| it.begin.as_ref());
        let is_recent = |began: u64| began < *at && *at - began < HANDOVER_NS;
        let others = begins.filter(|(began, it)| it.actor.pid != ended.actor.pid && is_recent(*began));
        let next @ (began, listen) = others.max_by_key(|(began, _)| *began)?;
        let mut ends = self.ends_at(ended.netns, dst);
        (!ends.any(|(at, it)| at >= began && it.actor.pid == listen.actor.pid)).then_some(next)
    }

    /// The first begin of a listener that takes connections to this target, if no earlier one ended there.
    pub fn first(&self, netns: Netns, dst: SocketAddr) -> Option<(u64, &Listen)> {
        let first: Option<Vec<_>> = self.at(netns, dst).map(|it| it.first.as_ref()).collect();
        first?.into_iter().min_by_key(|(time, _)| *time).map(|(time, listen)| (*time, listen))
    }

    /// A process listens for this target or has listened for it, or may do so.
    pub fn knows(&self, netns: Netns, dst: SocketAddr) -> bool {
        self.changed_since(netns, dst, 0)
    }

    /// A process began or stopped to listen for this target at or after `from`, or may have done so.
    pub fn changed_since(&self, netns: Netns, dst: SocketAddr, from: u64) -> bool {
        self.bound_since(netns, dst, from) || self.at(netns, dst).any(|it| it.last.0.max(it.begun_by) >= from)
    }

    /// A process began to listen for this target at or after `from`, or may have done so.
    pub fn begun_since(&self, netns: Netns, dst: SocketAddr, from: u64) -> bool {
        let begun = |it: &Port| it.begin.is_some() && it.begun_by >= from;
        self.bound_since(netns, dst, from) || self.at(netns, dst).any(begun)
    }

    fn bound_since(&self, netns: Netns, dst: SocketAddr, from: u64) -> bool {
        let mut bound = self.bound.range(keys(netns, dst.port(), dst.port()));
        bound.any(|((.., addr, only_v6), time)| takes_of(*addr, *only_v6, dst.ip()) && *time >= from)
    }

    /// A process listens on some port of the namespace, since `from` or later.
    pub fn any_since(&self, netns: Netns, from: u64) -> bool {
        self.on_ports(netns, 0, u16::MAX).any(|it| it.open > 0 && it.begin.as_ref().is_some_and(|(at, _)| *at >= from))
    }

    /// A process listens on some port of the namespace.
    pub fn any_in(&self, netns: Netns) -> bool {
        self.any_since(netns, 0)
    }

    fn on_ports(&self, netns: Netns, first: u16, last: u16) -> impl Iterator<Item = &Port> {
        self.ports.range(keys(netns, first, last)).map(|(_, port)| port)
    }

    fn at(&self, netns: Netns, dst: SocketAddr) -> impl Iterator<Item = &Port> {
        let all = self.on_ports(netns, dst.port(), dst.port());
        all.filter(move |it| serves(&it.last.1, dst.ip()))
    }
}

/// All addresses of these ports.
const fn keys(netns: Netns, first: u16, last: u16) -> RangeInclusive<Key> {
    let highest = Ipv6Addr::from_bits(u128::MAX);
    let lowest = (netns, first, IpAddr::V4(Ipv4Addr::UNSPECIFIED), false);
    RangeInclusive::new(lowest, (netns, last, IpAddr::V6(highest), true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::prober;

    fn listen(netns: u32, begins: bool) -> Listen {
        Listen::new(Netns(netns), ([0, 0, 0, 0], 80).into(), prober(), begins)
    }

    const DST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 88, 0, 2)), 80);

    #[test]
    fn an_end_is_kept_when_a_listener_comes_back() {
        let mut listeners = Listeners::default();
        let ends = |listeners: &Listeners| listeners.ends_at(Netns(1), DST).map(|(time, _)| *time).collect::<Vec<_>>();
        listeners.observe(1, &listen(1, true));
        assert!(ends(&listeners).is_empty());
        listeners.observe(2, &listen(1, false));
        listeners.observe(3, &listen(1, true));
        assert_eq!(ends(&listeners), [2]);
        assert_eq!(listeners.last_at(Netns(1), DST).map(|(time, _)| *time), Some(3));
    }

    /// A worker with a listener of its own ends.
    #[test]
    fn a_port_with_several_listeners_is_listened_on_until_the_last_one_ends() {
        let mut listeners = Listeners::default();
        listeners.observe(1, &listen(1, true));
        listeners.observe(2, &listen(1, true));
        listeners.observe(3, &listen(1, false));
        assert!(listeners.any_in(Netns(1)) && listeners.any_since(Netns(1), 2) && !listeners.any_since(Netns(1), 3));
        listeners.observe(4, &listen(1, false));
        assert!(!listeners.any_in(Netns(1)));
    }

    #[test]
    fn a_port_that_is_bound_may_have_a_listener() {
        let mut listeners = Listeners::default();
        let bound = |begins| Listen { bound: true, ..listen(1, begins) };
        let first = |listeners: &Listeners| listeners.first(Netns(1), DST).map(|(time, _)| time);
        listeners.observe(1, &bound(true));
        assert!(listeners.knows(Netns(1), DST) && listeners.changed_since(Netns(1), DST, 1));
        assert!(first(&listeners).is_none() && !listeners.any_in(Netns(1)));
        listeners.observe(2, &bound(false));
        assert!(!listeners.knows(Netns(1), DST), "it does not listen");
        listeners.observe(3, &listen(1, true));
        assert_eq!(first(&listeners), Some(3), "it listens late");
        let mut listeners = Listeners::default();
        listeners.observe(1, &bound(true));
        listeners.observe(2, &listen(1, true));
        assert_eq!(first(&listeners), Some(1), "it listens since its bind");
        let since = |from| (listeners.changed_since(Netns(1), DST, from), listeners.begun_since(Netns(1), DST, from));
        assert_eq!(
            [since(2), since(3)],
            [(true, true), (false, false)],
            "or it began just before it was seen to listen"
        );
        assert!(listeners.any_in(Netns(1)));
        listeners.observe(3, &listen(1, false));
        assert!(!listeners.any_in(Netns(1)) && listeners.knows(Netns(1), DST));
        assert_eq!(first(&listeners), Some(1), "its begin is kept");
    }

    #[test]
    fn a_listener_for_ipv6_only_serves_no_ipv4() {
        let mut listeners = Listeners::default();
        let addr: SocketAddr = (Ipv6Addr::UNSPECIFIED, 80).into();
        let at = |only_v6| Listen { addr, only_v6, ..listen(1, true) };
        listeners.observe(1, &at(true));
        let over_v6 = (Ipv6Addr::LOCALHOST, 80).into();
        assert!(!listeners.knows(Netns(1), DST) && listeners.knows(Netns(1), over_v6));
        assert!(listeners.last(Netns(1), 80).is_some_and(|(_, it)| !serves(it, DST.ip())));
        listeners.observe(2, &at(false));
        let first = |dst| listeners.first(Netns(1), dst).map(|(time, _)| time);
        assert_eq!((first(DST), first(over_v6)), (Some(2), Some(1)));
    }

    #[test]
    fn a_listener_of_one_device_may_serve_and_proves_nothing() {
        let mut listeners = Listeners::default();
        let of_device = |begins| Listen { one_device: true, ..listen(1, begins) };
        for (time, begins) in [(1, true), (2, false)] {
            listeners.observe(time, &of_device(begins));
            assert!(listeners.knows(Netns(1), DST) && listeners.changed_since(Netns(1), DST, time));
            assert!(listeners.first(Netns(1), DST).is_none() && listeners.last(Netns(1), 80).is_none());
        }
        assert!(listeners.ends_at(Netns(1), DST).next().is_none());
    }

    /// As the entrypoint of a database: it listens on 127.0.0.1 while it prepares, and then on all addresses.
    #[test]
    fn each_address_has_its_own_first_and_last_listener() {
        let mut listeners = Listeners::default();
        let at = |addr: [u8; 4], begins| Listen { addr: (addr, 80).into(), ..listen(1, begins) };
        listeners.observe(1, &at([127, 0, 0, 1], true));
        listeners.observe(2, &at([127, 0, 0, 1], false));
        assert!(!listeners.knows(Netns(1), DST) && listeners.last(Netns(1), 80).is_some_and(|(time, _)| *time == 2));
        listeners.observe(3, &at([0, 0, 0, 0], true));
        assert_eq!(listeners.first(Netns(1), DST).map(|(time, _)| time), Some(3));
        listeners.observe(4, &at([127, 0, 0, 1], true));
        assert_eq!(listeners.last_at(Netns(1), DST).map(|(time, _)| *time), Some(3));
        listeners.observe(5, &at([10, 88, 0, 2], false));
        assert!(listeners.first(Netns(1), DST).is_none(), "one had listened there before");
    }
}
