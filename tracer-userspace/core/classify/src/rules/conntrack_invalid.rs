//! A rule dropped or rejected the packet because connection tracking found it invalid.

use super::*;
use tracer_case::blame::is_before_tracking;
use tracer_case::netfilter::blocked;
use tracer_model::event::{FirewallRule, Tracked};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    blocked.drop.filter(|(_, drop)| drop.tracked == Some(Tracked::No))?;
    // Before connection tracking every packet counts as invalid (`nft_ct_get_eval`, `conntrack_mt`): the rule is wrong.
    let blame = blocked.blame.as_ref()?;
    let finds_invalid = |rule: &FirewallRule| blame.takes_only_invalid(rule) && !is_before_tracking(rule);
    blame.all(finds_invalid).then_some(())?;
    let confidence = if blame.certain().is_some() { Confidence::Proven } else { Confidence::Likely };
    let summary =
        format!("connection tracking found the packet invalid, and a rule{}{}", blocked.action(case), blocked.words());
    let run = |command: &str| run_in(case, blocked.netns, command);
    let dst = case.attempt.flow.dst;
    let both = format!(
        "Let both directions of {dst} pass the same connection tracking (no asymmetric route, no notrack for one direction). The first commands show the rule"
    );
    let flags = blocked.drop.map(|(_, drop)| drop.flags).unwrap_or_default();
    let (text, commands) = if flags.is_syn_ack() {
        // A SYN-ACK begins no entry, however tolerant tracking is (`tcp_new`, net/netfilter/nf_conntrack_proto_tcp.c).
        let last = "The others show rules that exempt the SYN from tracking (notrack). If they show none, look for an asymmetric route";
        (format!("{both}. {last}"), blocked.find_notrack(case).to_vec())
    } else if flags.is_syn() {
        // A SYN needs no entry, and its window is not checked (`tcp_error` and `nf_conntrack_tcp_packet`, same file).
        let text = format!(
            "Find why tracking takes the SYN to {dst} for invalid. Its checksum is wrong: correct the checksum offload of the link that it came over. Tracking checks that only if nf_conntrack_checksum (the last command) is 1. Or an old entry of the same ports does not fit: delete it. The first commands show the rule, and conntrack -S counts such packets (invalid)"
        );
        (text, ["conntrack -S", "sysctl net.netfilter.nf_conntrack_checksum"].map(run).to_vec())
    } else {
        let last = "If nf_conntrack_tcp_loose is 0, tracking takes no connection without an entry, such as after a flush: set it to 1. If it is 1, the last command makes tracking accept packets out of window";
        let settings =
            ["sysctl net.netfilter.nf_conntrack_tcp_loose", "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1"];
        (format!("{both}. {last}"), settings.map(run).to_vec())
    };
    let remediation = Remediation::from(text).run(blocked.show_rules(case)).run(commands);
    Some(blocked.finding(case, Cause::ConntrackInvalid, summary, remediation).with_confidence(confidence))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;
    use tracer_model::event::path::{Asks, BaseChain, Onward, Path, Step, state};

    fn causes(tracked: Tracked, rules: Vec<FirewallRule>) -> Vec<&'static str> {
        stream("nft_do_chain", tracked, firewall(NODE, rules)).causes()
    }

    fn stream(place: &str, tracked: Tracked, firewall: ObservationKind) -> Stream {
        let mut stream = Stream::new().connect().filtered(SYN_ACK, NODE).clone();
        let drop = stream.last_drop();
        (drop.location, drop.tracked) = (Some(place.into()), Some(tracked));
        drop.stack = vec!["__ip_local_out".into()];
        stream.push(firewall).settles();
        stream
    }

    fn invalid() -> FirewallRule {
        let mut rule = rule("input", RuleVerdict::Drop);
        (rule.when.invalid, rule.exact) = (true, true);
        rule
    }

    /// `ct state invalid,untracked drop`. If the rule takes new connections too, it is no matter of invalid ones.
    #[test]
    fn a_rule_for_several_states_finds_an_invalid_packet() {
        let cause = |states: u8, tracked: Tracked| {
            let asks = Asks { states, ..Asks::default() };
            let steps = vec![Step { asks, then: Onward::Take(0) }];
            let chains = vec![BaseChain { hook: "OUTPUT".into(), priority: 0, steps }];
            let rules = vec![FirewallRule { exact: false, ..rule("input", RuleVerdict::Drop) }];
            let firewall = firewall_with(NODE, rules, |it| {
                let flow = Flow { src: address("10.88.0.2:8080"), dst: address("10.88.0.1:0") };
                it.path = Some(Path { flow, chains, translates: false });
            });
            stream("nft_do_chain", tracked, firewall).gives_up().causes()
        };
        let (several, all) = (state::INVALID | state::UNTRACKED, state::ANY);
        assert_eq!(cause(several, Tracked::No), ["conntrack_invalid"]);
        assert_eq!(cause(several, Tracked::Untracked), ["firewall_drop"]);
        assert_eq!(cause(all, Tracked::No), ["firewall_drop"]);
        assert_eq!(cause(state::INVALID | state::NEW, Tracked::No), ["firewall_drop"]);
    }

    /// Seen on 6.18: with nf_conntrack_tcp_be_liberal, a SYN-ACK without an entry is as invalid as before.
    #[test]
    fn tracking_out_of_window_helps_no_syn_ack() {
        let rules = || firewall(NODE, vec![invalid()]);
        let answer = stream("nft_do_chain", Tracked::No, rules()).verdict().remediation;
        assert_has(&answer, &["exempt the SYN from tracking (notrack)", "grep -w notrack"]);
        assert_lacks(&answer, &["be_liberal"]);
        let mut request = Stream::new().connect().established().filtered(TcpFlags(0x18), NODE).clone();
        request.last_drop().tracked = Some(Tracked::No);
        let request = request.push(rules()).wait_ms(1000).closes((100, 1, 0)).settles().verdict();
        assert_eq!(request.cause.name(), "conntrack_invalid");
        assert_has(&request.remediation, &["If nf_conntrack_tcp_loose is 0", "set it to 1", "be_liberal=1"]);
        let commands: Vec<_> = request.remediation.commands.iter().map(|it| it.run.as_str()).collect();
        let place = |word: &str| commands.iter().position(|it| it.contains(word));
        assert!(place("tcp_loose") < place("be_liberal"), "{commands:?}");
    }

    /// No window of a SYN is checked.
    #[test]
    fn a_syn_is_invalid_by_its_checksum_or_by_an_old_entry() {
        let mut stream = Stream::new().connect().filtered(SYN, NODE).clone();
        stream.last_drop().tracked = Some(Tracked::No);
        let verdict = stream.push(firewall(NODE, vec![invalid()])).gives_up().verdict();
        assert_eq!(verdict.cause.name(), "conntrack_invalid");
        let fix = &verdict.remediation;
        assert_has(fix, &["Its checksum is wrong", "an old entry", "conntrack -S", "nf_conntrack_checksum"]);
        assert_lacks(fix, &["be_liberal", "tcp_loose", "notrack"]);
    }

    /// `ct state invalid` in a chain of priority raw fits every packet: none has an entry there yet.
    #[test]
    fn only_a_packet_without_an_entry_is_invalid() {
        let drop = || rule("input", RuleVerdict::Drop);
        let at = |priority| FirewallRule { priority: Some(priority), ..invalid() };
        assert_eq!(causes(Tracked::No, vec![invalid()]), ["conntrack_invalid"]);
        assert_eq!(causes(Tracked::Yes, vec![invalid()]), ["firewall_drop"], "a rule that is gone");
        assert_eq!(causes(Tracked::Untracked, vec![invalid(), drop()]), ["firewall_drop"]);
        assert_eq!(causes(Tracked::No, vec![at(-300)]), ["firewall_drop"], "before connection tracking");
        assert_eq!(causes(Tracked::No, vec![at(0)]), ["conntrack_invalid"]);
        assert_eq!(
            causes(Tracked::No, vec![drop(), invalid()]),
            ["firewall_drop"],
            "the earlier rule may have dropped it"
        );
        assert_eq!(causes(Tracked::No, vec![invalid(), drop()]), ["conntrack_invalid"]);
    }

    /// Before 6.7 `nf_hook_slow` frees both: packets that an nftables rule drops, and those that find the table full.
    #[test]
    fn a_full_table_lowers_the_confidence_if_the_freeing_function_fits_both() {
        let confidence = |place: &str, count: u64| {
            let table = Conntrack { count, max: 100, drop: Some(7), ..Conntrack::default() };
            let firewall = firewall_with(NODE, vec![invalid()], |it| it.conntrack = Some(table));
            let verdict = stream(place, Tracked::No, firewall).verdict();
            assert_eq!(verdict.cause.name(), "conntrack_invalid");
            verdict.confidence
        };
        assert_eq!(confidence("nft_do_chain", 100), Confidence::Proven);
        assert_eq!(confidence("nf_hook_slow", 50), Confidence::Proven);
        assert_eq!(confidence("nf_hook_slow", 100), Confidence::Likely);
    }
}
