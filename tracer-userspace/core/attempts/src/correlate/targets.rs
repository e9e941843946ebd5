//! The inspections of targets for which attempts waited: the last results, and how often their cgroups were throttled.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::attempt::Attempt;
use tracer_model::event::{ContainerLimits, Inspection, Netns, PodSockets, Serving, Throttled};
use tracer_model::recent::{Recent, remember};

const MAX_TARGETS: usize = 1024;
/// Readings kept of one target: inspections of one attempt are fewer than 20, and some probes of a port run at once.
const MAX_READINGS: usize = 32;
/// What the readings of all targets may hold, in parts of 512 bytes at most: 4 MiB. Servers of 16 processes would
/// otherwise take 64 MiB with 250 pods that do not answer.
const MAX_PARTS: usize = 8192;
/// Inspections kept of one target: those that the next attempts to it ask for must not replace an earlier one's.
const MAX_INSPECTIONS: usize = 4;

/// A target, and the namespace that connects to it.
type Target = (Netns, SocketAddr);

/// The throttling of a target's cgroups, at several times.
type Readings = VecDeque<(u64, Vec<Throttled>)>;

/// The server of a target, at several times.
type Servers = VecDeque<(u64, Serving)>;

/// The last inspections of targets.
#[derive(Debug, Default)]
pub struct Targets {
    inspections: Recent<Target, VecDeque<(u64, Inspection)>, MAX_TARGETS>,
    throttling: Recent<Target, Readings, MAX_TARGETS>,
    servers: Recent<Target, Servers, MAX_TARGETS>,
    sockets: Recent<Target, (u64, PodSockets), MAX_TARGETS>,
    /// The limits of containers, by id, at several times.
    limits: Recent<String, VecDeque<(u64, ContainerLimits)>, MAX_TARGETS>,
    /// The namespace and link that last had an address; kept when the address is gone.
    holders: Recent<(Netns, IpAddr), Holder, MAX_TARGETS>,
    /// How an address went from one namespace to another.
    moves: Recent<(Netns, IpAddr), [Holder; 2], MAX_TARGETS>,
}

/// A namespace and its link with an address, and when that was read last.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub netns: Netns,
    pub ifindex: u32,
    pub read: u64,
}

impl Targets {
    pub(super) fn observe(&mut self, time: u64, reading: &Inspection) {
        let target = (reading.from, reading.target);
        if !reading.throttled.is_empty() {
            remember(MAX_READINGS, self.throttling.or_default(target), (time, reading.throttled.clone()));
            bound(&mut self.throttling, |throttled| 1 + throttled.len());
        }
        if let Some(serving) = &reading.serving {
            remember(MAX_READINGS, self.servers.or_default(target), (time, (**serving).clone()));
            bound(&mut self.servers, parts);
        }
        let (addr, read) = (reading.target.ip(), time);
        let link = reading.links.iter().find(|link| !link.loopback && link.addrs.contains(&addr));
        if let (Some(netns), Some(link)) = (reading.netns, link) {
            let place = (reading.from, addr);
            let holder = Holder { netns, ifindex: link.ifindex, read };
            if let Some(before) = self.holders.get(&place).filter(|before| before.netns != netns) {
                self.moves.insert(place, [*before, holder]);
            }
            self.holders.insert(place, holder);
        }
        // What it shows of the server is in `servers`.
        let serving = reading.serving.as_ref().map(|_| Box::default());
        remember(
            MAX_INSPECTIONS,
            self.inspections.or_default(target),
            (time, Inspection { serving, ..reading.clone() }),
        );
    }

    pub(super) fn observe_sockets(&mut self, time: u64, reading: &PodSockets) {
        // A reading that found no pod shows nothing of the last one.
        if reading.netns.is_some() {
            self.sockets.insert((reading.from, reading.target), (time, reading.clone()));
        }
    }

    pub(super) fn observe_limits(&mut self, time: u64, reading: &ContainerLimits) {
        remember(MAX_INSPECTIONS, self.limits.or_default(reading.id.clone()), (time, reading.clone()));
    }

    /// The last readings of the limits of a container, latest first.
    pub fn limits(&self, id: &str) -> impl Iterator<Item = (u64, &ContainerLimits)> {
        self.limits.get(&id.to_owned()).into_iter().flatten().rev().map(|(time, reading)| (*time, reading))
    }

    /// Another namespace has this number now: what was read there belongs to the earlier one.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.sockets.retain(|_, (_, reading)| reading.netns != Some(netns));
        self.holders.retain(|_, holder| holder.netns != netns);
        self.moves.retain(|_, holders| holders.iter().all(|holder| holder.netns != netns));
        self.inspections.retain(|_, readings| readings.back().is_none_or(|(_, last)| last.netns != Some(netns)));
    }

    /// The last reading of the sockets of a target's pod.
    pub(super) fn sockets(&self, from: Netns, target: SocketAddr) -> Option<(u64, &PodSockets)> {
        self.sockets.get(&(from, target)).map(|(time, reading)| (*time, reading))
    }

    /// The namespace and link that last had an address, as another namespace sees it.
    pub fn holder(&self, from: Netns, addr: IpAddr) -> Option<(Netns, u32)> {
        self.holders.get(&(from, addr)).map(|holder| (holder.netns, holder.ifindex))
    }

    /// The last change of the namespace that has an address: the earlier one as it was read last, the later one first.
    pub fn moved(&self, from: Netns, addr: IpAddr) -> Option<[Holder; 2]> {
        self.moves.get(&(from, addr)).copied()
    }

    /// The last inspections of an attempt's target, latest first. They may be older than the attempt.
    pub fn inspections(&self, attempt: &Attempt) -> impl Iterator<Item = (u64, &Inspection)> + use<'_> {
        let target = attempt.flow.dst;
        attempt.netns.into_iter().flat_map(move |from| self.inspections_from(from, target))
    }

    /// The last inspections of a target as that namespace sees it, latest first.
    pub(super) fn inspections_from(&self, from: Netns, target: SocketAddr) -> impl Iterator<Item = (u64, &Inspection)> {
        self.inspections.get(&(from, target)).into_iter().flatten().rev().map(|(time, reading)| (*time, reading))
    }

    /// The last inspection of each target, and its time.
    pub fn all_inspections(&self) -> impl Iterator<Item = &(u64, Inspection)> {
        self.inspections.values().filter_map(VecDeque::back)
    }

    /// Readings of the throttling of its cgroups, oldest first.
    pub fn throttling(&self, from: Netns, target: SocketAddr) -> impl Iterator<Item = (u64, &[Throttled])> {
        let readings = self.throttling.get(&(from, target)).into_iter().flatten();
        readings.map(|(time, throttled)| (*time, throttled.as_slice()))
    }

    /// Readings of its server, oldest first.
    pub fn servings(&self, from: Netns, target: SocketAddr) -> impl DoubleEndedIterator<Item = (u64, &Serving)> {
        self.servers.get(&(from, target)).into_iter().flatten().map(|(time, serving)| (*time, serving))
    }

    /// Readings of all servers.
    pub fn all_servings(&self) -> impl Iterator<Item = (u64, &Serving)> {
        self.servers.values().flatten().map(|(time, serving)| (*time, serving))
    }

    /// Readings of the throttling of all targets.
    pub fn all_throttling(&self) -> impl Iterator<Item = (u64, &[Throttled])> {
        self.throttling.values().flatten().map(|(time, throttled)| (*time, throttled.as_slice()))
    }

    /// The namespace that has an address, as an inspection from `from` found.
    pub(super) fn netns_of(&self, from: Netns, addr: IpAddr) -> Option<Netns> {
        let here = self.all_inspections().map(|(_, reading)| reading).filter(|reading| reading.from == from);
        here.filter(|reading| reading.target.ip() == addr).find_map(|reading| reading.netns)
    }
}

/// The parts of a reading: its head, its processes, and the pressure of their cgroups with what memory limits did.
fn parts(serving: &Serving) -> usize {
    let redirect = serving.redirect.as_ref().map_or(0, |redirect| parts(&redirect.serving));
    1 + serving.processes.len() + 2 * serving.pressure.len() + redirect
}

/// Drops the oldest readings, and targets without one.
fn bound<T>(all: &mut Recent<Target, VecDeque<(u64, T)>, MAX_TARGETS>, parts: impl Fn(&T) -> usize) {
    while all.values().flatten().map(|(_, reading)| parts(reading)).sum::<usize>() > MAX_PARTS {
        let oldest = all.values_mut().min_by_key(|readings| readings.front().map(|(time, _)| *time));
        let Some(readings) = oldest else { return };
        readings.pop_front();
        if readings.is_empty() {
            all.retain(|_, readings| !readings.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::{NODE, POD, Pressure, ServerProcess, server_process};

    fn target(number: usize) -> SocketAddr {
        let [high, low, ..] = u16::try_from(number).expect("a number").to_be_bytes();
        SocketAddr::from(([10, 88, high, low], 80))
    }

    fn reading(number: usize, netns: Option<Netns>) -> Inspection {
        let throttled = vec![Throttled { cgroup: "/pod".into(), times: 1, micros: 1, period_us: None }];
        Inspection { netns, throttled, ..Inspection::nothing(NODE, target(number)) }
    }

    #[test]
    fn the_last_readings_are_kept() {
        let mut targets = Targets::default();
        (1..=34).for_each(|time| targets.observe(time, &reading(1, None)));
        targets.observe(35, &Inspection { throttled: Vec::new(), ..reading(1, None) });
        let times: Vec<u64> = targets.throttling(NODE, target(1)).map(|(time, _)| time).collect();
        assert_eq!(times, (3..=34).collect::<Vec<_>>(), "nothing was read at 35");
        let times: Vec<u64> = targets.inspections_from(NODE, target(1)).map(|(time, _)| time).collect();
        assert_eq!(times, [35, 34, 33, 32]);
        assert!(targets.inspections_from(POD, target(1)).next().is_none(), "as another namespace sees it");
    }

    /// A server of 16 processes in the cgroup of a container, as kubelet and containerd name it.
    fn large_server() -> Serving {
        let cgroup = format!(
            "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{0}.slice/cri-containerd-{0}{0}.scope",
            "0".repeat(36)
        );
        let process = |pid| ServerProcess { cpu_cgroup: Some(cgroup.clone()), ..server_process(pid, 1) };
        let memory_events = ["high", "max", "oom_kill"].map(|name| (name.to_owned(), 0)).into();
        let own = Pressure { of: cgroup.clone(), memory_events, ..Pressure::default() };
        let node = Pressure { of: "node".to_owned(), ..Pressure::default() };
        Serving { processes: (1..=16).map(process).collect(), pressure: vec![own, node], ..Serving::default() }
    }

    #[test]
    fn a_part_has_at_most_512_bytes() {
        let all = large_server();
        let text = |text: &str| text.len().next_multiple_of(16) + 16;
        let process = |it: &ServerProcess| size_of_val(it) + text(&it.comm) + it.cpu_cgroup.as_deref().map_or(0, text);
        // A node of a map has room for eleven entries.
        let map = 11 * size_of::<(String, u64)>() + 16 + 3 * text("oom_kill");
        let pressure =
            |it: &Pressure| size_of_val(it) + text(&it.of) + if it.memory_events.is_empty() { 0 } else { map };
        let of_processes: usize = all.processes.iter().map(process).sum();
        let of_pressure: usize = all.pressure.iter().map(pressure).sum();
        let bytes = size_of::<(u64, Serving)>() + of_processes + of_pressure;
        assert!((400..=512).contains(&(bytes / parts(&all))), "{bytes} bytes in {} parts", parts(&all));
    }

    #[test]
    fn the_readings_of_all_servers_have_a_bound() {
        let mut targets = Targets::default();
        let observe = |targets: &mut Targets, time, number| {
            let serving = Some(Box::new(large_server()));
            targets.observe(time, &Inspection { serving, ..reading(number, None) });
        };
        let count = |targets: &Targets, number| targets.servings(NODE, target(number)).count();
        (1..=30).for_each(|number| (1..=20).for_each(|time| observe(&mut targets, time, number)));
        assert!((1..=30).all(|number| count(&targets, number) == 13), "each keeps its last ones");
        (31..=400).for_each(|number| observe(&mut targets, 21, number));
        assert_eq!([1, 30, 400].map(|number| count(&targets, number)), [0, 1, 1], "the oldest go first");
        (22..=34).for_each(|time| observe(&mut targets, time, 1));
        assert_eq!(count(&targets, 1), 13, "the others are older");
        let kept: usize = targets.all_servings().map(|(_, it)| parts(it)).sum();
        assert!((MAX_PARTS / 2..=MAX_PARTS).contains(&kept), "{kept}");
    }

    #[test]
    fn a_reading_that_found_no_pod_does_not_replace_the_last_one() {
        let mut targets = Targets::default();
        targets.observe_sockets(1, &PodSockets::nothing(NODE, target(1), Some(POD)));
        targets.observe_sockets(2, &PodSockets::nothing(NODE, target(1), None));
        assert_eq!(targets.sockets(NODE, target(1)).map(|(time, _)| time), Some(1));
    }

    #[test]
    fn the_namespace_of_an_address_is_found_by_an_inspection_from_the_same_namespace() {
        let mut targets = Targets::default();
        targets.observe(1, &reading(1, None));
        targets.observe(2, &reading(2, Some(POD)));
        let find = |from, number| targets.netns_of(from, target(number).ip());
        assert_eq!([find(NODE, 1), find(NODE, 2), find(POD, 2)], [None, Some(POD), None]);
    }
}
