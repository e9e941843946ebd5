//! A node in network namespaces: a bridge `cni0` as a CNI plugin makes it, the node's own address on `eth0`, and pods
//! behind veth pairs. The machine's own namespace is never changed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup::{Cgroup, Freezer, Undo};
use crate::helper::Role;
use crate::ip::{Mac, Part, Route, RouteType};
use crate::net::{Netns, is_installed, own_name};
use crate::options::Options;
use crate::proc::Proc;
use crate::server::REQUEST_READ;
use crate::wait::until;

pub mod hung;
pub mod ipvs;
pub(crate) mod link;
pub mod sweep;
pub(crate) mod tap;

/// The node's address on the bridge: the source of probes to pods.
pub const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// The same in IPv6.
pub const BRIDGE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x88, 0, 0, 0, 0, 1);
/// The link-layer address of the bridge.
///
/// Without it, a bridge takes the lowest address of its ports, and another one when that port is removed. A pod of the
/// last scenario may be removed at any time. Packets that a pod still sends to the old address are lost.
pub const BRIDGE_MAC: Mac = [0x0a, 0x58, 0x0a, 0x58, 0x00, 0x01];
/// The node's own address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);
/// The same in IPv6.
pub const NODE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x89, 0, 0, 0, 0, 1);
/// A router on a second uplink.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 2);
/// The numbers of pods.
pub const PODS: std::ops::RangeInclusive<u16> = 2..=240;

static NODES: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

pub fn pod_ip(index: u16, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 88, 0, u8::try_from(index).unwrap_or(u8::MAX)).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x88, 0, 0, 0, 0, index).into(),
    }
}

/// A pod: a namespace on the bridge, and its processes.
#[derive(Debug)]
pub struct Pod {
    pub ns: Netns,
    /// The last part of its addresses.
    pub index: u16,
    servers: Vec<Proc>,
    // Dropped after the processes in them.
    groups: Vec<Cgroup>,
}

impl Pod {
    pub fn addr(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(pod_ip(self.index, family), port)
    }

    /// Starts a server in the pod and waits until it listens.
    pub fn serve(&mut self, options: &Options, args: &[&str]) -> Result<()> {
        self.servers.push(serve(&self.ns, options, args)?);
        Ok(())
    }

    /// Starts a process that does not listen, in a cgroup with the name of this container.
    pub fn run_in_container(&mut self, id: &str) -> Result<()> {
        let mut command = self.ns.command("sh");
        command.args(["-c", "read line"]);
        self.servers.push(Proc::spawn(command)?);
        self.join(Cgroup::create(id)?)
    }

    /// Waits until its newest server has read a request.
    pub(crate) fn wait_for_request(&self, patience: Duration) -> Result<()> {
        let line = self.server()?.line(patience)?;
        if line == REQUEST_READ { Ok(()) } else { bail!("a server that hangs: {line}") }
    }

    /// Moves its newest server into the first of these cgroups. The others are above that one.
    pub fn join(&mut self, groups: impl IntoIterator<Item = Cgroup>) -> Result<()> {
        let mut groups: Vec<Cgroup> = groups.into_iter().collect();
        groups.first().context("a cgroup")?.add(self.server()?.pid())?;
        self.groups.append(&mut groups);
        Ok(())
    }

    /// Waits until the first thread of its newest server is in state D.
    pub fn wait_until_blocked(&self) -> Result<()> {
        let pid = self.server()?.pid();
        until(&format!("{pid} is in state D"), || Ok(state_of(pid, Pid::from_raw(pid.cast_signed()))? == Some('D')))
    }

    /// Stops its newest server with SIGSTOP. It can still be killed.
    pub fn halt(&self) -> Result<()> {
        halt(self.server()?.pid())
    }

    /// Freezes its newest server, by its own cgroup or by the one above, until the guard is dropped.
    pub fn freeze(&mut self, by: Freezer, above: bool) -> Result<Undo> {
        let (groups, frozen) = Cgroup::frozen(by, above, self.server()?.pid())?;
        self.groups.extend(groups);
        Ok(frozen)
    }

    /// Gives hardly any CPU time to its newest server and to a process that always wants some, while the neighbour lives.
    ///
    /// Without that process, a request that wakes the server may get it the pod's turn at once.
    pub fn starve(&mut self, own: &Proc, neighbour: &Proc) -> Result<()> {
        let groups = Cgroup::starved()?;
        let cpu = one_cpu()?;
        halt(own.pid())?;
        let joined = ran(neighbour.pid())?;
        for (process, groups) in [
            (own, groups.own.as_slice()),
            (self.server()?, groups.own.as_slice()),
            (neighbour, std::slice::from_ref(&groups.neighbour)),
        ] {
            groups.iter().try_for_each(|group| group.add(process.pid()))?;
            tasks(process.pid())?.into_iter().try_for_each(|task| sched_setaffinity(task, &cpu))?;
        }
        let (own, neighbour) = (own.pid(), neighbour.pid());
        until(&format!("{neighbour} has the CPU"), || Ok(ran(neighbour)? > joined + Duration::from_millis(5)))?;
        let began = ran(own)?;
        kill(Pid::from_raw(own.cast_signed()), Signal::SIGCONT)?;
        let mut before = (began, ran(neighbour)?);
        until(&format!("{own} has had its turn"), || {
            let now = (ran(own)?, ran(neighbour)?);
            if now.0 != before.0 {
                before = now;
            }
            // If the turn was cut short, the next one comes soon.
            let pause = (now.0 - began) * groups.ratio;
            Ok(pause > Duration::from_secs(20) && now.1 - before.1 > Duration::from_millis(50))
        })?;
        self.groups.extend(groups.settle()?);
        Ok(())
    }

    fn server(&self) -> Result<&Proc> {
        self.servers.last().context("a server")
    }

    pub fn stop(&mut self) {
        self.servers.clear();
    }
}

fn halt(pid: u32) -> Result<()> {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP)?;
    // `kill` only sends the signal: a running thread continues until it handles it.
    until(&format!("{pid} is stopped"), || is_stopped(pid))
}

/// Whether all threads of the process are in state T.
fn is_stopped(pid: u32) -> Result<bool> {
    for task in tasks(pid)? {
        if state_of(pid, task)? != Some('T') {
            return Ok(false);
        }
    }
    Ok(true)
}

fn state_of(pid: u32, task: Pid) -> Result<Option<char>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{task}/stat"))?;
    Ok(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()))
}

fn tasks(pid: u32) -> Result<Vec<Pid>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    entries.map(|entry| Ok(Pid::from_raw(entry?.file_name().to_str().context("a thread")?.parse()?))).collect()
}

/// How long the first thread of a process has run.
fn ran(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    Ok(Duration::from_nanos(text.split(' ').next().context("a time")?.parse()?))
}

/// The last CPU that this process may use.
fn one_cpu() -> Result<CpuSet> {
    let usable = sched_getaffinity(Pid::from_raw(0))?;
    let last = (0..CpuSet::count()).rev().find(|cpu| usable.is_set(*cpu) == Ok(true)).context("a CPU")?;
    let mut one = CpuSet::new();
    one.set(last)?;
    Ok(one)
}

/// A node with its pods. On drop, its processes are killed first, then its namespaces are removed.
#[derive(Debug)]
pub struct TestNode {
    pods: Vec<Pod>,
    servers: Vec<Proc>,
    // Dropped after the processes in them.
    groups: Vec<Cgroup>,
    /// The other ends of uplinks. An uplink, and its routes, would go with its other end before the verdict is there.
    outsides: Vec<Arc<Netns>>,
    next: u16,
    name: String,
    pub node: Netns,
}

impl TestNode {
    pub fn new(name: &str) -> Result<Self> {
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let name = own_name(format_args!("{number}-{name}"));
        let node = Netns::create(&name)?;
        let (pods, servers, groups, outsides) = Default::default();
        let node = Self { pods, servers, groups, outsides, next: *PODS.start(), name, node };
        node.lay_out().context("lay out the node")?;
        Ok(node)
    }

    fn lay_out(&self) -> Result<()> {
        self.node.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/accept_dad", "0"),
        ])?;
        self.node.ip(|ip| {
            ip.up("lo")?;
            ip.bridge("cni0", Some(BRIDGE_MAC))?;
            ip.up("cni0")?;
            ip.address(BRIDGE, 24, "cni0")?;
            ip.address(BRIDGE6, 64, "cni0")?;
            ip.bridge("eth0", None)?;
            ip.up("eth0")?;
            ip.address(NODE, 24, "eth0")?;
            ip.address(NODE6, 64, "eth0")
        })
    }

    /// Adds a pod with addresses and a default route.
    pub fn pod(&mut self) -> Result<&mut Pod> {
        self.pod_behind(None)
    }

    /// Adds a pod. What it sends arrives that much later.
    pub fn distant_pod(&mut self, delay: Duration) -> Result<&mut Pod> {
        self.pod_behind(Some(delay))
    }

    fn pod_behind(&mut self, delay: Option<Duration>) -> Result<&mut Pod> {
        let index = self.add_namespace(delay)?;
        let pod = self.pod_at(index)?;
        set_addresses(&pod.ns, index)?;
        pod.ns.ip(|ip| {
            ip.add(&Route::default_via(BRIDGE))?;
            ip.add(&Route::default_via(BRIDGE6).over("eth0"))
        })?;
        if let IpAddr::V6(address) = pod_ip(index, Family::V6) {
            link::wait_until_solicitable(&pod.ns, address)?;
        }
        self.wait_until_reachable(index)
    }

    /// Adds a pod with its own network stack, as an appliance has one: its kernel has no address.
    pub fn bare_pod(&mut self) -> Result<&mut Pod> {
        let index = self.add_namespace(None)?;
        self.pod_at(index)?.ns.ip(|ip| ip.up("lo").and_then(|()| ip.up("eth0")))?;
        self.wait_until_reachable(index)
    }

    /// Waits until packets pass between the pod and the node.
    fn wait_until_reachable(&mut self, index: u16) -> Result<&mut Pod> {
        link::wait_until_running(&self.node, &[&format!("v{index}"), "cni0"])?;
        let pod = self.pod_at(index)?;
        link::wait_until_running(&pod.ns, &["eth0"])?;
        Ok(pod)
    }

    /// Makes a namespace with `eth0` on the bridge, down and without address.
    fn add_namespace(&mut self, delay: Option<Duration>) -> Result<u16> {
        let index = self.next_index();
        if !PODS.contains(&index) {
            bail!("no pod number {index}");
        }
        let ns = Netns::create(&format!("{}-p{index}", self.name))?;
        ns.sysctl(&[("ipv4/ip_forward", "0"), ("ipv6/conf/default/accept_dad", "0")])?;
        let link = format!("v{index}");
        match delay {
            Some(delay) => tap::connect(self.node.enter(|| tap::make(&link))?, ns.enter(|| tap::make("eth0"))?, delay),
            None => self.node.ip(|ip| ip.veth(&link, "eth0", ns.as_fd()))?,
        }
        self.node.ip(|ip| {
            ip.set_master(&link, "cni0")?;
            ip.up(&link)
        })?;
        self.pods.push(Pod { ns, index, servers: Vec::new(), groups: Vec::new() });
        Ok(index)
    }

    /// Replaces a pod by a new one with the same addresses.
    pub fn replace(&mut self, index: u16) -> Result<&mut Pod> {
        self.pods.retain(|pod| pod.index != index);
        // The link of a namespace that ends may remain for a moment.
        let _ = self.node.ip(|ip| ip.delete(&format!("v{index}")));
        self.node.ip(|ip| ip.forget_neighbours("cni0"))?;
        let next = std::mem::replace(&mut self.next, index);
        let made = self.pod().map(|pod| pod.index);
        self.next = next;
        self.pod_at(made?)
    }

    /// Starts a server in the node's namespace, as a hostNetwork pod does.
    pub fn serve(&mut self, options: &Options, args: &[&str]) -> Result<()> {
        self.servers.push(serve(&self.node, options, args)?);
        Ok(())
    }

    /// Starts a server of the hostNetwork pod with this uid, and returns its pid.
    pub fn serve_in_pod(&mut self, uid: &str, options: &Options, args: &[&str]) -> Result<u32> {
        self.serve(options, args)?;
        let (pid, groups) = (self.servers.last().context("a server")?.pid(), Cgroup::of_pod(uid)?);
        groups[0].add(pid)?;
        self.groups.extend(groups);
        Ok(pid)
    }

    /// Starts a server in the namespace at the other end of an uplink.
    pub fn serve_outside(&mut self, outside: &Netns, options: &Options, args: &[&str]) -> Result<()> {
        self.servers.push(serve(outside, options, args)?);
        Ok(())
    }

    /// Stops the newest server in the node's namespace with SIGSTOP. It can still be killed.
    pub fn halt(&self) -> Result<()> {
        halt(self.servers.last().context("no server on the node")?.pid())
    }

    pub fn pod_at(&mut self, index: u16) -> Result<&mut Pod> {
        self.pods.iter_mut().find(|p| p.index == index).with_context(|| format!("pod {index}"))
    }

    /// Adds a pod behind a router and returns its number. The router's link to the node has the given MTU.
    pub fn routed_pod(&mut self, mtu: u16) -> Result<u16> {
        let router = self.pod()?.index;
        let index = self.next_index();
        let server = Netns::create(&format!("{}-p{index}", self.name))?;
        let (v4, via) = (pod_ip(index, Family::V4), pod_ip(router, Family::V4));
        let inner = self.pod_at(router)?;
        inner.ns.sysctl(&[("ipv4/ip_forward", "1")])?;
        inner.ns.ip(|ip| {
            ip.veth("r1", "eth0", server.as_fd())?;
            ip.up("r1")?;
            ip.add(&Route::to_host(v4).over("r1"))?;
            ip.set_mtu("eth0", mtu)
        })?;
        inner.ns.sysctl(&[("ipv4/conf/r1/proxy_arp", "1")])?;
        server.ip(|ip| {
            ip.up("lo")?;
            ip.address(v4, 32, "eth0")?;
            ip.up("eth0")?;
            ip.add(&Route::to_host(via).over("eth0"))?;
            ip.add(&Route::default_via(via).over("eth0").onlink())
        })?;
        self.node.ip(|ip| ip.add(&Route::to_host(v4).via(via)))?;
        self.pods.push(Pod { ns: server, index, servers: Vec::new(), groups: Vec::new() });
        Ok(index)
    }

    /// Adds a second uplink. Returns its name and the namespace at its other end, a router that drops packets to pods.
    pub fn uplink(&mut self) -> Result<(String, Arc<Netns>)> {
        let index = self.next_index();
        self.uplink_of(index)
    }

    /// Adds a link behind which a firewall, of no kernel, refuses all TCP of IPv4. Returns its name.
    pub fn refusing_link(&mut self) -> Result<String> {
        let link = format!("rej{}", self.next_index());
        tap::refuse(self.node.enter(|| tap::make(&link))?);
        self.node.ip(|ip| ip.up(&link))?;
        Ok(link)
    }

    fn next_index(&mut self) -> u16 {
        self.next += 1;
        self.next - 1
    }

    fn uplink_of(&mut self, index: u16) -> Result<(String, Arc<Netns>)> {
        let uplink = format!("up{index}");
        let outside = Arc::new(Netns::create(&format!("{}-{uplink}", self.name))?);
        self.outsides.push(Arc::clone(&outside));
        self.node.ip(|ip| {
            ip.veth(&uplink, "eth0", outside.as_fd())?;
            ip.up(&uplink)
        })?;
        outside.sysctl(&[("ipv4/ip_forward", "1")])?;
        outside.ip(|ip| {
            ip.address(OUTSIDE, 24, "eth0")?;
            ip.up("eth0")?;
            ip.add(&Route::to(Ipv4Addr::new(10, 88, 0, 0), 16).kind(RouteType::BlackHole))
        })?;
        link::wait_until_running(&self.node, &[&uplink])?;
        Ok((uplink, outside))
    }

    /// Adds an uplink, and a pod with a macvlan or ipvlan link of it as `eth0`. Returns the pod's number and the name
    /// of the uplink.
    pub fn part_pod(&mut self, part: Part) -> Result<(u16, String)> {
        let index = self.next_index();
        let (uplink, _) = self.uplink_of(index)?;
        let ns = Netns::create(&format!("{}-p{index}", self.name))?;
        ns.sysctl(&[("ipv6/conf/default/accept_dad", "0")])?;
        // Kernel 6.12 refuses a name that a link of the sender's own namespace has; 6.18 does not.
        let name = format!("part{index}");
        self.node.ip(|ip| ip.part_of(&uplink, part, &name, ns.as_fd()))?;
        ns.ip(|ip| ip.rename(&name, "eth0"))?;
        set_addresses(&ns, index)?;
        ns.ip(|ip| {
            ip.add(&Route::to(NODE, 32).over("eth0"))?;
            ip.add(&Route::to(NODE6, 128).over("eth0"))
        })?;
        link::wait_until_running(&ns, &["eth0"])?;
        self.pods.push(Pod { ns, index, servers: Vec::new(), groups: Vec::new() });
        Ok((index, uplink))
    }

    /// An address that no pod has.
    pub fn unused_address(&mut self, family: Family, port: u16) -> SocketAddr {
        let index = self.next_index();
        SocketAddr::new(pod_ip(index, family), port)
    }

    /// Sets the only source port that `connect` may choose, until the end of the scenario.
    pub fn set_source_port(&self, port: u16) -> Result<()> {
        self.set_source_ports(port, port)
    }

    fn set_source_ports(&self, first: u16, last: u16) -> Result<()> {
        self.node.sysctl(&[("ipv4/ip_local_port_range", &format!("{first} {last}"))])
    }

    /// Removes pods, servers and nftables rules of the node, and resets its source ports, for the next scenario.
    pub fn clear(&mut self) -> Result<()> {
        self.pods.clear();
        self.servers.clear();
        self.groups.clear();
        self.outsides.clear();
        self.set_source_ports(32768, 60999)?;
        // Without nft there are no rules.
        if is_installed("nft") { self.node.nft("flush ruleset\n") } else { Ok(()) }
    }
}

/// Sets a pod's `lo` and `eth0` up, with addresses.
fn set_addresses(ns: &Netns, index: u16) -> Result<()> {
    ns.ip(|ip| {
        ip.up("lo")?;
        ip.address(pod_ip(index, Family::V4), 24, "eth0")?;
        ip.address(pod_ip(index, Family::V6), 64, "eth0")?;
        ip.up("eth0")
    })
}

fn serve(ns: &Netns, options: &Options, args: &[&str]) -> Result<Proc> {
    let mut command = options.helper(ns, Role::Pod)?;
    command.args(args);
    let server = Proc::spawn(command)?;
    let line = server.line(options.patience)?;
    if !line.starts_with("listening") {
        bail!("pod {args:?}: {line}");
    }
    Ok(server)
}
