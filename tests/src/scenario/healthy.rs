//! Nothing is wrong: no verdict may come, whatever goes on beside it.

use anyhow::Result;
use tracer::classify::label::Label;
use tracer::record::Outcome;

use super::{Scenario, Stage};
use crate::check::Claim;
use crate::dial::{Ending, Kind};
use crate::net::finish;
use crate::pods::{HTTP, TLS, UNSAID_TLS};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("healthy_http", None, http),
    Scenario::new("healthy_http_v6", None, http).v6(),
    Scenario::new("healthy_tcp", None, tcp),
    Scenario::new("healthy_tcp_v6", None, tcp).v6(),
    Scenario::new("healthy_https", None, https),
    Scenario::new("healthy_https_v6", None, https).v6(),
    Scenario::new("healthy_crowd", None, crowd),
    Scenario::new("tls_eof_noise", Some(Label::TlsEofNoise), |s| tls_noise(s, TLS)),
    Scenario::new("tls_eof_noise_v6", Some(Label::TlsEofNoise), |s| tls_noise(s, TLS)).v6(),
    Scenario::new("tls_eof_noise_by_hello", Some(Label::TlsEofNoise), |s| tls_noise(s, UNSAID_TLS)),
];

fn http(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    stage.succeeds(Kind::Http, pod)?;
    let slow = stage.serving("slow:300", HTTP)?;
    stage.succeeds(Kind::Http, slow)
}

fn tcp(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    stage.succeeds(Kind::Tcp, pod)
}

fn https(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("tls", TLS)?;
    stage.succeeds(Kind::Https, pod)
}

/// Thousands of probes; beside them others are refused, reset and dropped on the same pod.
fn crowd(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let index = stage.world.pod_at(u16::from(last_octet(pod)))?;
    index.serve(stage.options, &["rst", "[::]:9001"])?;
    let (ip, ns) = (pod.ip(), stage.inside(pod)?);
    ns.nft("table inet t { chain in { type filter hook input priority 0; tcp dport 9002 drop; }; }\n")?;
    for port in [9000, 9001, 9002] {
        let mut other = stage.world.node.command(stage.options.bin("load"));
        other.args(["--target", &format!("{ip}:{port}"), "--threads", "1", "--seconds", "3600", "--pause-ms", "5"]);
        stage.helpers.push(crate::proc::Proc::spawn(other)?);
    }
    let count = stage.options.crowd;
    stage.crowd(Kind::Http, pod, count / 2, 8)?;
    stage.crowd(Kind::Tcp, pod, count - count / 2, 8)
}

const fn last_octet(addr: std::net::SocketAddr) -> u8 {
    match addr {
        std::net::SocketAddr::V4(a) => a.ip().octets()[3],
        std::net::SocketAddr::V6(a) => a.ip().octets()[15],
    }
}

/// A tcpSocket probe of a port that real TLS clients use: once they are seen, each probe is noise.
fn tls_noise(stage: &mut Stage<'_>, port: u16) -> Result<()> {
    let pod = stage.serving("tls", port)?;
    stage.attempt(Kind::Tcp, pod, Ending::Ok, Claim::Perhaps(Label::TlsEofNoise))?;
    let client = stage.options.bin("load");
    finish(stage.world.node.command(client).args(["--https", &pod.to_string()]), "")?;
    let noise = stage.verdict(Label::TlsEofNoise, Outcome::Noise);
    stage.attempt(Kind::Tcp, pod, Ending::Ok, noise)
}
