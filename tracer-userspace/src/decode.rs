//! Bytes of the ring to typed events: length, version and kind are checked, nothing is trusted.

use tracer_common::{
    Event,
    conn::{Answer, Connect, ConnectResult, Retransmit, State},
    drop::PacketDrop,
    header::{Header, Kind, WIRE_VERSION},
    link::Link,
    listen::{Listen, QueueFull, TlsHello},
    netfilter::{Icmp, Ipvs},
    netns::{NetnsOp, NetnsOpen},
    reset::{ResetReceived, ResetSent},
};

/// An event as the kernel wrote it.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "named after what they carry")]
#[expect(clippy::large_enum_variant, reason = "lives on the stack for the length of one call")]
pub enum KernelEvent {
    Connect(Connect),
    State(State),
    ConnectResult(ConnectResult),
    Retransmit(Retransmit),
    ResetSent(ResetSent),
    ResetReceived(ResetReceived),
    Drop(PacketDrop),
    Listen(Listen),
    TlsHello(TlsHello),
    NetnsOp(NetnsOp),
    NetnsOpen(NetnsOpen),
    Link(Link),
    Icmp(Icmp),
    Ipvs(Ipvs),
    Answer(Answer),
    QueueFull(QueueFull),
}

/// Bytes that are no event of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a header, or of another length than its kind has.
    #[error("{0} bytes do not fit the event")]
    Length(usize),
    /// Written by programs of another build.
    #[error("wire version {0} instead of {WIRE_VERSION}")]
    Version(u16),
    /// A number that no event has.
    #[error("unknown kind of event {0}")]
    Kind(u16),
}

/// Decodes one record.
///
/// # Errors
/// If the bytes are no event of this version.
pub fn decode(bytes: &[u8]) -> Result<KernelEvent, DecodeError> {
    let header: Header = prefix(bytes)?;
    if header.version != WIRE_VERSION {
        return Err(DecodeError::Version(header.version));
    }
    Ok(match header.kind {
        k if k == Kind::Connect as u16 => KernelEvent::Connect(whole(bytes)?),
        k if k == Kind::State as u16 => KernelEvent::State(whole(bytes)?),
        k if k == Kind::ConnectResult as u16 => KernelEvent::ConnectResult(whole(bytes)?),
        k if k == Kind::Retransmit as u16 => KernelEvent::Retransmit(whole(bytes)?),
        k if k == Kind::ResetSent as u16 => KernelEvent::ResetSent(whole(bytes)?),
        k if k == Kind::ResetReceived as u16 => KernelEvent::ResetReceived(whole(bytes)?),
        k if k == Kind::Drop as u16 => KernelEvent::Drop(whole(bytes)?),
        k if k == Kind::Listen as u16 => KernelEvent::Listen(whole(bytes)?),
        k if k == Kind::TlsHello as u16 => KernelEvent::TlsHello(whole(bytes)?),
        k if k == Kind::NetnsOp as u16 => KernelEvent::NetnsOp(whole(bytes)?),
        k if k == Kind::NetnsOpen as u16 => KernelEvent::NetnsOpen(whole(bytes)?),
        k if k == Kind::Link as u16 => KernelEvent::Link(whole(bytes)?),
        k if k == Kind::Icmp as u16 => KernelEvent::Icmp(whole(bytes)?),
        k if k == Kind::Ipvs as u16 => KernelEvent::Ipvs(whole(bytes)?),
        k if k == Kind::Answer as u16 => KernelEvent::Answer(whole(bytes)?),
        k if k == Kind::QueueFull as u16 => KernelEvent::QueueFull(whole(bytes)?),
        other => return Err(DecodeError::Kind(other)),
    })
}

impl KernelEvent {
    /// The header that every event begins with.
    #[must_use]
    pub const fn header(&self) -> &Header {
        match self {
            Self::Connect(e) => &e.header,
            Self::State(e) => &e.header,
            Self::ConnectResult(e) => &e.header,
            Self::Retransmit(e) => &e.header,
            Self::ResetSent(e) => &e.header,
            Self::ResetReceived(e) => &e.header,
            Self::Drop(e) => &e.header,
            Self::Listen(e) => &e.header,
            Self::TlsHello(e) => &e.header,
            Self::NetnsOp(e) => &e.header,
            Self::NetnsOpen(e) => &e.header,
            Self::Link(e) => &e.header,
            Self::Icmp(e) => &e.header,
            Self::Ipvs(e) => &e.header,
            Self::Answer(e) => &e.header,
            Self::QueueFull(e) => &e.header,
        }
    }
}

/// An event, which must fill the record (rings pad lengths, programs do not).
fn whole<T: Event>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() != size_of::<T>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    // SAFETY: the length was checked; `Event` types are valid for every bit pattern.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

fn prefix(bytes: &[u8]) -> Result<Header, DecodeError> {
    if bytes.len() < size_of::<Header>() {
        return Err(DecodeError::Length(bytes.len()));
    }
    // SAFETY: the length was checked; a header is integers only.
    Ok(unsafe { bytes.as_ptr().cast::<Header>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(version: u16, kind: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        bytes[8..10].copy_from_slice(&version.to_ne_bytes());
        bytes[10..12].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn each_kind_has_one_length() {
        let sizes = [
            (Kind::Connect, size_of::<Connect>()),
            (Kind::State, size_of::<State>()),
            (Kind::ConnectResult, size_of::<ConnectResult>()),
            (Kind::Retransmit, size_of::<Retransmit>()),
            (Kind::ResetSent, size_of::<ResetSent>()),
            (Kind::ResetReceived, size_of::<ResetReceived>()),
            (Kind::Drop, size_of::<PacketDrop>()),
            (Kind::Listen, size_of::<Listen>()),
            (Kind::TlsHello, size_of::<TlsHello>()),
            (Kind::NetnsOp, size_of::<NetnsOp>()),
            (Kind::NetnsOpen, size_of::<NetnsOpen>()),
            (Kind::Link, size_of::<Link>()),
            (Kind::Icmp, size_of::<Icmp>()),
            (Kind::Ipvs, size_of::<Ipvs>()),
            (Kind::Answer, size_of::<Answer>()),
            (Kind::QueueFull, size_of::<QueueFull>()),
        ];
        for (kind, len) in sizes.map(|(kind, len)| (kind as u16, len)) {
            let event = decode(&record(WIRE_VERSION, kind, len)).expect("an event");
            assert_eq!(event.header().kind, kind);
            assert_eq!(decode(&record(WIRE_VERSION, kind, len + 8)).err(), Some(DecodeError::Length(len + 8)));
        }
        assert_eq!(decode(&record(WIRE_VERSION, 99, 80)).err(), Some(DecodeError::Kind(99)));
        assert_eq!(decode(&record(7, 1, 128)).err(), Some(DecodeError::Version(7)));
        assert_eq!(decode(&[0; 23]).err(), Some(DecodeError::Length(23)));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u16..20) {
            if bytes.len() >= 12 {
                bytes[8..10].copy_from_slice(&WIRE_VERSION.to_ne_bytes());
                bytes[10..12].copy_from_slice(&kind.to_ne_bytes());
            }
            if let Ok(event) = decode(&bytes) {
                let mut names = crate::ebpf::KernelNames::default();
                let _ = crate::observe::observe(&event, &mut names, &[]);
            }
        }
    }
}
