//! `struct sk_buff`: headers, device, payload.

use tracer_common::{ABSENT32, ABSENT64};

use super::{Dev, Skb, Sock, read, read_or_zero};
use crate::maps::global;

impl Skb {
    #[inline(always)]
    pub fn sock(self) -> Sock {
        Sock(read_or_zero(self.0, global!(OFFS.skb_sk)))
    }

    #[inline(always)]
    pub fn dev(self) -> Dev {
        Dev(read_or_zero(self.0, global!(OFFS.skb_dev)))
    }

    #[inline(always)]
    pub fn len(self) -> u32 {
        read_or_zero(self.0, global!(OFFS.skb_len))
    }

    /// Conntrack entry and state (`skb->_nfct`); absent in a kernel without conntrack.
    #[inline(always)]
    pub fn nfct(self) -> u64 {
        read(self.0, global!(OFFS.skb_nfct)).unwrap_or(ABSENT64)
    }

    /// Address of the IP header; 0 if there is none.
    #[inline(always)]
    pub fn network(self) -> u64 {
        let Some(offset) = read::<u16>(self.0, global!(OFFS.skb_network_header)) else { return 0 };
        let head = read_or_zero::<u64>(self.0, global!(OFFS.skb_head));
        // 0xffff: `skb_reset_network_header` was never called. 0: it has no room for a link's header, as a packet of a
        // Unix socket: its bytes are those of the sender.
        if offset == 0xffff || offset == 0 || head == 0 { 0 } else { head + u64::from(offset) }
    }

    /// Namespace of the device, else of the socket: packets in LOCAL_OUT have no device yet.
    #[inline(always)]
    pub fn netns(self) -> u32 {
        let dev = self.dev();
        if dev.exists() {
            return dev.net().inum();
        }
        let sk = self.sock();
        if sk.exists() { sk.net().inum() } else { ABSENT32 }
    }
}
