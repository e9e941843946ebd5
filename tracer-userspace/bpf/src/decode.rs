//! Decodes bytes of the ring into typed events, after checks of length, version and kind.

use tracer_common::events::{KernelEvent, Kind, WIRE_VERSION};
use tracer_common::header::Header;

/// Bytes that are no event of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a header, or of another length than its kind has.
    #[error("{0} bytes do not fit the event")]
    Length(usize),
    /// The programs are of another build.
    #[error("wire version {0} instead of {WIRE_VERSION}")]
    Version(u16),
    /// A number that no event has.
    #[error("unknown kind of event {0}")]
    Kind(u16),
}

/// Decodes one record.
pub fn decode(bytes: &[u8]) -> Result<KernelEvent, DecodeError> {
    let header: Header = prefix(bytes)?;
    if header.version != WIRE_VERSION {
        return Err(DecodeError::Version(header.version));
    }
    let kind = Kind::from_number(header.kind).ok_or(DecodeError::Kind(header.kind))?;
    KernelEvent::of(kind, bytes).ok_or(DecodeError::Length(bytes.len()))
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

    fn record(version: u16, kind: u16, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[8..10].copy_from_slice(&version.to_ne_bytes());
        bytes[10..12].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn each_kind_has_one_length() {
        for (kind, len) in KernelEvent::SIZES.iter().map(|(kind, len)| (*kind as u16, *len)) {
            let event = decode(&record(WIRE_VERSION, kind, len)).expect("an event");
            assert_eq!(event.header().kind, kind);
            assert_eq!(decode(&record(WIRE_VERSION, kind, len + 8)).err(), Some(DecodeError::Length(len + 8)));
        }
        assert_eq!(decode(&record(WIRE_VERSION, 99, 80)).err(), Some(DecodeError::Kind(99)));
        assert_eq!(decode(&record(7, 1, 128)).err(), Some(DecodeError::Version(7)));
        assert_eq!(decode(&[0; 15]).err(), Some(DecodeError::Length(15)));
    }
}
