//! Names of the running kernel: drop reasons, reset reasons, functions.

use std::{
    collections::HashMap,
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{BufRead, BufReader},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::btf::Btf;

/// Names of this kernel by number: the numbers change between versions.
#[derive(Debug, Default)]
pub struct KernelNames {
    drop_reasons: HashMap<u32, Box<str>>,
    /// Subsystems with their own reasons, by the upper half of the number. These numbers change between versions, too.
    subsystems: HashMap<u32, Box<str>>,
    reset_reasons: HashMap<u32, Box<str>>,
    symbols: Option<Symbols>,
    /// The modules at the last reading, and when that was checked.
    modules: Option<(u64, Instant)>,
    /// Functions outside of the network code that dropped a packet, by address.
    others: HashMap<u64, Option<Box<str>>>,
    /// Reads kallsyms.
    reader: Option<JoinHandle<Symbols>>,
}

/// How often tracer looks for new modules, at most.
const MODULES_EVERY: Duration = Duration::from_secs(1);

/// The enums that name drop reasons, subsystems and reset reasons.
pub(super) const ENUMS: [&str; 3] = ["skb_drop_reason", "skb_drop_reason_subsys", "sk_rst_reason"];

impl KernelNames {
    /// `btf` must have the [`ENUMS`].
    pub(super) fn from_btf(btf: &Btf<'_>) -> Self {
        let [drop_reasons, subsystems, reset_reasons] = ENUMS;
        Self {
            drop_reasons: names(btf, drop_reasons, "SKB_DROP_REASON_"),
            subsystems: names(btf, subsystems, "SKB_DROP_REASON_SUBSYS_"),
            reset_reasons: names(btf, reset_reasons, "SK_RST_REASON_"),
            ..Self::default()
        }
    }

    /// Name of a drop reason without its prefix; the number if this kernel's BTF does not name it.
    /// `OPENVSWITCH:3` is the third of a subsystem: its names are in a module's BTF.
    pub fn drop_reason(&self, number: u32) -> String {
        let (subsystem, own) = (number >> 16, number & 0xffff);
        match self.subsystems.get(&subsystem).filter(|_| subsystem > 0) {
            Some(name) => format!("{name}:{own}"),
            None => name_or_number(&self.drop_reasons, number),
        }
    }

    /// Name of a reset reason without its prefix.
    pub fn reset_reason(&self, number: u32) -> String {
        name_or_number(&self.reset_reasons, number)
    }

    /// Starts to read kallsyms for the first drop, if none came yet.
    pub(super) fn read_ahead(&mut self) {
        if self.symbols.is_none() && self.reader.is_none() {
            self.read_symbols();
        }
    }

    /// Starts to read kallsyms on a thread. It takes 0.05 s, or 0.2 s on a busy node, and must not block the event loop at the
    /// first drop.
    pub(super) fn read_symbols(&mut self) {
        self.modules = Some((modules(), Instant::now()));
        self.reader = thread::Builder::new().name("kallsyms".into()).spawn(Symbols::read).ok();
    }

    /// The function at an address, if it belongs to the network code. Waits for the first reading of kallsyms. If the address is in
    /// no known function, a module may be new: then kallsyms is read again, at most once a minute.
    pub fn symbol(&mut self, address: u64) -> Option<&str> {
        self.find(address).filter(|name| !name.is_empty())
    }

    /// The function that dropped a packet. For each function outside of the network code, kallsyms is read once: there are few.
    pub fn location(&mut self, address: u64) -> Option<&str> {
        if self.find(address) == Some("") && !self.others.contains_key(&address) {
            self.others.insert(address, kallsyms().and_then(|text| name_at(text, address)));
        }
        match self.others.get(&address) {
            Some(other) => other.as_deref(),
            None => self.symbols.as_ref()?.find(address),
        }
    }

    /// Empty for a function outside of the network code.
    fn find(&mut self, address: u64) -> Option<&str> {
        if let Some(reader) = self.reader.take_if(|r| r.is_finished() || self.symbols.is_none()) {
            self.symbols = reader.join().ok();
        }
        // The code of a new module may follow that of an older one: then a name would be found, of the wrong function.
        if self.modules_changed() {
            (self.symbols, self.others) = (None, HashMap::new());
        }
        let symbols = self.symbols.get_or_insert_with(Symbols::read);
        let stale = symbols.find(address).is_none() && symbols.read_at.elapsed() > Duration::from_secs(60);
        if stale && self.reader.is_none() {
            self.read_symbols();
        }
        self.symbols.as_ref()?.find(address)
    }

    /// Whether modules were loaded or unloaded since the last call. False at the first one.
    fn modules_changed(&mut self) -> bool {
        if self.modules.is_some_and(|(_, checked)| checked.elapsed() < MODULES_EVERY) {
            return false;
        }
        let now = modules();
        let before = self.modules.replace((now, Instant::now()));
        before.is_some_and(|(before, _)| before != now)
    }
}

/// A number for the names and addresses of the modules. Their use counts change all the time.
fn modules() -> u64 {
    let text = fs::read("/proc/modules").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        (words.next(), words.nth(4)).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
impl KernelNames {
    /// The names of a kernel with these drop reasons, which are also its reset reasons, and functions.
    pub(crate) fn of(drop_reasons: &[(u32, &str)], kallsyms: &str) -> Self {
        let drop_reasons: HashMap<u32, Box<str>> =
            drop_reasons.iter().map(|(number, name)| (*number, Box::from(*name))).collect();
        let reset_reasons = drop_reasons.clone();
        Self { drop_reasons, reset_reasons, symbols: Some(Symbols::parse(kallsyms.as_bytes())), ..Self::default() }
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

/// Prefixes of the functions that packets pass through, and of those that kill for lack of memory, without leading underscores.
/// Only these matter in the stack of an event.
/// They are 9,000 of 64,000 functions, and need 0.5 MB.
#[rustfmt::skip]
const NETWORK: [&str; 49] = [
    "arp", "bpf_prog_run", "br_", "cgroup_bpf", "cls_", "consume", "ct_", "dev_", "do_ip", "dst", "ebt", "fib", "geneve", "gre", "icmp", "igmp", "inet", "ip",
    "kfree_skb", "lwt", "macvlan", "mld", "napi", "ndisc", "neigh", "net", "nf", "oom_kill", "out_of_memory", "ovs", "packet", "process_backlog",
    "qdisc", "raw", "reject", "rt_", "sch_", "sk", "sock", "tap_", "tc", "tun", "udp", "veth", "vlan", "vxlan", "xdp_", "xfrm",
    "xt_",
];

/// Text symbols, sorted by address, with the names in one string. Neighbours outside of the network code share an entry without a
/// name.
#[derive(Debug)]
struct Symbols {
    /// Address, and where its name begins in `names`.
    entries: Vec<(u64, u32)>,
    names: String,
    read_at: Instant,
}

/// No kernel function is longer. An address further from a symbol is in a module that was loaded later.
const MAX_FUNCTION: u64 = 1 << 16;

fn kallsyms() -> Option<impl BufRead> {
    Some(BufReader::with_capacity(1 << 16, File::open("/proc/kallsyms").ok()?))
}

/// Why the kernel hides where its functions are, if it does: all of them or none (`kallsyms_show_value`,
/// kernel/ksyms_common.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenFunctions {
    /// `kernel.kptr_restrict` is 2: no capability helps.
    BySetting,
    /// CAP_SYSLOG is missing.
    ByCapability,
}

impl HiddenFunctions {
    pub fn here() -> Option<Self> {
        let first = kallsyms()?.lines().map_while(Result::ok).find_map(|line| Some(function(&line)?.0))?;
        let by_setting = || fs::read_to_string("/proc/sys/kernel/kptr_restrict").is_ok_and(|text| text.trim() == "2");
        (first == 0).then(|| if by_setting() { Self::BySetting } else { Self::ByCapability })
    }

    /// The reason, and what follows from it.
    pub fn explain(self) -> String {
        let why = match self {
            Self::BySetting => "kernel.kptr_restrict is 2",
            Self::ByCapability => "CAP_SYSLOG is missing",
        };
        format!("{why}: the kernel hides which function drops a packet, so verdicts on dropped packets are less sure")
    }
}

/// A function with its address, which is 0 if it is hidden: `ffffffff81000000 T _text [module]`.
fn function(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let name = rest.strip_prefix(['t', 'T', 'w', 'W'])?.split_ascii_whitespace().next()?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// Each function with its address, in the file's order.
fn functions(mut input: impl BufRead, mut each: impl FnMut(u64, &str)) {
    let mut line = String::new();
    let mut are_shown = false;
    while matches!(input.read_line(&mut line), Ok(n) if n > 0) {
        match function(&line) {
            Some((0, _)) if !are_shown => return,
            // Skips the padding before each function, which is half of all symbols since 6.2. Skips also arm64's marks of code
            // (`$x`) and data in modules: they are no functions, but lie within functions.
            Some((address, name)) if address != 0 && !(name.starts_with("__pfx_") || name.starts_with('$')) => {
                are_shown = true;
                each(address, name);
            }
            _ => {}
        }
        line.clear();
    }
}

fn name_at(input: impl BufRead, address: u64) -> Option<Box<str>> {
    let mut best: Option<(u64, Box<str>)> = None;
    functions(input, |start, name| {
        if start <= address && best.as_ref().is_none_or(|(known, _)| start > *known) {
            best = Some((start, name.into()));
        }
    });
    best.filter(|(start, _)| address - start < MAX_FUNCTION).map(|(_, name)| name)
}

fn is_network(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    // Nearly all comparisons end with the first byte: without a call, a fifth of the time of `parse`.
    let first = name.as_bytes().first();
    NETWORK.iter().any(|prefix| prefix.as_bytes().first() == first && name.starts_with(prefix))
}

impl Symbols {
    fn read() -> Self {
        let Some(text) = kallsyms() else { return Self::parse(&b""[..]) };
        let symbols = Self::parse(text);
        trim();
        symbols
    }

    fn parse(input: impl BufRead) -> Self {
        let (mut found, mut text) = (Vec::new(), String::new());
        functions(input, |address, name| {
            let start = text.len() as u32;
            if is_network(name) {
                text.push_str(name);
            }
            found.push((address, start, text.len() as u32));
        });
        found.sort_unstable();
        let mut packed = Self { entries: Vec::new(), names: String::new(), read_at: Instant::now() };
        for (address, start, end) in found {
            packed.add(address, &text[start as usize..end as usize]);
        }
        packed.entries.shrink_to_fit();
        packed.names.shrink_to_fit();
        packed
    }

    /// Adds a symbol. An entry without a name also covers the following symbols without a name, up to a distance of
    /// [`MAX_FUNCTION`].
    fn add(&mut self, address: u64, name: &str) {
        let end = self.names.len() as u32;
        let covered = self.entries.last().is_some_and(|(last, name)| {
            // An alias without a name hides none.
            address - last < if *name == end { MAX_FUNCTION / 2 } else { 1 }
        });
        if !(name.is_empty() && covered) {
            self.entries.push((address, end));
            self.names.push_str(name);
        }
    }

    /// Empty for a function outside of the network code; `None` if no function is known.
    fn find(&self, address: u64) -> Option<&str> {
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        let (start, name) = *self.entries.get(after.checked_sub(1)?)?;
        let end = self.entries.get(after).map_or(self.names.len(), |(_, next)| *next as usize);
        (address - start < MAX_FUNCTION).then(|| self.names.get(name as usize..end)).flatten()
    }
}

/// Returns the memory of BTF parsing (20 MB) to the kernel.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_nearest_function_below() {
        let text = "ffffffff81000200 T tcp_b\nffffffff81000100 t ip_longer_name\nffffffff81000300 D data\nffffffffc0000000 t __nft_m [mod]\n";
        let symbols = Symbols::parse(text.as_bytes());
        assert_eq!(symbols.find(0xffff_ffff_8100_0100), Some("ip_longer_name"));
        assert_eq!(symbols.find(0xffff_ffff_8100_01ff), Some("ip_longer_name"));
        assert_eq!(symbols.find(0xffff_ffff_8100_0200), Some("tcp_b"));
        assert_eq!(symbols.find(0xffff_ffff_c000_0010), Some("__nft_m"));
        assert_eq!(symbols.find(0xffff_ffff_8100_00ff), None);
        assert_eq!(symbols.find(0xffff_ffff_a000_0000), None, "too far from anything");
    }

    /// Open vSwitch is the third on 6.7 and the second from 6.15 on, where mac80211 has given up one of its two.
    #[test]
    fn a_subsystems_reason_names_the_subsystem() {
        let names = |ovs: u32| KernelNames {
            drop_reasons: HashMap::from([(6, "NETFILTER_DROP".into())]),
            subsystems: HashMap::from([(0, "CORE".into()), (ovs, "OPENVSWITCH".into())]),
            ..KernelNames::default()
        };
        assert_eq!(names(3).drop_reason(196_609), "OPENVSWITCH:1");
        assert_eq!(names(2).drop_reason(131_075), "OPENVSWITCH:3");
        assert_eq!(names(2).drop_reason(196_609), "196609");
        assert_eq!((names(2).drop_reason(6), names(2).drop_reason(7)), ("NETFILTER_DROP".into(), "7".into()));
    }

    #[test]
    fn functions_outside_of_the_network_code_have_no_name() {
        let hidden = "0000000000000000 A fixed_percpu_data\n0000000000000000 T startup_64\nffffffff81000100 T ip_rcv\n";
        assert!(Symbols::parse(hidden.as_bytes()).entries.is_empty(), "nothing more is read");
        let text = "ffffffff81000100 T ip_rcv\nffffffff81000200 T x\nffffffff81000300 T y\nffffffff81009000 T z\nffffffff81009100 T tcp_a\n";
        let symbols = Symbols::parse(text.as_bytes());
        let found = [0x100, 0x200, 0x3ff, 0x9050, 0x9100].map(|at| symbols.find(0xffff_ffff_8100_0000 + at));
        assert_eq!(found, [Some("ip_rcv"), Some(""), Some(""), Some(""), Some("tcp_a")]);
        assert_eq!(symbols.entries.len(), 4, "x and y are one");
        assert_eq!(name_at(text.as_bytes(), 0xffff_ffff_8100_0301).as_deref(), Some("y"));
        assert_eq!(name_at(text.as_bytes(), 0xffff_ffff_8200_0000), None);
    }

    /// On arm64 compiled BPF programs lie terabytes below.
    #[test]
    fn programs_far_below_the_kernel_hide_none_of_its_functions() {
        let text = "ffffa5e008010000 T ip_rcv\nffffa5e008010100 T x\nffffa5dff0000000 t nft_m\t[nf_tables]\nffff800008001000 t bpf_prog_1_x\t[bpf]\n";
        let symbols = Symbols::parse(text.as_bytes());
        let found = [0xffff_a5e0_0801_0010, 0xffff_a5e0_0801_0110, 0xffff_a5df_f000_0020].map(|at| symbols.find(at));
        assert_eq!(found, [Some("ip_rcv"), Some(""), Some("nft_m")]);
        assert_eq!(symbols.find(0xffff_8000_0800_1010), Some(""));
        assert_eq!(name_at(text.as_bytes(), 0xffff_8000_0800_1010).as_deref(), Some("bpf_prog_1_x"));
    }

    #[test]
    fn marks_of_code_within_a_function_are_no_functions() {
        let text = "ffffa5e008010000 t $x\t[nf_tables]\nffffa5e008010000 t nft_do_chain\t[nf_tables]\nffffa5e008010400 t $x\t[nf_tables]\n";
        assert_eq!(Symbols::parse(text.as_bytes()).find(0xffff_a5e0_0801_0410), Some("nft_do_chain"));
        assert_eq!(name_at(text.as_bytes(), 0xffff_a5e0_0801_0410).as_deref(), Some("nft_do_chain"));
    }
}
