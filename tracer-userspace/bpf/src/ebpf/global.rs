//! The structs that are copied to the programs byte by byte.

use aya::Pod;
use tracer_common::{
    offsets::{EnumValues, Offsets, Settings, Types},
    ports::PortUse,
};

/// A wire struct as a global of the programs.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Global<T>(pub(super) T);

// SAFETY: `repr(C)` structs of integers only, valid for every bit pattern and without padding.
unsafe impl Pod for Global<Offsets> {}
// SAFETY: as above.
unsafe impl Pod for Global<EnumValues> {}
// SAFETY: as above.
unsafe impl Pod for Global<Settings> {}
// SAFETY: as above.
unsafe impl Pod for Global<PortUse> {}
// SAFETY: as above.
unsafe impl Pod for Global<Types> {}
