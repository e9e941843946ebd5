//! The running kernel's own words: drop reasons, reset reasons, function names.
#![expect(clippy::disallowed_methods, reason = "outside the core: how old the symbols are")]

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::btf::Btf;

/// Names by number, of this kernel: the numbers move between versions.
#[derive(Debug, Default)]
pub struct KernelNames {
    drop_reasons: HashMap<u32, Box<str>>,
    reset_reasons: HashMap<u32, Box<str>>,
    symbols: Option<Symbols>,
    /// Reads kallsyms.
    reader: Option<JoinHandle<Symbols>>,
}

impl KernelNames {
    pub(super) fn from_btf(btf: &Btf<'_>) -> Self {
        Self {
            drop_reasons: names(btf, "skb_drop_reason", "SKB_DROP_REASON_"),
            reset_reasons: names(btf, "sk_rst_reason", "SK_RST_REASON_"),
            symbols: None,
            reader: None,
        }
    }

    /// Name of a drop reason without its prefix; the number if this kernel's BTF does not name it
    /// (subsystems number their own from 65536).
    #[must_use]
    pub fn drop_reason(&self, number: u32) -> String {
        name_or_number(&self.drop_reasons, number)
    }

    /// Name of a reset reason without its prefix.
    #[must_use]
    pub fn reset_reason(&self, number: u32) -> String {
        name_or_number(&self.reset_reasons, number)
    }

    /// Begins to read kallsyms on a thread of its own: it takes 0.05 s, 0.2 s on a busy node, and
    /// the event loop must not stand still for that at the first drop.
    pub(super) fn read_symbols(&mut self) {
        self.reader = thread::Builder::new().name("kallsyms".into()).spawn(Symbols::read).ok();
    }

    /// Function that an address lies in. Waits for the first reading of kallsyms, should it still be
    /// on its way. Has it read again, at most once a minute, when an address lies in no known
    /// function: a module came.
    pub fn symbol(&mut self, address: u64) -> Option<&str> {
        if let Some(reader) = self.reader.take_if(|r| r.is_finished() || self.symbols.is_none()) {
            self.symbols = reader.join().ok();
        }
        let symbols = self.symbols.get_or_insert_with(Symbols::read);
        let stale = symbols.find(address).is_none() && symbols.read_at.elapsed() > Duration::from_secs(60);
        if stale && self.reader.is_none() {
            self.read_symbols();
        }
        self.symbols.as_ref()?.find(address)
    }
}

fn name_or_number(names: &HashMap<u32, Box<str>>, number: u32) -> String {
    names.get(&number).map_or_else(|| number.to_string(), |n| n.to_string())
}

fn names(btf: &Btf<'_>, enum_name: &str, prefix: &str) -> HashMap<u32, Box<str>> {
    btf.enum_values(enum_name)
        .into_iter()
        .map(|(name, value)| (value, Box::from(name.strip_prefix(prefix).unwrap_or(name))))
        .collect()
}

/// Text symbols, sorted by address; names in one string: about 1.9 MB for 64,000 functions.
#[derive(Debug)]
struct Symbols {
    /// The lowest address. All code of a kernel lies within 4 GiB, for its calls to reach.
    base: u64,
    /// Address from `base`, and where its name ends in `names`.
    entries: Vec<(u32, u32)>,
    names: String,
    read_at: Instant,
}

/// No kernel function is longer; what lies further from a symbol is in a module that came later.
const MAX_FUNCTION: u32 = 1 << 16;

impl Symbols {
    fn read() -> Self {
        match File::open("/proc/kallsyms") {
            Ok(file) => {
                let symbols = Self::parse(BufReader::with_capacity(1 << 16, file));
                super::prepare::trim();
                symbols
            }
            Err(_) => Self::parse(&b""[..]),
        }
    }

    /// `ffffffff81000000 T _text [module]`; without CAP_SYSLOG all addresses are 0 and none is kept.
    fn parse(mut input: impl BufRead) -> Self {
        let (mut found, mut text) = (Vec::new(), String::new());
        let mut line = String::new();
        while matches!(input.read_line(&mut line), Ok(n) if n > 0) {
            let mut words = line.split_ascii_whitespace();
            if let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) =
                (words.next().and_then(|a| u64::from_str_radix(a, 16).ok()), words.next(), words.next())
                && address != 0
                // The padding before each function, half of all symbols since 6.2: no code of ours runs there.
                && !name.starts_with("__pfx_")
            {
                let start = text.len() as u32;
                text.push_str(name);
                found.push((address, start, text.len() as u32));
            }
            line.clear();
        }
        found.sort_unstable_by_key(|(address, start, _)| (*address, *start));
        Self::pack(&found, &text)
    }

    fn pack(found: &[(u64, u32, u32)], text: &str) -> Self {
        let base = found.first().map_or(0, |(address, ..)| *address);
        let mut packed = Self {
            base,
            entries: Vec::with_capacity(found.len()),
            names: String::with_capacity(text.len()),
            read_at: Instant::now(),
        };
        for (address, start, end) in found {
            let Ok(address) = u32::try_from(address - base) else { break };
            packed.names.push_str(&text[*start as usize..*end as usize]);
            packed.entries.push((address, packed.names.len() as u32));
        }
        packed
    }

    fn find(&self, address: u64) -> Option<&str> {
        let address = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        let (start, end) = *self.entries.get(after.checked_sub(1)?)?;
        let from = after.checked_sub(2).and_then(|i| self.entries.get(i)).map_or(0, |(_, end)| *end);
        (address - start < MAX_FUNCTION).then(|| self.names.get(from as usize..end as usize)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let text = "ffffffff81000200 T b\nffffffff81000100 t a_longer_name\nffffffff81000300 D data\nffffffffc0000000 t m [mod]\n";
        let symbols = Symbols::parse(text.as_bytes());
        assert_eq!(symbols.find(0xffff_ffff_8100_0100), Some("a_longer_name"));
        assert_eq!(symbols.find(0xffff_ffff_8100_01ff), Some("a_longer_name"));
        assert_eq!(symbols.find(0xffff_ffff_8100_0200), Some("b"));
        assert_eq!(symbols.find(0xffff_ffff_c000_0010), Some("m"));
        assert_eq!(symbols.find(0xffff_ffff_8100_00ff), None);
        assert_eq!(symbols.find(0xffff_ffff_a000_0000), None, "too far from anything");
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let symbols = Symbols::parse(&b"0000000000000000 T _text\n0000000000000000 T other\n"[..]);
        assert_eq!(symbols.find(0xffff_ffff_8100_0100), None);
    }
}
