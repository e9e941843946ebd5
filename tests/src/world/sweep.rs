//! Removes what killed runs left behind.

use std::fs;
use std::path::Path;

use crate::net::{NAMED, PREFIX, unbind};

/// Unbinds every namespace of this harness whose run is over; returns their names.
pub fn sweep() -> Vec<String> {
    let Ok(dir) = fs::read_dir(NAMED) else { return Vec::new() };
    let names = dir.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let left: Vec<String> = names.filter(|name| is_left_over(name)).collect();
    for name in &left {
        unbind(&Path::new(NAMED).join(name));
    }
    left
}

/// Ours, and the process that made it is gone.
fn is_left_over(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let pid = rest.split('-').next().unwrap_or_default();
    pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
}
