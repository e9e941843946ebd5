//! Makes inputs from seeds. Each run has the same inputs.

use std::ops::Range;

/// Numbers that may overflow, as text.
const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "255",
    "65535",
    "2147483647",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "-1",
    "-9223372036854775808",
    "1e308",
    "null",
];
/// Numbers that may overflow, as bytes.
const BINARY: [u64; 10] =
    [0, 1, 7, 0x7f, 0x80, 0x7fff, 0xffff, 0x7fff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];
/// Bytes with a meaning in some of the formats.
const TOKENS: [&[u8]; 10] = [b"\"", b"\\", b"\n", b"{", b"]", b"\0", b"\x80", b": ", b"\xef\xbf\xbd", b"%"];
/// Maximum length of an input.
const MAX: usize = 96 << 10;

/// Makes one input after another.
pub(crate) struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(seeds: &'a [Vec<u8>]) -> Self {
        Self { seeds, state: 0 }
    }

    /// A seed after some changes.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        // An input that keeps its format gets further in the parser.
        let change = if self.below(2) == 0 { Self::change } else { Self::change_gently };
        for _ in 0..=self.below(6) {
            change(self, &mut input);
        }
        input.truncate(MAX);
        input
    }

    /// splitmix64
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random() % end.max(1) as u64) as usize
    }

    fn seed(&mut self) -> &'a [u8] {
        let at = self.below(self.seeds.len());
        &self.seeds[at]
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        let end = (at + 1 + self.below(64)).min(input.len());
        let at = at.min(end);
        match self.below(9) {
            0 => input.truncate(at),
            1 if at < end => input[at] ^= 1 << self.below(8),
            2 if at < end => input[at] = self.random() as u8,
            3 => splice(input, at..end, &[]),
            4 => splice(input, at..at, &input[at..end].repeat(1 + self.below(4))),
            5 => splice(input, at..at, TOKENS[self.below(TOKENS.len())]),
            6 => {
                let other = self.seed();
                let from = self.below(other.len());
                splice(input, at..end, &other[from..(from + self.below(256)).min(other.len())]);
            }
            7 => {
                let size = 1 << self.below(4);
                let mut bytes = BINARY[self.below(BINARY.len())].to_be_bytes()[8 - size..].to_vec();
                if self.below(2) == 0 {
                    bytes.reverse();
                }
                splice(input, at..(at + size).min(input.len()), &bytes);
            }
            _ => self.change_number(input, at),
        }
    }

    /// Changes a number, or removes, repeats or copies a line.
    fn change_gently(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        if self.below(4) > 0 {
            return self.change_number(input, at);
        }
        let line = |at: usize| {
            let begin = input[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let length = input[begin..].iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            begin..begin + length
        };
        let (from, to) = (line(at), line(self.below(input.len())).start);
        let moved = input[from.clone()].to_vec();
        match self.below(3) {
            0 => splice(input, from, &[]),
            1 => splice(input, from.start..from.start, &moved),
            _ => splice(input, to..to, &moved),
        }
    }

    fn change_number(&mut self, input: &mut Vec<u8>, at: usize) {
        let Some(begin) = input[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else { return };
        let length = input[begin..].iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(input.len() - begin);
        splice(input, begin..begin + length, NUMBERS[self.below(NUMBERS.len())].as_bytes());
    }
}

fn splice(input: &mut Vec<u8>, range: Range<usize>, bytes: &[u8]) {
    input.splice(range, bytes.iter().copied());
}
