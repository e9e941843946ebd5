//! Reads the queueing disciplines of a link. They hold packets back, drop them, or have filters that take them.

use std::collections::BTreeSet;
use std::io;

use libc::RTM_GETQDISC;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::netlink::{Netlink, attribute, consistent, field, text};
use super::programs::{TCA_KIND, TCMSG};

/// The kernel gives a link one of these by itself (`net.core.default_qdisc`), and they drop only what is too much.
const USUAL: [&str; 6] = ["noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq"];

/// The kinds of the link's queueing disciplines, except [`USUAL`] ones. The kernel lists those of all links of the
/// calling thread's namespace.
pub(super) fn unusual(ifindex: u32) -> io::Result<BTreeSet<String>> {
    consistent(|| {
        let mut found = BTreeSet::new();
        let of_link = |message: &[u8]| kind_at(message, ifindex).filter(|kind| !USUAL.contains(&kind.as_str()));
        Netlink::open(NETLINK_ROUTE)?.dump(RTM_GETQDISC, &[0; TCMSG], |message| found.extend(of_link(message)))?;
        Ok(found)
    })
}

fn kind_at(message: &[u8], ifindex: u32) -> Option<String> {
    let of = field(message, 4).map(u32::from_ne_bytes).filter(|of| *of == ifindex);
    of.and(attribute(message.get(TCMSG..)?, TCA_KIND)).map(text)
}

#[cfg(test)]
mod tests {
    use super::super::netlink::push_text;
    use super::*;

    #[test]
    fn a_message_is_of_one_link() {
        let mut message = [0, 7, 0, 0, 0].map(u32::to_ne_bytes).concat();
        push_text(&mut message, TCA_KIND, "netem");
        assert_eq!((kind_at(&message, 7).as_deref(), kind_at(&message, 8)), (Some("netem"), None));
    }

    #[test]
    fn loopback_has_a_usual_one() {
        assert_eq!(unusual(1).expect("rtnetlink"), BTreeSet::new());
    }
}
