//! Removes what killed runs left behind.

use std::fs;
use std::path::Path;

use crate::net::{NAMED, PREFIX, unbind};

/// Unbinds every namespace and removes every scratch directory of a run that is over; returns their names.
pub fn sweep() -> Vec<String> {
    let namespaces = left_over(Path::new(NAMED));
    for name in &namespaces {
        unbind(&Path::new(NAMED).join(name));
    }
    let scratch = left_over(&std::env::temp_dir());
    for name in &scratch {
        let _ = fs::remove_dir_all(std::env::temp_dir().join(name));
    }
    groups();
    [namespaces, scratch].concat()
}

/// Removes every cgroup of a run that is over.
pub fn groups() {
    remove_groups(is_left_over);
}

/// Removes the cgroups of the run that this process was, with all that it started: they are over.
pub fn groups_of(pid: u32) {
    let own = format!("{PREFIX}{pid}-");
    remove_groups(|name| name.starts_with(&own));
}

fn remove_groups(is_over: impl Fn(&str) -> bool) {
    for root in super::cgroup::roots() {
        for name in names(&root).into_iter().filter(|name| is_over(name)) {
            let _ = fs::remove_dir(root.join(name));
        }
    }
}

fn left_over(dir: &Path) -> Vec<String> {
    names(dir).into_iter().filter(|name| is_left_over(name)).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
}

/// Ours, and the process that made it is gone.
fn is_left_over(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let pid = rest.split('-').next().unwrap_or_default();
    pid.parse::<u32>().is_ok() && !is_alive(pid)
}

/// A process that nobody has waited for yet is over, too.
fn is_alive(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(Path::new("/proc").join(pid).join("stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X"))
}
