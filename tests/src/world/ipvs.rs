//! A NodePort Service as kube-proxy writes it in IPVS mode: the ClusterIP on `kube-ipvs0`, one
//! virtual service per address of the node, masquerading.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use super::{BRIDGE, NODE};
use crate::net::Netns;

/// Where iptables is told to see bridged packets: with it the backend's RST is translated back.
const BRIDGED: &str = "bridge/bridge-nf-call-iptables";

/// Makes the Service, with one backend or none.
pub fn node_port(node: &Netns, port: u16, backend: Option<SocketAddr>) -> Result<()> {
    node.ip("link add kube-ipvs0 type dummy\naddr add 10.96.0.10/32 dev kube-ipvs0\n")?;
    node.sysctl(&[("ipv4/vs/conntrack", "1")])?;
    if Path::new("/proc/sys/net").join(BRIDGED).exists() {
        node.sysctl(&[(BRIDGED, "1")])?;
    }
    for address in ["10.96.0.10:443".to_owned(), format!("{BRIDGE}:{port}"), format!("{NODE}:{port}")] {
        node.run("ipvsadm", &["-A", "-t", &address, "-s", "rr"], "")?;
        if let Some(backend) = backend {
            node.run("ipvsadm", &["-a", "-t", &address, "-r", &backend.to_string(), "-m"], "")?;
        }
    }
    Ok(())
}
