//! The answer of a netfilter rule that rejects a packet.

use std::fmt;

use tracer_model::event::Icmp;

/// The answer, or why tracer did not see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectAnswer {
    /// A RST; the stack of a host may also have sent it.
    Rst,
    Icmp {
        v6: bool,
        icmp_type: u8,
        code: u8,
    },
    /// An ICMP error, known only from the error of the socket: no hook reported it.
    IcmpError,
    /// The rule rejected the target's packet, so that the target got the answer.
    ToTarget,
    /// No hook that is attached here shows the answer.
    NotShown,
    /// A RST, and tracer saw that something dropped it.
    LostRst,
    /// No answer came: the kernel limits the rate of ICMP errors.
    HeldBack {
        v6: bool,
    },
}

impl RejectAnswer {
    /// Port unreachable, or not known.
    pub const fn may_be_port_unreachable(self) -> bool {
        match self {
            Self::Icmp { v6, icmp_type, code } => icmp_type == if v6 { 1 } else { 3 } && code == if v6 { 4 } else { 3 },
            Self::IcmpError | Self::NotShown | Self::HeldBack { .. } => true,
            Self::Rst | Self::LostRst | Self::ToTarget => false,
        }
    }

    pub const fn of(icmp: &Icmp) -> Self {
        Self::Icmp { v6: icmp.v6, icmp_type: icmp.icmp_type, code: icmp.code }
    }
}

/// Follows "rejected the SYN with".
impl fmt::Display for RejectAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rst | Self::LostRst => f.write_str("a RST"),
            Self::Icmp { v6, icmp_type, code } => {
                let protocol = if *v6 { "ICMPv6" } else { "ICMP" };
                write!(f, "{protocol} type {icmp_type} code {code}{}", meaning(*v6, *icmp_type, *code))
            }
            Self::IcmpError => f.write_str("an ICMP error"),
            Self::ToTarget => f.write_str("an answer to the target"),
            Self::NotShown => f.write_str("an answer that tracer cannot see here"),
            Self::HeldBack { v6 } => {
                let setting = if *v6 { "net.ipv6.icmp.ratelimit" } else { "net.ipv4.icmp_ratelimit" };
                write!(f, "an ICMP error that did not come, most likely held back by {setting}")
            }
        }
    }
}

/// The meaning of a code of "destination unreachable" (linux/icmp.h, linux/icmpv6.h).
const fn meaning(v6: bool, icmp_type: u8, code: u8) -> &'static str {
    match (v6, icmp_type, code) {
        (false, 3, 0) => " (network unreachable)",
        (false, 3, 1) => " (host unreachable)",
        (false, 3, 2) => " (protocol unreachable)",
        (false, 3, 3) | (true, 1, 4) => " (port unreachable)",
        (false, 3, 9) => " (network prohibited)",
        (false, 3, 10) => " (host prohibited)",
        (false, 3, 13) | (true, 1, 1) => " (administratively prohibited)",
        (true, 1, 0) => " (no route)",
        (true, 1, 3) => " (address unreachable)",
        _ => "",
    }
}
