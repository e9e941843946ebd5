//! What people type: times and sizes with their units.

pub mod duration;
pub mod nearest;
pub mod size;
