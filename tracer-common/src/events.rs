//! The table of events. Kinds and the decoding of bytes follow it.

use crate::{actor, conn, drop, header::Header, link, listen, netfilter, netns, reset};

/// Version of the wire format; both sides are built together, so a difference is a build error
/// that userspace reports instead of guessing.
pub const WIRE_VERSION: u16 = 1;

/// Implemented by every event: its kind on the wire.
///
/// # Safety
/// The type is `repr(C)`, begins with a [`Header`], has no padding that is left uninitialised by its writer and is valid
/// for every bit pattern.
pub unsafe trait Event: Copy + 'static {
    /// The number in [`Header::kind`].
    const KIND: Kind;
}

/// Declares the events: kind, number, struct.
macro_rules! events {
    ($($kind:ident = $number:literal: $event:ty;)*) => {
        numbered! {
            /// The kind of an event. Numbers are never reused.
            pub enum Kind { $($kind = $number,)* }
        }

        /// An event as the kernel wrote it.
        #[derive(Clone, Copy, Debug)]
        pub enum KernelEvent { $($kind($event),)* }

        impl KernelEvent {
            /// Each kind and its size.
            pub const SIZES: &'static [(Kind, usize)] = &[$((Kind::$kind, size_of::<$event>()),)*];

            /// Decodes the bytes of an event. `None` if it has another size.
            pub fn of(kind: Kind, bytes: &[u8]) -> Option<Self> {
                match kind { $(Kind::$kind => whole(bytes).map(Self::$kind),)* }
            }

            pub const fn header(&self) -> &Header {
                match self { $(Self::$kind(event) => &event.header,)* }
            }
        }

        $(
            const _: () = assert!(align_of::<$event>() == 8);
            const _: () = assert!(core::mem::offset_of!($event, header) == 0);
            // SAFETY: integers and byte arrays only, header first. The writer sets the whole record to 0 before it fills it.
            unsafe impl Event for $event {
                const KIND: Kind = Kind::$kind;
            }
        )*
    };
}

events! {
    Connect = 1: conn::Connect;
    State = 2: conn::State;
    ConnectResult = 3: conn::ConnectResult;
    Retransmit = 4: conn::Retransmit;
    ResetSent = 5: reset::ResetSent;
    ResetReceived = 6: reset::ResetReceived;
    Drop = 7: drop::PacketDrop;
    Listen = 8: listen::Listen;
    TlsHello = 9: listen::TlsHello;
    NetnsOp = 10: netns::NetnsOp;
    NetnsOpen = 11: netns::NetnsOpen;
    Link = 12: link::Link;
    Icmp = 13: netfilter::Icmp;
    Ipvs = 14: netfilter::Ipvs;
    Answer = 15: conn::Answer;
    QueueFull = 16: listen::QueueFull;
    Prober = 17: actor::Prober;
    PodConnect = 18: conn::PodConnect;
    OomKill = 19: actor::OomKill;
    Held = 20: conn::Held;
}

/// An event, which must fill the record (rings pad lengths, programs do not).
fn whole<T: Event>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked; `Event` types are valid for every bit pattern.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
