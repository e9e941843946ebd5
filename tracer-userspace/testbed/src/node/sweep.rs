//! Removes namespaces, files and cgroups of runs that were killed.

use std::fs;
use std::path::Path;

use crate::net::{NAMED, PREFIX, unbind};

/// Unbinds every namespace and removes every scratch directory and cgroup of runs that have ended. Returns the names.
pub fn sweep() -> Vec<String> {
    let namespaces = left_over(Path::new(NAMED));
    for name in &namespaces {
        unbind(&Path::new(NAMED).join(name));
    }
    let scratch = left_over(&std::env::temp_dir());
    for name in &scratch {
        let _ = fs::remove_dir_all(std::env::temp_dir().join(name));
    }
    remove_cgroups();
    [namespaces, scratch].concat()
}

/// Removes the cgroups of runs that have ended.
pub fn remove_cgroups() {
    remove_cgroups_if(is_left_over);
}

/// Removes the cgroups of the run of this process. It and its children must have ended.
pub fn remove_cgroups_of(pid: u32) {
    let own = format!("{PREFIX}{pid}-");
    remove_cgroups_if(|name| name.starts_with(&own));
}

fn remove_cgroups_if(has_ended: impl Fn(&str) -> bool) {
    for root in crate::cgroup::roots() {
        for name in names(&root).into_iter().filter(|name| has_ended(name)) {
            let group = root.join(name);
            for below in names(&group) {
                let _ = fs::remove_dir(group.join(below));
            }
            let _ = fs::remove_dir(group);
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

/// Whether this is a name of the testbed, and the process that made it has ended.
fn is_left_over(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let pid = rest.split('-').next().unwrap_or_default();
    pid.parse::<u32>().is_ok() && !is_alive(pid)
}

/// A zombie does not count as alive.
fn is_alive(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(Path::new("/proc").join(pid).join("stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X"))
}
