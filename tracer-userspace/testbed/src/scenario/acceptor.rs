//! Another process than the pod's accepts the connection, and fails.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::neighbours::node_of;
use super::{Fixture, Scenario};
use crate::ip::{Route, RouteType};
use crate::pods::{ELSEWHERE, HTTP};
use crate::probe::{Ending, Kind};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("port_taken_by_listener", Some(Cause::PortTaken), |s| port_taken(s, "503", Ending::Status)).and_v6(),
    Scenario::new("port_taken_by_silent_listener", Some(Cause::PortTaken), |s| port_taken(s, "hang", Ending::Timeout)),
    Scenario::new("app_status_failure_other_host", STATUS, other_host).own(),
    Scenario::new("app_status_failure_of_node", STATUS, |s| on_node(s, "503", Ending::Status)).own().and_v6(),
    Scenario::new("app_status_failure_local_route", STATUS, |s| local_route(s, "503", Ending::Status)).own().and_v6(),
    Scenario::new("slow_response_of_node", Some(Cause::SlowResponse), |s| on_node(s, "hang", Ending::Timeout)).own(),
    Scenario::new("closed_without_answer_of_node", Some(Cause::ClosedWithoutAnswer), |s| {
        on_node(s, "eof", Ending::Eof)
    })
    .own(),
];

const STATUS: Option<Cause> = Some(Cause::AppStatusFailure);

/// A process of the node has the port of a hostNetwork pod. The server of the pod cannot bind it.
fn port_taken(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let target = fixture.serving_on_node(mode)?;
    fixture.mentions(&["of the node has port 10256", "and not container agent of pod"]);
    fixture.fails(Kind::Http, target, how)
}

/// The probe's `host` is an address outside of the node, where somebody else answers.
fn other_host(fixture: &mut Fixture<'_>) -> Result<()> {
    let (uplink, outside) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| ip.address([10, 90, 0, 1], 24, &uplink))?;
    fixture.node.serve_outside(&outside, fixture.options, &["503", &format!("[::]:{}", ELSEWHERE.1)])?;
    fixture.mentions(&["10.90.0.2 is the probe's host, and no address of pod default/elsewhere-0, "]);
    fixture.fails(Kind::Http, SocketAddr::from(ELSEWHERE), Ending::Status)
}

/// The CNI left the address of the healthy pod on a link of the node, where another process serves the port.
fn on_node(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let length = if pod.is_ipv4() { 32 } else { 128 };
    fixture.node.node.ip(|ip| ip.address(pod.ip(), length, "lo"))?;
    fixture.node.serve(fixture.options, &[mode, &pod.to_string()])?;
    fixture.mentions(&["of the node accepted the connection, and not pod", "the node itself has"]);
    fixture.fails(Kind::Http, pod, how)
}

/// A local route for the address of the healthy pod is left over, and another process serves the port. No link has the
/// address, and the source is another one.
fn local_route(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let route = Route::to_host(pod.ip()).kind(RouteType::Local).over("lo").source(node_of(pod)).in_table(LOCAL);
    fixture.node.node.ip(|ip| ip.add(&route))?;
    fixture.node.serve(fixture.options, &[mode, &format!("[::]:{HTTP}")])?;
    fixture.mentions(&["of the node accepted the connection, and not pod", "(by a local route: no link has it)"]);
    fixture.fails(Kind::Http, pod, how)
}

/// The table of local addresses (`ip route show table local`).
const LOCAL: u8 = 255;
