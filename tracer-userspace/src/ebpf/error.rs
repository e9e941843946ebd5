//! Why nothing can be seen.

use std::io;

use super::btf::BtfError;
use crate::error::os_message;

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// No type information: the layout of kernel structs is not known.
    #[error("this kernel has no readable BTF at /sys/kernel/btf/vmlinux ({}): CONFIG_DEBUG_INFO_BTF is needed", os_message(.0))]
    NoBtf(io::Error),
    /// Type information that cannot be understood.
    #[error("the BTF of this kernel cannot be read")]
    Btf(#[from] BtfError),
    /// A map cannot be created for lack of privileges.
    #[error(
        "the kernel refuses to create BPF maps: {missing}; before 5.11 CAP_SYS_RESOURCE or a raised memlock limit is needed, too"
    )]
    MapPermission {
        /// What is missing, in words.
        missing: String,
        /// The kernel's answer.
        answer: Box<aya::EbpfError>,
    },
    /// Programs cannot be loaded for lack of privileges.
    #[error("the kernel refuses to load BPF programs: {0}")]
    ProgramPermission(String),
    /// A hook without which nothing works.
    #[error("required hook {hook} is not in force: {reason}")]
    RequiredHook {
        /// Which.
        hook: &'static str,
        /// What was tried and the kernel's answer.
        reason: String,
    },
    /// The object or a map of it is refused for another reason.
    #[error("the BPF object cannot be loaded")]
    Object(#[source] Box<aya::EbpfError>),
    /// A map of the object is not what this program expects: they were not built together.
    #[error("BPF map {0} is missing or of another kind")]
    Map(&'static str),
    /// The ring cannot be polled.
    #[error("the ring buffer cannot be polled")]
    Ring(#[source] io::Error),
}
