//! The target's side fails: nobody listens, somebody resets, nobody answers.

use anyhow::{Context, Result};
use tracer::classify::label::Label;

use super::{Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::pods::{HTTP, TLS};
use crate::world::Family;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("connection_refused", Some(Label::ConnectionRefused), refused),
    Scenario::new("connection_refused_v6", Some(Label::ConnectionRefused), refused).v6(),
    Scenario::new("handshake_rst", Some(Label::HandshakeRst), handshake_rst),
    Scenario::new("mid_stream_rst", Some(Label::MidStreamRst), |s| reset(s, "rst")),
    Scenario::new("mid_stream_rst_v6", Some(Label::MidStreamRst), |s| reset(s, "rst")).v6(),
    Scenario::new("mid_stream_rst_unread", Some(Label::MidStreamRst), |s| reset(s, "rst-unread")),
    Scenario::new("mid_stream_rst_at_accept", Some(Label::MidStreamRst), |s| reset(s, "rst-at-accept")),
    Scenario::new("slow_response", Some(Label::SlowResponse), |s| slow(s, "hang", Kind::Http, HTTP)),
    Scenario::new("slow_response_v6", Some(Label::SlowResponse), |s| slow(s, "hang", Kind::Http, HTTP)).v6(),
    Scenario::new("slow_response_never_accepted", Some(Label::SlowResponse), |s| slow(s, "noaccept", Kind::Http, HTTP)),
    Scenario::new("slow_response_tls", Some(Label::SlowResponse), |s| slow(s, "tls-hang", Kind::Https, TLS)),
    Scenario::new("unexplained", Some(Label::Unexplained), unexplained),
    Scenario::new("closed_without_answer", Some(Label::Unexplained), closed),
];

fn refused(stage: &mut Stage<'_>) -> Result<()> {
    let family = stage.family;
    let pod = stage.idle()?.addr(family, HTTP);
    stage.fails(Kind::Http, pod, Ending::Refused)?;
    stage.fails(Kind::Tcp, pod, Ending::Refused)
}

/// A RST that no kernel's TCP has made.
fn handshake_rst(stage: &mut Stage<'_>) -> Result<()> {
    let pod = appliance(stage, "appliance")?;
    stage.fails(Kind::Http, pod, Ending::Refused)
}

/// An appliance that takes the SYN and says nothing: there is nothing to see.
fn unexplained(stage: &mut Stage<'_>) -> Result<()> {
    let pod = appliance(stage, "mute")?;
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// The server reads the request and closes: no label of its own yet.
fn closed(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("eof", HTTP)?;
    stage.fails(Kind::Http, pod, Ending::Eof)
}

fn appliance(stage: &mut Stage<'_>, mode: &str) -> Result<std::net::SocketAddr> {
    let pod = stage.world.bare_pod()?;
    let addr = pod.addr(Family::V4, HTTP);
    pod.serve(stage.options, &[mode, "eth0", &addr.ip().to_string()]).context("start the appliance")?;
    Ok(addr)
}

fn reset(stage: &mut Stage<'_>, mode: &str) -> Result<()> {
    let pod = stage.serving(mode, HTTP)?;
    stage.fails(Kind::Http, pod, Ending::Reset)
}

fn slow(stage: &mut Stage<'_>, mode: &str, kind: Kind, port: u16) -> Result<()> {
    let pod = stage.serving(mode, port)?;
    stage.fails(kind, pod, Ending::Timeout)
}
