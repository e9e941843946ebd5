//! Reads struct offsets and enum values from BTF (`Documentation/bpf/btf.rst`), only those that the programs need. It is a pure
//! function of bytes. aya's reader does not expose members and needs 20 MB.

use std::collections::HashMap;

/// The limit of nested anonymous members and typedefs; the kernel has five levels.
const MAX_DEPTH: u32 = 32;

const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// `magic` 0xeb9f, `version` 1, `flags` 0.
const MAGIC_AND_VERSION: u32 = 0x0001_eb9f;
/// Size of a header in this version.
const HEADER: u32 = 24;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    /// Magic number, version or section bounds do not fit.
    #[error("not BTF of this machine's byte order")]
    Header,
    /// A type runs over the end or is of a kind that did not exist when this was written.
    #[error("type {0} is malformed or of unknown kind {1}")]
    Type(usize, u32),
}

/// An index over BTF bytes.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Start of each type in `types`; type ids begin with 1.
    index: Vec<u32>,
    /// The wanted structs and enums, by name.
    named: HashMap<&'a str, usize>,
}

/// The fixed head of a type.
#[derive(Clone, Copy)]
struct Head {
    at: usize,
    name: u32,
    kind: u32,
    vlen: usize,
    kind_flag: bool,
    /// Size or type, by kind.
    value: u32,
}

impl<'a> Btf<'a> {
    /// Indexes all types and notes the structs and enums in `wanted`.
    pub fn parse(bytes: &'a [u8], wanted: &[&str]) -> Result<Self, BtfError> {
        let word = |at: usize| read_u32(bytes, at).ok_or(BtfError::Header);
        if word(0)? & 0x00ff_ffff != MAGIC_AND_VERSION {
            return Err(BtfError::Header);
        }
        let header = word(4)? as usize;
        let section = |off: usize, len: usize| {
            let from = header.checked_add(word(off)? as usize).ok_or(BtfError::Header)?;
            let to = from.checked_add(word(len)? as usize).ok_or(BtfError::Header)?;
            bytes.get(from..to).ok_or(BtfError::Header)
        };
        let mut btf =
            Self { types: section(8, 12)?, strings: section(16, 20)?, index: Vec::new(), named: HashMap::new() };
        btf.build_index(wanted)?;
        Ok(btf)
    }

    fn build_index(&mut self, wanted: &[&str]) -> Result<(), BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let id = self.index.len() + 1;
            let head = self.head_at(at).ok_or(BtfError::Type(id, 0))?;
            let size = body_size(head.kind, head.vlen).ok_or(BtfError::Type(id, head.kind))?;
            if matches!(head.kind, KIND_STRUCT | KIND_ENUM | KIND_ENUM64)
                && let Some(name) = self.string(head.name)
                && wanted.contains(&name)
            {
                self.named.entry(name).or_insert(id);
            }
            self.index.push(u32::try_from(at).map_err(|_| BtfError::Type(id, head.kind))?);
            at += 12 + size;
        }
        Ok(())
    }

    /// Makes BTF of only these functions, with their ids; each other type is replaced by the smallest possible type. It is enough for
    /// trampolines, and aya parses it in a tenth of the time.
    pub fn functions(&self, wanted: &[&str]) -> Vec<u8> {
        let found = self.function_ids(wanted);
        let last = found.values().max().map_or(0, |id| *id);
        let mut types = [0, KIND_CONST << 24, 0].repeat(last);
        let mut strings = vec![0];
        for (name, id) in found {
            types[(id - 1) * 3] = strings.len() as u32;
            types[(id - 1) * 3 + 1] = KIND_FUNC << 24;
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let size = (types.len() * 4) as u32;
        let head = [MAGIC_AND_VERSION, HEADER, 0, size, size, strings.len() as u32];
        let words = head.into_iter().chain(types);
        words.flat_map(u32::to_ne_bytes).chain(strings).collect()
    }

    /// The ids of these functions; the first id if several have the same name.
    pub(super) fn function_ids<'n>(&self, wanted: &[&'n str]) -> HashMap<&'n str, usize> {
        let mut found = HashMap::new();
        for (at, id) in self.index.iter().zip(1..) {
            let Some(head) = self.head_at(*at as usize).filter(|head| head.kind == KIND_FUNC) else { continue };
            if let Some(name) = wanted.iter().find(|name| self.is_named(head, name)) {
                found.entry(*name).or_insert(id);
            }
        }
        found
    }

    fn is_named(&self, head: Head, name: &str) -> bool {
        let rest = self.strings.get(head.name as usize..).and_then(|text| text.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Id of a struct; `None` if it was not wanted, or this kernel has no such struct.
    pub(super) fn id(&self, struct_name: &str) -> Option<u32> {
        u32::try_from(*self.named.get(struct_name)?).ok()
    }

    /// Size of a struct in bytes; `None` if it was not wanted, or this kernel has no such struct.
    pub fn size(&self, struct_name: &str) -> Option<u32> {
        Some(self.head(*self.named.get(struct_name)?)?.value)
    }

    /// Byte offset of a member, by its path from a struct; anonymous members on the way need no name.
    pub fn offset(&self, struct_name: &str, path: &str) -> Option<u32> {
        let mut id = *self.named.get(struct_name)?;
        let mut bits = 0u32;
        for name in path.split('.') {
            let (at, member) = self.member(id, name, MAX_DEPTH)?;
            bits = bits.checked_add(at)?;
            id = member;
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Names and values of an enum; empty if this kernel has no such enum.
    pub fn enum_values(&self, enum_name: &str) -> Vec<(&'a str, u32)> {
        let Some(head) = self.named.get(enum_name).and_then(|id| self.head(*id)) else { return Vec::new() };
        let width = match head.kind {
            KIND_ENUM => 8,
            KIND_ENUM64 => 12,
            _ => return Vec::new(),
        };
        (0..head.vlen)
            .map_while(|i| {
                let at = head.at + 12 + i * width;
                Some((self.string(read_u32(self.types, at)?)?, read_u32(self.types, at + 4)?))
            })
            .collect()
    }

    /// Bit offset and type of a member of a struct or union, through anonymous ones.
    fn member(&self, id: usize, name: &str, depth: u32) -> Option<(u32, usize)> {
        let head = self.head(self.strip(id)?)?;
        if !matches!(head.kind, KIND_STRUCT | KIND_UNION) || depth == 0 {
            return None;
        }
        for i in 0..head.vlen {
            let at = head.at + 12 + i * 12;
            let (member_name, member_type, offset) =
                (read_u32(self.types, at)?, read_u32(self.types, at + 4)? as usize, read_u32(self.types, at + 8)?);
            let (offset, is_bit_field) =
                if head.kind_flag { (offset & 0x00ff_ffff, offset >> 24 != 0) } else { (offset, false) };
            match self.string(member_name) {
                Some(found) if found == name => return (!is_bit_field).then_some((offset, member_type)),
                Some("") => {
                    if let Some((inner, found)) = self.member(member_type, name, depth - 1) {
                        return Some((offset.checked_add(inner)?, found));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn strip(&self, mut id: usize) -> Option<usize> {
        for _ in 0..MAX_DEPTH {
            let head = self.head(id)?;
            match head.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => id = head.value as usize,
                _ => return Some(id),
            }
        }
        None
    }

    fn head(&self, id: usize) -> Option<Head> {
        self.head_at(*self.index.get(id.checked_sub(1)?)? as usize)
    }

    fn head_at(&self, at: usize) -> Option<Head> {
        let info = read_u32(self.types, at + 4)?;
        Some(Head {
            at,
            name: read_u32(self.types, at)?,
            kind: (info >> 24) & 0x1f,
            vlen: (info & 0xffff) as usize,
            kind_flag: info >> 31 == 1,
            value: read_u32(self.types, at + 8)?,
        })
    }

    fn string(&self, at: u32) -> Option<&'a str> {
        let rest = self.strings.get(at as usize..)?;
        let end = rest.iter().position(|b| *b == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }
}

/// Bytes that follow the head; `None` for an unknown kind, which has no known size.
fn body_size(kind: u32, vlen: usize) -> Option<usize> {
    Some(match kind {
        1 | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => vlen * 12,
        KIND_ENUM | KIND_FUNC_PROTO => vlen * 8,
        2 | 7..=12 | 16 | KIND_TYPE_TAG => 0,
        _ => return None,
    })
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes BTF the way a compiler does.
    struct Writer {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Writer {
        fn new() -> Self {
            Self { types: Vec::new(), strings: vec![0] }
        }
        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend_from_slice(name.as_bytes());
            self.strings.push(0);
            at
        }
        fn words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }
        fn int(&mut self) {
            self.words(&[0, 1 << 24, 4, 32]);
        }
        fn group(&mut self, kind: u32, name: &str, kind_flag: bool, members: &[(&str, u32, u32)]) {
            let name = self.name(name);
            self.words(&[name, u32::from(kind_flag) << 31 | kind << 24 | members.len() as u32, 0]);
            for (member, ty, offset) in members {
                let member = self.name(member);
                self.words(&[member, *ty, *offset]);
            }
        }
        fn finish(self) -> Vec<u8> {
            let size = self.types.len() as u32;
            let head = [MAGIC_AND_VERSION, HEADER, 0, size, size, self.strings.len() as u32];
            [&head.map(u32::to_ne_bytes).concat(), &self.types[..], &self.strings].concat()
        }
    }

    fn sample() -> Vec<u8> {
        let mut w = Writer::new();
        w.int(); // 1
        w.group(KIND_UNION, "", false, &[("a", 1, 0), ("b", 1, 0)]); // 2
        w.group(KIND_STRUCT, "inner", false, &[("x", 1, 0), ("inum", 1, 64)]); // 3
        w.words(&[0, KIND_CONST << 24, 3]); // 4: const struct inner
        w.group(KIND_STRUCT, "outer", true, &[("first", 1, 0), ("", 2, 32), ("ns", 4, 128), ("bit", 1, 1 << 24 | 192)]); // 5
        let (kind, a, b) = (w.name("reason"), w.name("REASON_A"), w.name("REASON_B"));
        w.words(&[kind, KIND_ENUM << 24 | 2, 4, a, 0, b, 7]); // 6
        w.finish()
    }

    #[test]
    fn offsets_go_through_anonymous_members_and_qualifiers() {
        let bytes = sample();
        let btf = Btf::parse(&bytes, &["outer", "reason"]).unwrap();
        assert_eq!(btf.offset("outer", "first"), Some(0));
        assert_eq!(btf.offset("outer", "b"), Some(4));
        assert_eq!(btf.offset("outer", "ns.inum"), Some(24));
        assert_eq!(btf.offset("outer", "bit"), None, "a bit field has no byte offset");
        assert_eq!(btf.offset("outer", "none"), None);
        assert_eq!(btf.offset("inner", "x"), None, "was not asked for");
        assert_eq!(btf.enum_values("reason"), [("REASON_A", 0), ("REASON_B", 7)]);
    }

    #[test]
    fn a_function_keeps_its_id_and_aya_reads_it() {
        let mut w = Writer::new();
        w.int(); // 1
        for name in ["tcp_connect_init", "tcp_connect", "tcp_connect"] {
            let name = w.name(name);
            w.words(&[name, KIND_FUNC << 24, 0]); // 2, 3, 4
        }
        let bytes = w.finish();
        let wanted = ["tcp_connect", "tcp"];
        let functions = Btf::parse(&bytes, &[]).unwrap().functions(&wanted);
        aya::Btf::parse(&functions, aya::Endianness::default()).unwrap();
        let few = Btf::parse(&functions, &[]).unwrap();
        assert_eq!(few.function_ids(&["tcp_connect", "tcp", "tcp_connect_init"]), HashMap::from([("tcp_connect", 3)]));
    }

    #[test]
    fn this_kernel_has_a_socket() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else { return };
        let btf = Btf::parse(&bytes, &["sock", "net", "task_struct"]).unwrap();
        assert_eq!(btf.offset("sock", "__sk_common.skc_dport"), Some(12));
        assert_eq!(btf.offset("sock", "__sk_common.skc_net"), Some(48));
        assert!(btf.size("sock") > Some(48) && btf.size("tcp_sock").is_none());
        assert!(btf.offset("net", "ns.inum").is_some());
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
            let mut bytes = sample();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(btf) = Btf::parse(&bytes, &["outer", "inner", "reason"]) {
                let _ = (btf.offset("outer", "ns.inum"), btf.offset("outer", "nothing"), btf.enum_values("reason"));
            }
        }
    }
}
