//! Nothing is wrong: there must be no verdict, or one that says noise.

use std::net::Ipv4Addr;
use std::thread;

use anyhow::Result;
use tracer_model::record::{Cause, Outcome};

use super::{Fixture, Knows, Need, Scenario};
use crate::check::{Claim, Expected};
use crate::helper::Role;
use crate::net::finish;
use crate::pods::{HTTP, TLS, UNLISTED_TLS};
use crate::probe::{Ending, Kind};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("healthy_http", None, http).smoke().and_v6_on_every_kernel(),
    Scenario::probed("healthy_tcp", None, "http", Ending::Ok).probe(Kind::Tcp, HTTP).and_v6(),
    Scenario::probed("healthy_https", None, "tls", Ending::Ok).https().on_every_kernel().and_v6(),
    Scenario::new("healthy_kubectl_exec", None, kubectl_exec).knows(Knows::Log),
    Scenario::new("healthy_crowd", None, crowd).own().needs(&[Need::Nft]),
    Scenario::new("tls_eof_noise", Some(Cause::TlsEofNoise), |s| tls_noise(s, TLS)).smoke().and_v6_on_every_kernel(),
    Scenario::new("tls_eof_noise_by_hello", Some(Cause::TlsEofNoise), |s| tls_noise(s, UNLISTED_TLS)),
    Scenario::new("tcp_probe_noise", Some(Cause::TcpProbeNoise), speaks_first).and_v6(),
];

/// The server sends its first bytes to a client that is gone.
fn speaks_first(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("banner", HTTP)?;
    let expected = Expected { outcome: Outcome::Noise, ..Expected::failure(Cause::TcpProbeNoise, true) };
    fixture.attempt(Kind::Tcp, pod, Ending::Ok, Claim::Verdict(expected))
}

fn http(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let slow = fixture.serving("slow:300", HTTP)?;
    fixture.succeeds(Kind::Http, slow)
}

/// The kubelet asks the container runtime's streaming server for an upgrade. The prober waits for an answer after that.
fn kubectl_exec(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["101", "127.0.0.1:35000"])?;
    let runtime = (Ipv4Addr::LOCALHOST, 35000).into();
    (0..3).try_for_each(|_| fixture.attempt(Kind::Http, runtime, Ending::Eof, Claim::Nothing))
}

/// Thousands of probes succeed while connections of other processes to the same pod fail. It has its own node: an
/// unoptimized tracer still reads these events when the next scenario begins.
fn crowd(fixture: &mut Fixture<'_>) -> Result<()> {
    (fixture.watch)()?;
    let pod = fixture.serving("http", HTTP)?;
    fixture.serve(pod, "rst", "[::]:9001")?;
    fixture.input_rule(pod, "tcp dport 9002 drop;")?;
    for port in [9000, 9001, 9002] {
        let mut other = fixture.options.helper(&fixture.node.node, Role::Load)?;
        other.args(["--target", &format!("{}:{port}", pod.ip()), "--seconds", "3600", "--pause-ms", "5"]);
        fixture.helpers.push(crate::proc::Proc::spawn(other)?);
    }
    let count = fixture.options.crowd;
    fixture.crowd(Kind::Http, pod, count / 2)?;
    fixture.crowd(Kind::Tcp, pod, count - count / 2)
}

/// A tcpSocket probe of a port that real TLS clients use. tracer looks for a ClientHello on a port after it has read
/// such a probe, or the answer to an HTTPS probe. The first rounds may come too early for that.
fn tls_noise(fixture: &mut Fixture<'_>, port: u16) -> Result<()> {
    let pod = fixture.serving("tls", port)?;
    for _ in 0..3 {
        fixture.attempt(Kind::Tcp, pod, Ending::Ok, Claim::Perhaps(Cause::TlsEofNoise))?;
        // The reader gets events of successful attempts 50 ms later, and then attaches the program for ClientHellos.
        thread::sleep(fixture.options.probe_timeout / 4);
        let mut client = fixture.options.helper(&fixture.node.node, Role::Load)?;
        finish(client.args(["--https", &pod.to_string()]), "")?;
    }
    if port == TLS {
        fixture.succeeds(Kind::Https, pod)?;
    }
    let expected = Expected { outcome: Outcome::Noise, ..Expected::failure(Cause::TlsEofNoise, true) };
    fixture.attempt(Kind::Tcp, pod, Ending::Ok, Claim::Verdict(expected))
}
