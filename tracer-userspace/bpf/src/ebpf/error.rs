//! The errors because of which tracer cannot start.

use std::io;
use std::path::{Path, PathBuf};

use super::btf::BtfError;
use tracer_terminal::error::os_message;

#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// No type information: the layout of kernel structs is not known.
    #[error("the BTF of this kernel, {}, cannot be read: {}{}", .0.display(), os_message(.1), needed(.1))]
    NoBtf(PathBuf, io::Error),
    #[error("the BTF of this kernel, {}, cannot be read", .0.display())]
    Btf(PathBuf, #[source] BtfError),
    /// The file has the structs of another kernel.
    #[error(
        "{}: BTF of another kernel: a tcp_sock has {there} bytes there, and {here} in this kernel ({SIZE_OF_TCP_SOCK})",
        file.display()
    )]
    OtherBtf { file: PathBuf, there: u32, here: u32 },
    /// A map cannot be created for lack of privileges.
    #[error(
        "the kernel refuses to create BPF maps: {missing}; before 5.11 CAP_SYS_RESOURCE or a raised memlock limit is needed, too"
    )]
    MapPermission { missing: String, answer: Box<aya::EbpfError> },
    /// Programs cannot be loaded for lack of privileges.
    #[error("the kernel refuses to load BPF programs: {0}")]
    ProgramPermission(String),
    /// Programs may not read the kernel's memory.
    #[error(
        "lockdown `confidentiality` (/sys/kernel/security/lockdown) forbids programs to read the kernel's memory, and tracer can do without only by `bpf_rdonly_cast` (Linux 6.2) and the kernel's own BTF: boot with lockdown=integrity, or use Linux 6.2 or newer without --btf"
    )]
    Lockdown,
    #[error("required hook {hook} is not attached: {reason}")]
    RequiredHook { hook: &'static str, reason: String },
    /// The kernel refuses the object or one of its maps for another reason.
    #[error("the BPF object cannot be loaded")]
    Object(#[source] Box<aya::EbpfError>),
    /// A map of the object is not what this program expects: they were not built together.
    #[error("BPF map {0} is missing or of another kind")]
    Map(&'static str),
    #[error("the ring buffer cannot be polled")]
    Ring(#[source] io::Error),
}

/// The size of `struct tcp_sock` in this kernel, which it shows also without BTF.
pub(super) const SIZE_OF_TCP_SOCK: &str = "/sys/kernel/slab/TCP/object_size";

/// The fix to add, unless the process itself lacked descriptors or memory.
fn needed(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        _ if error.kind() == io::ErrorKind::OutOfMemory => "",
        Some(libc::EMFILE | libc::ENFILE) => "",
        Some(libc::ENOENT) if !Path::new("/sys/kernel").exists() => ": is /sys mounted?",
        _ => ": CONFIG_DEBUG_INFO_BTF or --btf FILE is needed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_lack_of_descriptors_does_not_blame_the_kernel() {
        let text = |errno| EbpfError::NoBtf(PathBuf::new(), io::Error::from_raw_os_error(errno)).to_string();
        assert!(
            text(libc::ENOENT).ends_with("No such file or directory: CONFIG_DEBUG_INFO_BTF or --btf FILE is needed")
        );
        let full = text(libc::EMFILE);
        assert!(
            full.contains("cannot be read: Too many open files (raise `ulimit -n`") && !full.contains("CONFIG"),
            "{full}"
        );
    }
}
