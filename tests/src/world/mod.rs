//! A node in network namespaces: a bridge `cni0` as a CNI plugin makes it, the node's own address
//! on `eth0`, and pods behind veth pairs. The machine's own namespace is never touched.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::net::{Netns, PREFIX};
use crate::options::Options;
use crate::proc::Proc;

pub mod ipvs;
pub mod sweep;

/// The node's end of the bridge: what a probe to a pod comes from.
pub const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// The same in IPv6.
pub const BRIDGE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x88, 0, 0, 0, 0, 1);
/// The node's own address.
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);
/// The same in IPv6.
pub const NODE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x89, 0, 0, 0, 0, 1);
/// First and last number of a pod.
pub const PODS: std::ops::RangeInclusive<u16> = 2..=99;

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// The address family of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// As the results name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

/// The address of pod number `index`.
#[must_use]
pub fn pod_ip(index: u16, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 88, 0, u8::try_from(index).unwrap_or(u8::MAX)).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x88, 0, 0, 0, 0, index).into(),
    }
}

/// A pod: a namespace on the bridge and what runs in it.
#[derive(Debug)]
pub struct Pod {
    /// Its namespace.
    pub ns: Netns,
    /// Its number, the last part of its addresses.
    pub index: u16,
    servers: Vec<Proc>,
}

impl Pod {
    /// Its address and a port.
    #[must_use]
    pub fn addr(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(pod_ip(self.index, family), port)
    }

    /// Starts a server inside and waits until it listens.
    pub fn serve(&mut self, options: &Options, args: &[&str]) -> Result<()> {
        self.servers.push(serve(&self.ns, options, args)?);
        Ok(())
    }
}

/// A node with its pods. Everything goes on drop: processes first, then names.
#[derive(Debug)]
pub struct World {
    pods: Vec<Pod>,
    servers: Vec<Proc>,
    next: u16,
    name: String,
    /// The node's namespace.
    pub node: Netns,
}

impl World {
    /// Makes a node.
    pub fn new(name: &str) -> Result<Self> {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{name}", std::process::id());
        let node = Netns::create(&name)?;
        let world = Self { pods: Vec::new(), servers: Vec::new(), next: *PODS.start(), name, node };
        world.lay_out().context("lay out the node")?;
        Ok(world)
    }

    fn lay_out(&self) -> Result<()> {
        self.node.sysctl(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/accept_dad", "0"),
        ])?;
        self.node.ip(&format!(
            "link set lo up\nlink add cni0 type bridge\nlink set cni0 up\n\
             addr add {BRIDGE}/24 dev cni0\naddr add {BRIDGE6}/64 dev cni0 nodad\n\
             link add eth0 type bridge\nlink set eth0 up\n\
             addr add {NODE}/24 dev eth0\naddr add {NODE6}/64 dev eth0 nodad\n"
        ))
    }

    /// Adds a pod with addresses and a default route.
    pub fn pod(&mut self) -> Result<&mut Pod> {
        let pod = self.plug()?;
        let (v4, v6) = (pod_ip(pod.index, Family::V4), pod_ip(pod.index, Family::V6));
        pod.ns.ip(&format!(
            "link set lo up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
             route add default via {BRIDGE}\nroute add default via {BRIDGE6} dev eth0\n"
        ))?;
        Ok(pod)
    }

    /// Adds a pod whose kernel has no address: an appliance with a stack of its own.
    pub fn bare_pod(&mut self) -> Result<&mut Pod> {
        let pod = self.plug()?;
        pod.ns.ip("link set lo up\nlink set eth0 up\n")?;
        Ok(pod)
    }

    /// A namespace with its `eth0` on the bridge, down and without address.
    fn plug(&mut self) -> Result<&mut Pod> {
        let index = self.next;
        if !PODS.contains(&index) {
            bail!("no pod number {index}");
        }
        self.next += 1;
        let ns = Netns::create(&format!("{}-p{index}", self.name))?;
        ns.sysctl(&[("ipv4/ip_forward", "0"), ("ipv6/conf/default/accept_dad", "0")])?;
        self.node.ip(&format!(
            "link add v{index} type veth peer name eth0 netns {}\nlink set v{index} master cni0 up\n",
            ns.name()
        ))?;
        self.pods.push(Pod { ns, index, servers: Vec::new() });
        self.pods.last_mut().context("the pod just made")
    }

    /// Starts a server in the node's namespace, as a hostNetwork pod.
    pub fn serve(&mut self, options: &Options, args: &[&str]) -> Result<()> {
        self.servers.push(serve(&self.node, options, args)?);
        Ok(())
    }

    /// A pod by number.
    pub fn pod_at(&mut self, index: u16) -> Result<&mut Pod> {
        self.pods.iter_mut().find(|p| p.index == index).with_context(|| format!("pod {index}"))
    }

    /// The only source port that `connect` may take; `None` gives the usual range back.
    pub fn source_port(&self, port: Option<u16>) -> Result<()> {
        let range = port.map_or_else(|| "32768 60999".to_owned(), |p| format!("{p} {p}"));
        self.node.sysctl(&[("ipv4/ip_local_port_range", &range)])
    }

    /// Takes away pods, servers and rules of the node, for the next scenario.
    pub fn clear(&mut self) -> Result<()> {
        self.pods.clear();
        self.servers.clear();
        self.node.nft("flush ruleset\n")
    }
}

fn serve(ns: &Netns, options: &Options, args: &[&str]) -> Result<Proc> {
    let mut command = ns.command(options.bin("pod"));
    command.args(args);
    let server = Proc::spawn(command)?;
    let line = server.line(options.patience)?;
    if !line.starts_with("listening") {
        bail!("pod {args:?}: {line}");
    }
    Ok(server)
}
