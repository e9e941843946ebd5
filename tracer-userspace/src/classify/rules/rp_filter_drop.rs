//! The reverse-path filter dropped a packet of this attempt.

use super::super::evidence::of_drop;
use super::{Case, Finding, Label, enter, in_namespace, is_of_handshake};
use crate::event::PacketDrop;
use crate::record::Confidence;
use crate::shell;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let mut drops = case.attempt.drops().filter(|(time, drop)| is_of_handshake(case, *time, drop));
    let (time, drop, confidence) = drops.find_map(|(time, d)| Some((time, d, is_rp_filter(case, d)?)))?;
    let device = drop.device.as_ref().map_or("the device it came in on", |d| d.name.as_str());
    let summary = format!(
        "the reverse-path filter{} dropped the {} {} -> {} that came in on {device}: the route back to {} does not lead there",
        in_namespace(case, drop.netns),
        drop.flags.name(),
        drop.flow.src,
        drop.flow.dst,
        drop.flow.src.ip()
    );
    let named = drop.device.as_ref().map_or_else(|| "DEVICE".to_owned(), |d| shell::link_setting(&d.name));
    let remediation = format!(
        "{}sysctl -w net.ipv4.conf.{named}.rp_filter=2 (loose: the higher of it and net.ipv4.conf.all counts), or mend the route to {} (ip route get {})",
        enter(case, drop.netns),
        drop.flow.src.ip(),
        drop.flow.src.ip()
    );
    let found = Finding::failure(Label::RpFilterDrop, vec![of_drop(time, drop)], summary, remediation);
    Some(found.with_confidence(confidence).until_answered())
}

/// By the kernel's reason; before 5.17 by the function, which has a few rarer reasons of its own
/// (martian addresses), so that it only counts where the filter is strict.
fn is_rp_filter(case: &Case<'_>, drop: &PacketDrop) -> Option<Confidence> {
    match (&drop.reason, &drop.location) {
        (Some(reason), _) => (reason == "IP_RPFILTER").then_some(Confidence::Proven),
        (None, Some(place)) => {
            (place.starts_with("ip_rcv_finish_core") && is_strict(case)).then_some(Confidence::Likely)
        }
        (None, None) => None,
    }
}

/// Strict filtering on the node. Of a device alone it is not known here: the setting for all decides mostly.
fn is_strict(case: &Case<'_>) -> bool {
    let settings = &case.node.settings.sysctls;
    settings.iter().any(|(name, value)| name.ends_with(".rp_filter") && value == "1")
}

#[cfg(test)]
mod tests {
    use crate::event::{Device, TcpState};
    use crate::testing::{NODE, POD, SYN, SYN_ACK, Stream};

    #[test]
    fn the_kernel_s_own_reason_decides() {
        assert_eq!(Stream::new().connect().drop(SYN_ACK, "IP_RPFILTER", NODE).labels(), ["rp_filter_drop"]);
    }

    #[test]
    fn a_vlan_s_setting_is_written_with_a_slash() {
        let mend = |device: Option<&str>| {
            let device = device.map(|name| Device { ifindex: 2, name: name.into(), up: true, loopback: false });
            let mut stream = Stream::new();
            stream.connect().drop_on(SYN_ACK, "IP_RPFILTER", NODE, device);
            stream.verdicts().remove(0).verdict.remediation
        };
        let vlan = mend(Some("eth0.100"));
        assert!(vlan.contains("sysctl -w net.ipv4.conf.eth0/100.rp_filter=2 "), "{vlan}");
        assert!(mend(None).contains("sysctl -w net.ipv4.conf.DEVICE.rp_filter=2 "), "{}", mend(None));
    }

    #[test]
    fn a_refusal_of_a_later_syn_is_not_the_filter_s() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "IP_RPFILTER", POD).wait_ms(1000).retransmit(TcpState::SynSent);
        stream.reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0);
        stream.state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0));
        assert_eq!(stream.labels(), ["rp_filter_drop", "connection_refused"]);
    }

    #[test]
    fn a_drop_of_a_connection_that_got_through_is_nothing() {
        let mut stream = Stream::new();
        stream.connect().established().drop(SYN_ACK, "IP_RPFILTER", NODE);
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200));
        assert!(stream.labels().is_empty());
    }
}
