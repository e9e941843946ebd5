//! NodePorts from `/proc/net/ip_vs` (`ip_vs_info_seq_show`, net/netfilter/ipvs/ip_vs_ctl.c).
//!
//! kube-proxy makes one virtual service for each NodePort and node address. It makes others for each cluster, external and load
//! balancer address, and binds these addresses to the dummy link kube-ipvs0. So a TCP service is a NodePort if its address is on
//! a link that is no dummy.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{NetfilterError, Ports};
use tracer_model::event::NodePort;
use tracer_node::links::Link;
use tracer_node::procfs::NodeNetns;

/// The limit of backends that are kept of a Service: these are enough to find the Service's name.
const MAX_BACKENDS: usize = 64;

/// How many virtual services without a backend are kept.
const MAX_WITHOUT: usize = 1024;

pub(super) fn read(node: &NodeNetns, links: &[Link]) -> Result<Ports, NetfilterError> {
    let path = node.net_file("ip_vs");
    let failed = |source| NetfilterError::Ipvs { path: path.display().to_string(), source };
    match fs::File::open(&path) {
        Ok(file) => parse(BufReader::new(file), links).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ports::default()),
        Err(error) => Err(failed(error)),
    }
}

#[derive(Default)]
struct Virtual {
    addrs: Vec<IpAddr>,
    backends: Vec<SocketAddr>,
    on_node: bool,
}

pub(super) fn parse(table: impl BufRead, links: &[Link]) -> io::Result<Ports> {
    let holders = holders(links);
    let mut ports: BTreeMap<u16, Virtual> = BTreeMap::new();
    let (mut current, mut without) = (None, WithoutBackend::default());
    for line in table.lines() {
        let line = line?;
        if let Some(backend) = line.strip_prefix("  -> ") {
            let service = current.and_then(|port| ports.get_mut(&port));
            add_backend(service, backend);
            without.last = without.last.filter(|_| !takes_new(backend));
        } else {
            let at = virtual_service(&line);
            without.next(at);
            current = at.and_then(|at| add_service(&mut ports, &holders, at));
        }
    }
    without.next(None);
    let ports = ports.into_iter().filter(|(_, service)| service.on_node).map(to_node_port).collect();
    Ok((ports, without.found))
}

/// `10.88.0.4:8443 Masq 1 0 0`, with its weight: one of weight 0 keeps its connections and takes no others.
fn takes_new(backend: &str) -> bool {
    backend.split_whitespace().nth(2).is_none_or(|weight| weight != "0")
}

/// Collects the virtual services without a backend that takes new connections.
#[derive(Default)]
struct WithoutBackend {
    found: Vec<SocketAddr>,
    /// The latest service, while no such backend has followed.
    last: Option<SocketAddr>,
}

impl WithoutBackend {
    fn next(&mut self, service: Option<SocketAddr>) {
        let room = self.found.len() < MAX_WITHOUT;
        self.found.extend(std::mem::replace(&mut self.last, service).filter(|_| room));
    }
}

/// Parses a line such as `TCP  0A0A0A0A:1F90 rr `.
fn virtual_service(line: &str) -> Option<SocketAddr> {
    endpoint(line.strip_prefix("TCP")?.split_whitespace().next()?)
}

fn to_node_port((port, service): (u16, Virtual)) -> NodePort {
    NodePort { port, addrs: service.addrs, backends: service.backends, ..NodePort::default() }
}

/// The addresses of the links, and whether each is certainly the node's own. That of a dummy may be a Service's: it counts
/// only if the port is a NodePort on another address.
fn holders(links: &[Link]) -> HashMap<IpAddr, bool> {
    let usable = links.iter().filter(|link| !link.holds_service_addresses());
    usable.flat_map(|link| link.state.addrs.iter().map(|addr| (*addr, !link.is_dummy()))).collect()
}

/// Returns the port if the address is on a link of the node.
fn add_service(ports: &mut BTreeMap<u16, Virtual>, holders: &HashMap<IpAddr, bool>, at: SocketAddr) -> Option<u16> {
    let is_own = *holders.get(&at.ip())?;
    let service = ports.entry(at.port()).or_default();
    service.on_node |= is_own;
    service.addrs.push(at.ip());
    Some(at.port())
}

fn add_backend(service: Option<&mut Virtual>, line: &str) {
    let (Some(service), Some(at)) = (service, line.split_whitespace().next().and_then(endpoint)) else { return };
    if service.backends.len() < MAX_BACKENDS && !service.backends.contains(&at) {
        service.backends.push(at);
    }
}

/// Parses `0A580004:1F90` or `[fd00:0000:…:0001]:1F90`; all numbers are hexadecimal.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (addr, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = match addr.strip_prefix('[') {
        Some(v6) => IpAddr::from(v6.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?),
        None => IpAddr::from(Ipv4Addr::from(u32::from_str_radix(addr, 16).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::LinkState;
    use tracer_testing::address;

    const TABLE: &str = include_str!("../../testdata/ip_vs.txt");

    fn link(name: &str, kind: Option<&str>, addrs: &[&str]) -> Link {
        let addrs = addrs.iter().map(|addr| address(addr)).collect();
        let state = LinkState {
            ifindex: 1,
            name: name.into(),
            up: true,
            loopback: name == "lo",
            addrs,
            ..LinkState::default()
        };
        Link { state, kind: kind.map(Into::into), ..Link::default() }
    }

    fn node() -> Vec<Link> {
        vec![
            link("lo", None, &["127.0.0.1", "::1"]),
            link("eth0", None, &["10.23.77.129", "fd00::129"]),
            link("nodelocaldns", Some("dummy"), &["169.254.20.10", "10.96.0.10"]),
            link("kube-ipvs0", Some("dummy"), &["10.96.0.1", "10.96.0.10", "10.96.12.7", "192.0.2.80"]),
        ]
    }

    #[test]
    fn node_ports_are_distinguished_from_cluster_addresses() {
        let (ports, without) = parse(TABLE.as_bytes(), &node()).expect("table");
        assert!(without.contains(&address("10.23.77.129:30080")), "{without:?}");
        assert!(!without.iter().any(|at| at.port() == 36704), "{without:?}");
        let numbers: Vec<u16> = ports.iter().map(|port| port.port).collect();
        assert_eq!(numbers, [30080, 36704]);
        let dashboard = &ports[1];
        let addrs: Vec<String> = dashboard.addrs.iter().map(ToString::to_string).collect();
        assert_eq!(addrs, ["10.23.77.129", "169.254.20.10", "fd00::129"]);
        let backends: Vec<String> = dashboard.backends.iter().map(ToString::to_string).collect();
        assert_eq!(backends, ["10.88.0.4:8443", "10.88.0.9:8443", "[fd00:88::4]:8443"]);
        assert!(ports[0].backends.is_empty());
    }

    /// kube-proxy gives an endpoint that ends weight 0.
    #[test]
    fn a_backend_of_weight_0_takes_no_new_connections() {
        let without = |weights: &[&str]| {
            let backends: String = weights.iter().map(|it| format!("  -> 0A580004:1F90 Masq {it} 3 0\n")).collect();
            let text =
                format!("TCP  0A600001:01BB rr\n{backends}TCP  0A600002:01BB rr\n  -> 0A580004:1F90 Masq 1 0 0\n");
            parse(text.as_bytes(), &node()).expect("table").1
        };
        for weights in [&[][..], &["0"], &["0", "0"]] {
            assert_eq!(without(weights), [address("10.96.0.1:443")]);
        }
        assert!(without(&["0", "1"]).is_empty() && without(&["1", "0"]).is_empty());
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let text = "TCP\nTCP  zz:1F90 rr\n  -> \n  -> 0A580004:1F90 Masq 1 0 0\nFWM  00000001 rr\n";
        assert_eq!(parse(text.as_bytes(), &node()).expect("table"), Ports::default());
    }
}
