//! A NodePort Service as kube-proxy makes it in IPVS mode: the ClusterIP on `kube-ipvs0`, and one virtual service with
//! masquerading for each address of the node.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use super::{BRIDGE, BRIDGE6, NODE, NODE6};
use crate::net::Netns;

/// Shows bridged packets to iptables, so that the backend's RST is translated back.
const BRIDGED: &str = "bridge/bridge-nf-call-iptables";

/// The link with the ClusterIPs.
const DEVICE: &str = "kube-ipvs0";

/// Makes the Service, with one backend or none.
pub fn node_port(node: &Netns, port: u16, backend: Option<SocketAddr>) -> Result<()> {
    node.ip(|ip| {
        ip.dummy(DEVICE)?;
        ip.address([10, 96, 0, 10], 32, DEVICE)?;
        ip.address([0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0x10], 128, DEVICE)
    })?;
    node.sysctl(&[("ipv4/vs/conntrack", "1")])?;
    if Path::new("/proc/sys/net").join(BRIDGED).exists() {
        node.sysctl(&[(BRIDGED, "1")])?;
    }
    let v4 = ["10.96.0.10:443".to_owned(), format!("{BRIDGE}:{port}"), format!("{NODE}:{port}")];
    let v6 = ["[fd00:10:96::10]:443".to_owned(), format!("[{BRIDGE6}]:{port}"), format!("[{NODE6}]:{port}")];
    for address in if backend.is_some_and(|b| b.is_ipv6()) { v6 } else { v4 } {
        node.run("ipvsadm", &["-A", "-t", &address, "-s", "rr"], "")?;
        if let Some(backend) = backend {
            node.run("ipvsadm", &["-a", "-t", &address, "-r", &backend.to_string(), "-m"], "")?;
        }
    }
    Ok(())
}

/// Adds ClusterIPs, each with one backend, in a single call of ipvsadm.
pub fn cluster_ips(node: &Netns, count: u32, backend: SocketAddr) -> Result<()> {
    let service = |n: u32| format!("10.{}.{}.{}:80", 100 + (n >> 16), (n >> 8) & 255, n & 255);
    let lines = (0..count).map(|n| format!("-A -t {0} -s rr\n-a -t {0} -r {backend} -m\n", service(n)));
    node.run("ipvsadm", &["-R"], &lines.collect::<String>()).map(drop)
}
