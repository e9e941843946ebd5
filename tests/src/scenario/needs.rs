//! What a scenario needs of the kernel, tried out in a namespace made for that.

use std::process::Command;
use std::sync::OnceLock;

use crate::net::{Netns, PREFIX, finish};

/// A feature or a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// IPVS.
    Ipvs,
    /// iptables over nftables, with REJECT.
    Iptables,
    /// The old ip_tables.
    LegacyIptables,
    /// nftables with NAT.
    NftNat,
}

const MODULES: &[&str] = &[
    "veth",
    "bridge",
    "dummy",
    "br_netfilter",
    "nf_conntrack",
    "nf_tables",
    "nft_reject_inet",
    "nft_reject_ipv4",
    "nft_compat",
    "nft_fib_inet",
    "nft_chain_nat",
    "nft_nat",
    "nft_ct",
    "ip_tables",
    "iptable_filter",
    "ipt_REJECT",
    "xt_tcpudp",
    "ip_vs",
    "ip_vs_rr",
];

/// Loads the modules that a kernel has as such; those built in or absent do not matter.
pub fn load_modules() {
    for module in MODULES {
        let _ = finish(Command::new("modprobe").args(["-q", module]), "");
    }
}

impl Need {
    /// Why it is not there; `None` if it is.
    #[must_use]
    pub fn lacking(self) -> Option<String> {
        static TRIED: [OnceLock<Option<String>>; 4] = [const { OnceLock::new() }; 4];
        TRIED[self as usize].get_or_init(|| self.attempt()).clone()
    }

    fn attempt(self) -> Option<String> {
        let (what, program, args, input) = self.trial();
        let outcome = Netns::create(&format!("{PREFIX}{}-need-{what}", std::process::id()))
            .and_then(|ns| ns.run(program, args, input));
        outcome.err().map(|error| format!("{what}: {}", first_line(&format!("{error:#}"))))
    }

    const fn trial(self) -> (&'static str, &'static str, &'static [&'static str], &'static str) {
        const REJECT: &[&str] = &["-A", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"];
        const SERVICE: &[&str] = &["-A", "-t", "10.96.0.1:1", "-s", "rr"];
        match self {
            Self::Ipvs => ("ipvs", "ipvsadm", SERVICE, ""),
            Self::Iptables => ("iptables", "iptables-nft", REJECT, ""),
            Self::LegacyIptables => ("iptables-legacy", "iptables-legacy", REJECT, ""),
            Self::NftNat => (
                "nft-nat",
                "nft",
                &["-f", "-"],
                "table ip t { chain c { type nat hook prerouting priority -100; fib daddr type local tcp dport 1 dnat to 10.88.0.2:2; }; }\n",
            ),
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(300).collect()
}
