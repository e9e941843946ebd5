//! `struct sk_buff`: headers, device, payload.

use tracer_common::ABSENT32;

use super::{Dev, Skb, Sock, read};
use crate::maps::{PAGES, global};

impl Skb {
    #[inline(always)]
    pub fn sock(self) -> Sock {
        Sock(read(self.0, global!(OFFS.skb_sk)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn dev(self) -> Dev {
        Dev(read(self.0, global!(OFFS.skb_dev)).unwrap_or(0))
    }

    #[inline(always)]
    pub fn len(self) -> u32 {
        read(self.0, global!(OFFS.skb_len)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn data_len(self) -> u32 {
        read(self.0, global!(OFFS.skb_data_len)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn data(self) -> u64 {
        read(self.0, global!(OFFS.skb_data)).unwrap_or(0)
    }

    /// Address of the first byte in the first page fragment, 0 if there is none or pages cannot be
    /// found. `skb_frag_t` begins with page, length and offset in all its shapes (`bio_vec` up to
    /// 6.8, `netmem` since); bit 0 of the page marks memory of a device.
    #[inline(always)]
    pub fn first_fragment(self) -> u64 {
        let end = read::<u32>(self.0, global!(OFFS.skb_end)).unwrap_or(0);
        let head = read::<u64>(self.0, global!(OFFS.skb_head)).unwrap_or(0);
        let info = head + u64::from(end);
        let fragments = global!(OFFS.shinfo_frags);
        if head == 0 || read::<u8>(info, global!(OFFS.shinfo_nr_frags)).unwrap_or(0) == 0 || fragments == ABSENT32 {
            return 0;
        }
        let page = read::<u64>(info, fragments).unwrap_or(0);
        let offset = read::<u32>(info, fragments + 12).unwrap_or(0);
        match page_address(page) {
            Some(address) => address + u64::from(offset),
            None => 0,
        }
    }

    /// Address of the IP header, 0 if there is none.
    #[inline(always)]
    pub fn network(self) -> u64 {
        let Some(offset) = read::<u16>(self.0, global!(OFFS.skb_network_header)) else { return 0 };
        let head = read::<u64>(self.0, global!(OFFS.skb_head)).unwrap_or(0);
        // 0xffff: not set (`skb_reset_network_header` was never called).
        if offset == 0xffff || head == 0 { 0 } else { head + u64::from(offset) }
    }

    /// Namespace of the device, else of the socket (LOCAL_OUT packets have no device yet).
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

/// `page_address()` of x86-64, whose bases are variables.
#[inline(always)]
fn page_address(page: u64) -> Option<u64> {
    let layout = PAGES.get(0)?;
    let vmemmap = read::<u64>(layout.vmemmap_base, 0)?;
    let direct = read::<u64>(layout.page_offset_base, 0)?;
    let size = layout.page_struct;
    (size != 0 && page & 1 == 0 && page > vmemmap).then(|| direct + (page - vmemmap) / size * 4096)
}
