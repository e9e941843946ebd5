//! `tracer doctor` in a throw-away network namespace in which each thing is made wrong, and fixed by the command that the
//! finding gives. Needs root, `ip`, `nft` and iptables.
//!
//! Run with `cargo test -p tracer-userspace --test doctor_live -- --ignored`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod common;

use common::netns::Netns;

/// A pair of links with addresses and a default route each.
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
fn what_is_off_is_fixed_by_the_command_that_is_given() {
    let node = Netns::new();
    // A new namespace takes this over from the first one.
    node.run("sysctl -qw net.ipv4.ip_forward=0");
    for check in ["loopback_up", "ip_forward"] {
        assert_eq!(node.statuses(check)[0], "fail", "{check}");
        node.fix(check);
        assert_eq!(node.statuses(check)[0], "ok", "{check}");
    }
    node.run("sysctl -qw net.core.somaxconn=64");
    node.is_fixed("somaxconn", "fail");
}

#[test]
#[ignore = "needs root"]
fn a_policy_that_drops_is_found_in_both_backends_and_its_owner_named() {
    let node = Netns::new();
    assert_eq!(node.statuses("base_policy"), ["ok"]);
    node.run(
        "nft add table inet guard; nft 'add chain inet guard in { type filter hook input priority 0; policy drop; }'",
    );
    node.is_fixed("base_policy", "fail");
    node.run(
        "iptables-nft -N ufw-user-input; iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT; iptables-nft -P INPUT DROP",
    );
    let (findings, code) = node.doctor(&["--check", "base_policy"]);
    assert_eq!((findings[0]["status"].as_str(), code), (Some("warn"), Some(0)), "{findings:?}");
    assert_eq!(findings[0]["fields"]["owner"], "ufw");
    let fix = findings[0]["remediation"]["commands"][0]["run"].as_str().unwrap_or_default();
    assert!(fix.starts_with("ufw allow 10250/tcp &&"), "it may be right as it is: {fix}");
    let (_, code) = node.doctor(&["--check", "base_policy", "--fail-on", "warn"]);
    assert_eq!(code, Some(1));
}

#[test]
#[ignore = "needs root"]
fn a_last_rule_that_rejects_the_rest_is_found_and_deleted() {
    for rules in [
        "nft add table inet mine; nft 'add chain inet mine in { type filter hook input priority 0; policy accept; }'
         nft add rule inet mine in reject",
        "iptables-legacy -A INPUT -j REJECT",
        "iptables-nft -A FORWARD -j DROP",
    ] {
        let node = Netns::new();
        node.run(rules);
        node.is_fixed("base_policy", "fail");
    }
}

#[test]
#[ignore = "needs root"]
fn the_node_is_where_the_prober_runs() {
    let node = Netns::new();
    // A process of that name in the namespace; doctor runs outside.
    let name = format!("kl{}", std::process::id());
    let exe = std::env::temp_dir().join(&name);
    std::fs::copy("/bin/sleep", &exe).expect("copy of sleep");
    let mut prober = node.command(exe.to_str().expect("UTF-8")).arg("300").spawn().expect("prober");
    let comm = format!("/proc/{}/comm", prober.id());
    while std::fs::read_to_string(&comm).unwrap_or_default().trim() != name {
        assert!(prober.try_wait().expect("prober").is_none(), "the prober ended");
        std::thread::yield_now();
    }
    let outside = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
        node.findings(command.args(["doctor", "-o", "json", "--check", "loopback_up,cni_config", "--prober", name])).0
    };
    let (inside, own) = (outside(&name), outside("no-such-prober"));
    let _ = prober.kill();
    let _ = prober.wait();
    let _ = std::fs::remove_file(&exe);
    assert_eq!((inside[0]["status"].as_str(), own[0]["status"].as_str()), (Some("fail"), Some("ok")));
    assert!(inside[1]["status"] != "unknown", "a prober without a CNI is no unknown: {inside:?}");
}

#[test]
#[ignore = "needs root"]
fn several_uplinks_and_a_strict_filter() {
    let node = Netns::new();
    assert_eq!(node.statuses("default_routes"), ["warn"], "none");
    two_uplinks(&node);
    let (findings, _) = node.doctor(&["--check", "default_routes"]);
    assert_eq!((findings[0]["status"].as_str(), findings[0]["fields"]["routes"].as_u64()), (Some("warn"), Some(2)));
    node.run("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    node.is_fixed("rp_filter", "warn");
    node.fix("default_routes");
    assert_eq!(node.statuses("default_routes"), ["ok"]);
}

#[test]
#[ignore = "needs root"]
fn port_ranges_against_node_ports() {
    let node = Netns::new();
    assert_eq!(
        (node.statuses("port_overlap"), node.statuses("ephemeral_headroom")),
        (vec!["ok".into()], vec!["ok".into()])
    );
    node.run("sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
    node.is_fixed("port_overlap", "warn");
    node.run("sysctl -qw net.ipv4.ip_local_port_range='40000 41000'");
    node.is_fixed("ephemeral_headroom", "warn");
}

/// Two checks write the setting: their commands, pasted one after the other, leave both well.
#[test]
#[ignore = "needs root"]
fn node_ports_and_a_kubelet_in_one_range() {
    let node = Netns::new();
    node.run("ip link set lo up; sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
    let script =
        "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',10250)); s.listen(); print(); time.sleep(60)";
    let mut kubelet = node.command("python3").args(["-uc", script]).stdout(Stdio::piped()).spawn().expect("python3");
    BufReader::new(kubelet.stdout.take().expect("stdout")).lines().next();
    let checks = ["port_overlap", "listener_overlap"];
    let fixes = checks.map(|check| node.doctor(&["--check", check]).0.remove(0));
    let wrong = fixes.each_ref().map(|it| it["status"].as_str().expect("status").to_owned());
    fixes.iter().for_each(|it| node.run(it["remediation"]["commands"][0]["run"].as_str().expect("a fix")));
    let fixed = checks.map(|check| node.statuses(check).remove(0));
    let _ = kubelet.kill();
    let _ = kubelet.wait();
    assert_eq!(
        (wrong.as_slice(), fixed.as_slice()),
        (&["warn".into(), "warn".into()][..], &["ok".into(), "ok".into()][..])
    );
}

/// The kernel asks the link that a packet comes in on.
#[test]
#[ignore = "needs root"]
fn a_link_that_does_not_forward_and_one_that_does() {
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
fn a_bridge_with_packets_that_go_past_iptables() {
    let node = Netns::new();
    // The module, where it is loaded already, is on in a new namespace.
    node.run("ip link add cni0 type bridge; sysctl -qw net.bridge.bridge-nf-call-iptables=0 || true");
    assert_eq!(node.statuses("br_netfilter"), ["fail"]);
    node.fix("br_netfilter");
    // Without a CNI's configuration a bridge that is known is all that says it is needed.
    assert_eq!(node.statuses("br_netfilter"), ["ok"]);
    node.run("sysctl -qw net.bridge.bridge-nf-call-ip6tables=0");
    node.is_fixed("br_netfilter", "warn");
}

/// How many connections may be tracked; it is as it was when the test is over. One number of the machine for all namespaces.
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
fn a_connection_table_that_is_full() {
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
    // The machine's to set, as on a node: in another namespace than the first it can only be read.
    let fix = findings[0]["remediation"]["commands"][0]["run"].as_str().expect("a fix");
    let fixed = Command::new("sh").args(["-ec", fix]).status().expect("sh").success();
    let after = node.statuses("conntrack");
    drop(limit);
    assert_eq!((full, fixed, after), (vec!["fail".into()], true, vec!["ok".to_owned()]), "{findings:?}");
}

/// Links of pods come and go: the command names none.
#[test]
#[ignore = "needs root"]
fn ciliums_links_are_fixed_by_one_command() {
    let node = Netns::new();
    node.run("ip link add cilium_host type veth peer name cilium_net; ip link add lxc1 type veth peer name lxc2");
    node.run("sysctl -qw net.ipv4.conf.all.rp_filter=1; sysctl -qw net.ipv4.conf.lxc2.rp_filter=1");
    node.is_fixed("rp_filter", "fail");
}

#[test]
#[ignore = "needs root"]
fn the_proxy_is_reported_from_its_tables() {
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
fn without_privileges_nothing_unread_is_ok_and_the_exit_code_says_so() {
    let node = Netns::new();
    // Nobody may not run a binary below a folder of root's: it is handed over open.
    let binary = std::fs::File::open(env!("CARGO_BIN_EXE_tracer")).expect("binary");
    let script = "exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all /proc/self/fd/0 \"$@\"";
    let mut command = node.command("sh");
    command.args(["-c", script, "sh", "doctor", "--prober", "no-such-prober", "-o", "json", "--check", "base_policy"]);
    let (findings, code) = node.findings(command.stdin(binary));
    assert_eq!(
        (findings[0]["status"].as_str(), findings[0]["needs"].as_str()),
        (Some("unknown"), Some("CAP_NET_ADMIN"))
    );
    assert_eq!(code, Some(3));
}

/// A daemon makes the same checks beside its work, and tells what is to be fixed.
#[test]
#[ignore = "needs root"]
fn a_daemon_tells_what_is_wrong_with_its_node() {
    let netns = Netns::new();
    let socket = std::env::temp_dir().join(format!("{}.sock", netns.0));
    let args = ["run", "--prober", "no-such-prober", "-o", "json", "--duration", "20s", "--health-socket"];
    let mut command = netns.command(env!("CARGO_BIN_EXE_tracer"));
    let mut daemon = command.args(args).arg(&socket).stdout(Stdio::piped()).spawn().expect("tracer");
    let lines = BufReader::new(daemon.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let findings = lines.map(|line| serde_json::from_str::<Value>(&line).expect("JSON"));
    let found = findings.filter(|it| it["type"] == "finding").find(|it| it["check"] == "loopback_up");
    let found = found.expect("lo is down in a namespace that was just made");
    assert_eq!(found["status"], "fail");
    assert_eq!(found["remediation"]["commands"][0]["run"], "ip link set lo up", "{found}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.id().cast_signed()), nix::sys::signal::SIGTERM)
        .expect("SIGTERM");
    assert!(daemon.wait().expect("its end").success());
}

#[test]
#[ignore = "needs root"]
fn the_missing_hooks_are_those_of_tracer_hooks() {
    let rows = |output: Output| -> Vec<Value> {
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let check = ["doctor", "--check", "tracer_hooks"];
    let found = rows(common::tracer().args(check).output().expect("tracer")).remove(0);
    let hooks = rows(common::tracer().args(["hooks", "--duration", "1ms"]).output().expect("tracer"));
    let missing: Vec<&str> =
        hooks.iter().filter(|it| it["status"] != "ok").filter_map(|it| it["check"].as_str()).collect();
    let missing: Vec<&str> = missing.iter().filter_map(|check| check.strip_prefix("hooks/")).collect();
    assert_eq!(found["fields"]["missing_hooks"], serde_json::json!(missing));
    assert_eq!(found["status"], if missing.is_empty() { "ok" } else { "warn" }, "{found}");
    let without = ["--bounding-set=-bpf,-perfmon,-sys_admin", env!("CARGO_BIN_EXE_tracer")];
    let denied = Command::new("setpriv").args(without).args(check).output().expect("setpriv");
    assert_eq!(denied.status.code(), Some(3), "{denied:?}");
    let denied = rows(denied).remove(0);
    assert_eq!((&denied["status"], &denied["needs"]), (&"unknown".into(), &"CAP_BPF".into()), "{denied}");
}
