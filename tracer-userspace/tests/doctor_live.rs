//! `tracer doctor` in a network namespace. Each test breaks a setting, and repairs it with the command of the finding.
//! Needs root, `ip`, `nft` and iptables.
//!
//! Run with `cargo test -p tracer-userspace --test doctor_live -- --ignored`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

mod common;

use common::netns::Netns;
use common::{Killed, NamedProcess, Signal, as_nobody, printed, records, signal};

const CHECK_HOOKS: &[&str] = &["doctor", "--prober", "no-such-prober", "-o", "json", "--check", "tracer_hooks"];

/// Adds two links, each with an address and a default route.
fn two_uplinks(node: &Netns) {
    node.run(
        "ip link add up0 type veth peer name up1
         ip addr add 10.0.0.2/24 dev up0
         ip addr add 10.1.0.2/24 dev up1
         ip link set up0 up
         ip link set up1 up
         ip route add default via 10.0.0.1 dev up0 metric 100
         ip route add default via 10.1.0.1 dev up1 metric 600",
    );
}

#[test]
#[ignore = "needs root"]
fn a_wrong_setting_is_fixed_by_its_command() {
    let node = Netns::new();
    // A new namespace inherits this setting from the first one.
    node.run("sysctl -qw net.ipv4.ip_forward=0");
    for check in ["loopback_up", "ip_forward"] {
        assert_eq!(node.statuses(check)[0], "fail", "{check}");
        node.fix(check);
        assert_eq!(node.statuses(check)[0], "ok", "{check}");
    }
    node.run("sysctl -qw net.core.somaxconn=64");
    node.fails_until_fixed("somaxconn", "fail");
}

#[test]
#[ignore = "needs root"]
fn a_drop_policy_is_found_in_both_backends_with_its_owner() {
    let node = Netns::new();
    assert_eq!(node.statuses("base_policy"), ["ok"]);
    // As a hardened node, and as one of GKE.
    node.run(
        "ip6tables-nft -P FORWARD DROP; iptables-legacy -P INPUT DROP
         for protocol in tcp udp icmp; do iptables-legacy -A INPUT -p $protocol -j ACCEPT; done",
    );
    assert_eq!(node.statuses("base_policy"), ["ok"]);
    node.run(
        "nft add table inet guard; nft 'add chain inet guard in { type filter hook input priority 0; policy drop; }'",
    );
    node.fails_until_fixed("base_policy", "fail");
    node.run(
        "iptables-nft -N ufw-user-input; iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT; iptables-nft -P INPUT DROP",
    );
    let (findings, code) = node.doctor(&["--check", "base_policy"]);
    assert_eq!((findings[0]["status"].as_str(), code), (Some("warn"), Some(0)), "{findings:?}");
    assert_eq!(findings[0]["fields"]["owner"], "ufw");
    let fix = findings[0]["remediation"]["commands"][0]["run"].as_str().unwrap_or_default();
    assert!(fix.starts_with("ufw allow 10250/tcp &&"), "ufw may have a reason to drop, so the fix adds a rule: {fix}");
    let (_, code) = node.doctor(&["--check", "base_policy", "--fail-on", "warn"]);
    assert_eq!(code, Some(1));
}

#[test]
#[ignore = "needs root"]
fn a_last_rule_that_rejects_all_packets_is_found_and_deleted() {
    for rules in [
        "nft add table inet mine; nft 'add chain inet mine in { type filter hook input priority 0; policy accept; }'
         nft add rule inet mine in reject",
        "iptables-legacy -A INPUT -j REJECT",
        "iptables-nft -A FORWARD -j DROP",
    ] {
        let node = Netns::new();
        node.run(rules);
        node.fails_until_fixed("base_policy", "fail");
    }
}

#[test]
#[ignore = "needs root"]
fn doctor_inspects_the_namespace_of_the_prober() {
    let node = Netns::new();
    // A process with the prober's name runs in the namespace. doctor runs outside.
    let name = format!("kl{}", std::process::id());
    let prober = NamedProcess::start(&mut node.command("env"), &name);
    let outside = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
        node.findings(command.args(["doctor", "-o", "json", "--check", "loopback_up,cni_config", "--prober", name])).0
    };
    let (inside, own) = (outside(&name), outside("no-such-prober"));
    drop(prober);
    assert_eq!((inside[0]["status"].as_str(), own[0]["status"].as_str()), (Some("fail"), Some("ok")));
    assert!(inside[1]["status"] != "unknown", "a prober without a CNI is not unknown: {inside:?}");
}

#[test]
#[ignore = "needs root"]
fn two_default_routes_and_a_strict_filter_are_warnings() {
    let node = Netns::new();
    assert_eq!(node.statuses("default_routes"), ["warn"], "none");
    two_uplinks(&node);
    let (findings, _) = node.doctor(&["--check", "default_routes"]);
    assert_eq!((findings[0]["status"].as_str(), findings[0]["fields"]["routes"].as_u64()), (Some("warn"), Some(2)));
    node.run("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    node.fails_until_fixed("rp_filter", "warn");
    node.fix("default_routes");
    assert_eq!(node.statuses("default_routes"), ["ok"]);
}

#[test]
#[ignore = "needs root"]
fn a_port_range_with_node_ports_or_too_few_ports_is_a_warning() {
    let node = Netns::new();
    assert_eq!(
        (node.statuses("port_overlap"), node.statuses("ephemeral_headroom")),
        (vec!["ok".into()], vec!["ok".into()])
    );
    node.run("sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
    node.fails_until_fixed("port_overlap", "warn");
    node.run("sysctl -qw net.ipv4.ip_local_port_range='40000 41000'");
    node.fails_until_fixed("ephemeral_headroom", "warn");
}

/// Both checks change the same setting. After both commands, both checks are ok.
#[test]
#[ignore = "needs root"]
fn fixes_of_node_ports_and_of_the_kubelets_port_work_together() {
    let node = Netns::new();
    node.run("ip link set lo up; sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
    let script =
        "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',10250)); s.listen(); print(); time.sleep(60)";
    let kubelet = node.command("python3").args(["-uc", script]).stdout(Stdio::piped()).spawn();
    let mut kubelet = Killed(kubelet.expect("python3"));
    BufReader::new(kubelet.stdout.take().expect("stdout")).lines().next();
    let checks = ["port_overlap", "listener_overlap"];
    let fixes = checks.map(|check| node.doctor(&["--check", check]).0.remove(0));
    let wrong = fixes.each_ref().map(|it| it["status"].as_str().expect("status").to_owned());
    fixes.iter().for_each(|it| node.run(it["remediation"]["commands"][0]["run"].as_str().expect("a fix")));
    let fixed = checks.map(|check| node.statuses(check).remove(0));
    assert_eq!(
        (wrong.as_slice(), fixed.as_slice()),
        (&["warn".into(), "warn".into()][..], &["ok".into(), "ok".into()][..])
    );
}

/// The kernel decides by the `forwarding` setting of the link that received the packet.
#[test]
#[ignore = "needs root"]
fn forwarding_is_read_for_each_link() {
    let node = Netns::new();
    two_uplinks(&node);
    node.run("sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.ipv4.conf.up0.forwarding=0");
    assert_eq!(node.statuses("ip_forward")[0], "warn");
    node.fix("ip_forward");
    assert_eq!(node.statuses("ip_forward")[0], "ok");
    node.run("sysctl -qw net.ipv4.ip_forward=0");
    assert_eq!(node.statuses("ip_forward")[0], "fail");
    node.run("sysctl -qw net.ipv4.conf.up0.forwarding=1");
    assert_eq!(node.statuses("ip_forward")[0], "ok");
}

#[test]
#[ignore = "needs root"]
fn a_bridge_that_bypasses_iptables_fails() {
    let node = Netns::new();
    // If the module is loaded already, its setting is 1 in a new namespace.
    node.run("ip link add cni0 type bridge; sysctl -qw net.bridge.bridge-nf-call-iptables=0 || true");
    assert_eq!(node.statuses("br_netfilter"), ["fail"]);
    node.fix("br_netfilter");
    // Without a CNI configuration, only a bridge with a known name shows that the setting is needed.
    assert_eq!(node.statuses("br_netfilter"), ["ok"]);
    node.run("sysctl -qw net.bridge.bridge-nf-call-ip6tables=0");
    node.fails_until_fixed("br_netfilter", "warn");
}

/// Changes `nf_conntrack_max` until it is dropped. The limit is one for all namespaces of the machine.
struct Limit(String);

impl Limit {
    const PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

    fn set(entries: u64) -> Self {
        let usual = std::fs::read_to_string(Self::PATH).expect("nf_conntrack_max");
        std::fs::write(Self::PATH, entries.to_string()).expect("nf_conntrack_max");
        Self(usual)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, self.0.trim());
    }
}

#[test]
#[ignore = "needs root"]
fn a_full_connection_table_fails() {
    let node = Netns::new();
    node.run("ip link set lo up; nft add table ip t; nft 'add chain ip t c { type filter hook output priority 0; ct state new counter; }'");
    node.within(|| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        (20_000..20_300).for_each(|port| _ = socket.send_to(b"x", ("127.0.0.1", port)));
    });
    assert_eq!(node.statuses("conntrack"), ["ok"]);
    let limit = Limit::set(300);
    let full = node.statuses("conntrack");
    let (findings, _) = node.doctor(&["--check", "conntrack"]);
    // The fix runs outside: only the first namespace can write the limit.
    let fix = findings[0]["remediation"]["commands"][0]["run"].as_str().expect("a fix");
    let fixed = Command::new("sh").args(["-ec", fix]).status().expect("sh").success();
    let after = node.statuses("conntrack");
    drop(limit);
    assert_eq!((full, fixed, after), (vec!["fail".into()], true, vec!["ok".to_owned()]), "{findings:?}");
}

/// The links of pods change, so the command names none of them.
#[test]
#[ignore = "needs root"]
fn one_command_fixes_all_links_of_cilium() {
    let node = Netns::new();
    node.run("ip link add cilium_host type veth peer name cilium_net; ip link add lxc1 type veth peer name lxc2");
    node.run("sysctl -qw net.ipv4.conf.all.rp_filter=1; sysctl -qw net.ipv4.conf.lxc2.rp_filter=1");
    node.fails_until_fixed("rp_filter", "fail");
}

#[test]
#[ignore = "needs root"]
fn the_proxy_mode_is_read_from_its_tables() {
    let node = Netns::new();
    assert_eq!(node.statuses("proxy_mode"), ["unknown"]);
    node.run("nft add table ip kube-proxy; nft add chain ip kube-proxy services");
    let (findings, code) = node.doctor(&["--check", "proxy_mode"]);
    assert_eq!((findings[0]["observed"].as_str(), code), (Some("nftables"), Some(0)));
    node.run("iptables-legacy -t nat -N KUBE-SVC-ABCDEFGHIJKLMNOP");
    assert_eq!(node.statuses("proxy_mode"), ["warn"]);
}

#[test]
#[ignore = "needs root"]
fn without_privileges_a_check_is_unknown_and_the_exit_code_3() {
    let node = Netns::new();
    let args = ["doctor", "--prober", "no-such-prober", "-o", "json", "--check", "base_policy"];
    let (findings, code) = node.findings(as_nobody(&mut node.command("setpriv"), &args));
    assert_eq!(
        (findings[0]["status"].as_str(), findings[0]["needs"].as_str()),
        (Some("unknown"), Some("CAP_NET_ADMIN"))
    );
    assert_eq!(code, Some(3));
}

#[test]
#[ignore = "needs root"]
fn a_daemon_emits_findings_about_its_node() {
    let netns = Netns::new();
    let socket = std::env::temp_dir().join(format!("{}.sock", netns.name));
    let args = ["run", "--prober", "no-such-prober", "-o", "json", "--duration", "20s", "--health-socket"];
    let mut command = netns.command(env!("CARGO_BIN_EXE_tracer"));
    let mut daemon = Killed(command.args(args).arg(&socket).stdout(Stdio::piped()).spawn().expect("tracer"));
    let records = printed(&mut daemon);
    let found = records.iter().find(|it| it["type"] == "finding" && it["check"] == "loopback_up");
    let found = found.expect("lo is down in a namespace that was just made");
    assert_eq!(found["status"], "fail");
    assert_eq!(found["remediation"]["commands"][0]["run"], "ip link set lo up", "{found}");
    signal(&daemon, Signal::SIGTERM);
    assert!(daemon.wait().expect("its end").success());
}

/// The finding about the hooks, and each hook by its name.
fn hooks(stdout: &[u8]) -> (Value, BTreeMap<String, Value>) {
    let finding = records(stdout).remove(0);
    let hooks = finding["fields"]["hooks"].as_array().into_iter().flatten();
    let hooks = hooks.map(|hook| (hook["hook"].as_str().expect("a name").to_owned(), hook.clone())).collect();
    (finding, hooks)
}

#[test]
#[ignore = "needs root"]
fn each_hook_has_its_program_type_and_what_was_refused() {
    let check = |more: &[&str]| common::tracer().args(CHECK_HOOKS).args(more).output().expect("tracer");
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (finding, hooks) = hooks(&output.stdout);
    assert_eq!(hooks["inet_sock_set_state"]["program_type"], "raw_tracepoint");
    // A program that the kernel refuses has the kernel's reason in one line.
    for (name, hook) in &hooks {
        let tried = hook["tried"].as_array().expect("a list");
        assert!(
            tried.iter().all(|it| it["reason"].as_str().is_some_and(|reason| !reason.is_empty())),
            "{name}: {hook}"
        );
        assert!(hook.get("lost").is_none() || !tried.is_empty(), "{name}: {hook}");
    }
    assert!(finding["observed"].as_str().is_some_and(|text| !text.contains('\n')), "{finding}");
    // If this kernel has fentry, the verifier accepts the first program.
    assert!(!hooks["tcp_connect"]["tried"].to_string().contains("verifier"), "{finding}");
    let missing = finding["fields"]["missing_hooks"].as_array().expect("a list").len();
    assert_eq!(hooks.values().filter(|hook| hook.get("lost").is_some()).count(), missing);
    assert_eq!(finding["status"], if missing == 0 { "ok" } else { "warn" }, "{finding}");
    assert_eq!(check(&["--fail-on", "warn"]).status.code(), Some(i32::from(missing > 0)));
}

#[test]
#[ignore = "needs root"]
fn without_bpf_no_hook_is_known() {
    let without = ["--bounding-set=-bpf,-perfmon,-sys_admin", env!("CARGO_BIN_EXE_tracer")];
    let denied = Command::new("setpriv").args(without).args(CHECK_HOOKS).output().expect("setpriv");
    assert_eq!(denied.status.code(), Some(3), "{denied:?}");
    let (denied, hooks) = hooks(&denied.stdout);
    assert_eq!((&denied["status"], &denied["needs"]), (&"unknown".into(), &"CAP_BPF".into()), "{denied}");
    assert!(hooks.is_empty(), "{denied}");
}

/// The check with two capabilities, in a mount namespace of its own, after `prepare` in a shell there. `hook` lacks `needs`.
fn lacks(prepare: &str, hook: &str, needs: &str) {
    let script = format!(
        "({prepare}) >/dev/null 2>&1; exec setpriv --bounding-set -all,+bpf,+perfmon --inh-caps -all,+bpf,+perfmon \
         {} {}",
        env!("CARGO_BIN_EXE_tracer"),
        CHECK_HOOKS.join(" ")
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().expect("unshare");
    let (finding, hooks) = hooks(&output.stdout);
    assert_eq!((&finding["status"], &hooks[hook]["needs"]), (&"unknown".into(), &needs.into()), "{finding}");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
#[ignore = "needs root"]
fn a_hook_that_needs_a_capability_is_unknown() {
    lacks("mount -t tracefs tracefs /sys/kernel/tracing", "cgroup_answer", "CAP_NET_ADMIN");
    // A tracepoint without tracefs needs the capability to mount it.
    lacks("umount -l /sys/kernel/tracing /sys/kernel/debug", "sys_exit_setns", "CAP_SYS_ADMIN");
}
