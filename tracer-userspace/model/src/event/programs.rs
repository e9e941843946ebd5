//! The BPF programs of a network device.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Netns;

/// How many programs of a device are kept.
pub const MOST_PROGRAMS: usize = 16;

/// The programs of a device, read when one of them dropped a packet. Those of netkit devices, of classic BPF and in
/// actions of filters are not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePrograms {
    pub netns: Netns,
    pub ifindex: u32,
    /// [`MOST_PROGRAMS`] at most.
    pub programs: Vec<DeviceProgram>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProgram {
    pub place: ProgramPlace,
    pub id: u32,
    /// The name of its filter, else its own, which has 15 bytes at most; absent: it has none.
    pub name: Option<String>,
}

/// Where on a device a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramPlace {
    TcIngress,
    TcEgress,
    Xdp,
}

display_as_serialized!(ProgramPlace);
