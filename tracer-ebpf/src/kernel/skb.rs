//! `struct sk_buff`: headers, device, payload.

use tracer_common::{ABSENT32, ABSENT64, tuple::Tuple};

use super::{Dev, Skb, Sock, read, read_addr, read_or_zero};
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

    /// Replaces a tuple by that of the connection's first packet before any translation, if conntrack has an entry.
    ///
    /// `struct nf_conntrack_man` begins with 16 bytes of address, the port and the family, and `dst` of the tuple with
    /// 16 bytes of address and the port (v5.10 to v7.2, include/net/netfilter/nf_conntrack_tuple.h).
    #[inline(always)]
    pub fn undo_translation(self, tuple: &mut Tuple) {
        // The low three bits are the state of the packet (`NFCT_INFOMASK`).
        let entry = read_or_zero::<u64>(self.0, global!(OFFS.skb_nfct)) & !7;
        let (at, within) = (global!(OFFS.conntrack_tuples), global!(OFFS.tuple_in_hash));
        if entry == 0 || at == ABSENT32 || within == ABSENT32 {
            return;
        }
        let original = entry + u64::from(at) + u64::from(within);
        let (src, dst) = (global!(OFFS.tuple_src), global!(OFFS.tuple_dst));
        let family = read_or_zero(original + 18, src);
        if read_addr(family, original, [src, src], &mut tuple.saddr)
            && read_addr(family, original, [dst, dst], &mut tuple.daddr)
        {
            tuple.sport = u16::from_be(read_or_zero(original + 16, src));
            tuple.dport = u16::from_be(read_or_zero(original + 16, dst));
        }
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
