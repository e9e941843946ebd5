//! The programs for kernels that withhold `bpf_probe_read_kernel`, as lockdown `confidentiality` does
//! (`bpf_tracing_func_proto`). They load the kernel's memory by `bpf_rdonly_cast`, a kernel function since 6.2.

use tracer_common::offsets::{RDONLY_CAST, Types};

use super::{btf::Btf, global::Global};

macro_rules! object {
    () => {
        include_bytes!(concat!(env!("OUT_DIR"), "/tracer-ebpf-typed.o"))
    };
}

/// As the usual object, in a section of its own.
// SAFETY: plain bytes, in a section that neither a linker nor a loader knows.
#[unsafe(link_section = ".tracer.ebpf.typed")]
static OBJECT: [u8; object!().len()] = *object!();
const FUNCTION: &str = "bpf_rdonly_cast";
/// `BPF_JMP | BPF_CALL`; the source register says of what (include/uapi/linux/bpf.h).
const CALL: u8 = 0x85;
const OF_HELPER: u8 = 0;
/// `BPF_PSEUDO_KFUNC_CALL` as the source register: the high half of the byte on the byte orders that tracer has.
const OF_KERNEL_FUNCTION: u8 = 2 << 4;

/// The object with calls of the kernel function, and what it loads memory as.
pub(super) struct Typed {
    pub(super) object: Vec<u8>,
    pub(super) types: Global<Types>,
}

impl Typed {
    /// `None` if this kernel lacks the function.
    pub(super) fn new(btf: &Btf<'_>) -> Option<Self> {
        let function = u32::try_from(*btf.function_ids(&[FUNCTION]).get(FUNCTION)?).ok()?;
        let [u64s, u32s, u16s, u8s] = Types::NAMES.map(|name| btf.id(name));
        let types =
            Types { begins_with_u64: u64s?, begins_with_u32: u32s?, begins_with_u16: u16s?, begins_with_u8: u8s? };
        let (from, to) = (call(OF_HELPER, RDONLY_CAST), call(OF_KERNEL_FUNCTION, function));
        let mut object = OBJECT.to_vec();
        object.chunks_exact_mut(8).filter(|word| **word == from).for_each(|word| word.copy_from_slice(&to));
        Some(Self { object, types: Global(types) })
    }
}

const fn call(of: u8, number: u32) -> [u8; 8] {
    let [a, b, c, d] = number.to_le_bytes();
    [CALL, of, 0, 0, a, b, c, d]
}
