//! Fuzz target of files with pods and Services.

use std::path::Path;

use super::{Source, pods, services};
use tracer_model::event::{ObservationKind, Pods, Services};
use tracer_model::fuzzing::check_recorded;

/// A file of `--pods` or `--services`.
pub fn files(bytes: &[u8]) {
    let source = Source { flag: "--pods", path: Path::new("file"), bytes: bytes.to_vec() };
    if let Ok(pods) = pods::pods_of(&source) {
        check_recorded(ObservationKind::Pods(Pods { pods }));
    }
    if let Ok(services) = services::services_of(&source) {
        check_recorded(ObservationKind::Services(Services { services }));
    }
}
