//! Fields that journald has compressed: those of 512 bytes and more, with Zstandard, or LZ4 before systemd 246.

use ruzstd::decoding::FrameDecoder;

/// Zstandard, as the flags of an object have it.
const ZSTD: u8 = 4;
const LZ4: u8 = 2;

/// The content of a packed field. Absent if it is longer than `max`, damaged, or packed with XZ, which journald has used
/// since 2018 only if it was built without the others.
pub(super) fn unpack(packed: u8, bytes: Vec<u8>, max: usize) -> Option<Vec<u8>> {
    match packed {
        0 => Some(bytes),
        LZ4 => lz4(&bytes, max),
        ZSTD => zstd(&bytes, max),
        _ => None,
    }
}

/// The unpacked length, then one block.
fn lz4(bytes: &[u8], max: usize) -> Option<Vec<u8>> {
    let (length, block) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|length| *length <= max)?;
    let mut content = vec![0; length];
    let written = lz4_flex::block::decompress_into(block, &mut content).ok()?;
    content.truncate(written);
    Some(content)
}

fn zstd(bytes: &[u8], max: usize) -> Option<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(max as u64);
    let mut content = vec![0; max];
    let written = decoder.decode_all(bytes, &mut content).ok()?;
    content.truncate(written);
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_bounded() {
        // A block of four literal bytes.
        let lz4 = |length: u64| [&length.to_le_bytes()[..], &[0x40], b"a=bc"].concat();
        assert_eq!(unpack(LZ4, lz4(4), 64).as_deref(), Some(&b"a=bc"[..]));
        assert_eq!(unpack(LZ4, lz4(1 << 40), 64), None);
        // A frame of one segment with one raw block: magic, descriptor, content size, block header.
        let zstd = [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 4, 0x21, 0, 0][..], b"a=bc"].concat();
        assert_eq!(unpack(ZSTD, zstd.clone(), 64).as_deref(), Some(&b"a=bc"[..]));
        assert_eq!(unpack(ZSTD, zstd, 3), None);
        assert_eq!(unpack(1, b"xz".to_vec(), 64), None);
        assert_eq!(unpack(0, b"a=bc".to_vec(), 64).as_deref(), Some(&b"a=bc"[..]));
    }
}
