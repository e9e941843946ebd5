//! Ethernet frames of an appliance: parses ARP requests and TCP SYNs, and builds the answers.

use std::net::Ipv4Addr;

const ETH: usize = 14;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The ARP reply, if the frame is a request for `own`.
pub fn arp_reply(frame: &[u8], own: Ipv4Addr, mac: [u8; 6]) -> Option<Vec<u8>> {
    let arp = frame.get(ETH..ETH + 28)?;
    let request = frame[12..14] == [0x08, 0x06] && arp[6..8] == [0, 1];
    if !request || arp[24..28] != own.octets() {
        return None;
    }
    let mut reply = ethernet(frame, mac, [0x08, 0x06]);
    reply.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    reply.extend_from_slice(&mac);
    reply.extend_from_slice(&own.octets());
    reply.extend_from_slice(&arp[8..18]);
    Some(reply)
}

/// The RST, if the frame is a SYN to `own`. The client accepts its sequence numbers.
pub fn syn_reset(frame: &[u8], own: Ipv4Addr, mac: [u8; 6]) -> Option<Vec<u8>> {
    let ip = frame.get(ETH..)?;
    let header = usize::from(ip.first()? & 0x0f) * 4;
    let tcp = ip.get(header..header + 20)?;
    let ours = frame[12..14] == [0x08, 0x00] && ip[9] == 6 && ip[16..20] == own.octets();
    if !ours || tcp[13] & (SYN | ACK | RST) != SYN {
        return None;
    }
    let seq = u32::from_be_bytes(tcp[4..8].try_into().ok()?);
    let mut reply = ethernet(frame, mac, [0x08, 0x00]);
    let segment = segment(tcp, seq.wrapping_add(1));
    reply.extend_from_slice(&packet(own.octets(), ip[12..16].try_into().ok()?, &segment));
    Some(reply)
}

fn ethernet(frame: &[u8], mac: [u8; 6], kind: [u8; 2]) -> Vec<u8> {
    [&frame[6..12], &mac, &kind].concat()
}

/// A RST|ACK from the destination port of the SYN.
fn segment(tcp: &[u8], ack: u32) -> Vec<u8> {
    let mut out = vec![tcp[2], tcp[3], tcp[0], tcp[1], 0, 0, 0, 0];
    out.extend_from_slice(&ack.to_be_bytes());
    out.extend_from_slice(&[5 << 4, RST | ACK, 0, 0, 0, 0, 0, 0]);
    out
}

/// An IPv4 packet with a segment, with both checksums.
fn packet(src: [u8; 4], dst: [u8; 4], segment: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend_from_slice(&src);
    ip.extend_from_slice(&dst);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let pseudo = [&src[..], &dst, &[0, 6, 0, 20], segment].concat();
    let mut segment = segment.to_vec();
    segment[16..18].copy_from_slice(&checksum(&pseudo));
    ip.extend_from_slice(&segment);
    ip
}

/// RFC 1071. The length is even.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_over_a_finished_packet_is_zero() {
        let ip = packet([10, 88, 0, 2], [10, 88, 0, 1], &segment(&[0; 20], 7));
        assert_eq!(checksum(&ip[..20]), [0; 2]);
        let pseudo = [&[10, 88, 0, 2, 10, 88, 0, 1, 0, 6, 0, 20][..], &ip[20..]].concat();
        assert_eq!(checksum(&pseudo), [0; 2]);
    }

    #[test]
    fn only_a_syn_to_the_own_address_is_reset() {
        assert_eq!(syn_reset(&[0; 60], Ipv4Addr::LOCALHOST, [0; 6]), None);
        assert_eq!(syn_reset(&[], Ipv4Addr::LOCALHOST, [0; 6]), None);
    }
}
