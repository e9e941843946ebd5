//! Fuzz targets of the kubelet's log.

use super::entry::{LogEntry, WrittenTime};
use super::joiner::Joiner;
pub use super::journal::fuzzing::journal;
use super::line::{Now, parse};
use tracer_model::event::ObservationKind;
use tracer_model::fuzzing::check_recorded;

/// How long the node is up.
const UP_NS: u64 = 900_000_000_000;
/// The longest text that is kept, in characters.
const WORDS_MAX: usize = 512;

/// Lines of klog, or of its JSON.
pub fn klog(bytes: &[u8]) {
    let mut joiner = Joiner::default();
    for line in String::from_utf8_lossy(bytes).lines().flat_map(|line| joiner.join(line)) {
        let Some(time) = LogEntry::of(&line).map(|entry| entry.time) else { continue };
        // The line is read as soon as it is written.
        let wall_ns = match time {
            WrittenTime::InQuarter(at) => i64::try_from(at.as_nanos()).unwrap_or_default(),
            WrittenTime::Wall(wall_ns) => i64::try_from(wall_ns).unwrap_or(i64::MAX),
        };
        let now = Now { boot_ns: UP_NS, boot_to_wall_ns: wall_ns.saturating_sub(UP_NS.cast_signed()) };
        let Some(kind) = parse(&line, now) else { continue };
        let (written, words) = match &kind {
            ObservationKind::KubeletProbe(probe) => (probe.written_boot_ns, probe.output.as_deref()),
            ObservationKind::SandboxFailure(failure) => (failure.written_boot_ns, Some(failure.words.as_str())),
            other => unreachable!("{other:?} in a line of the kubelet"),
        };
        assert!(written <= now.boot_ns, "{kind:?} is written after it is read");
        assert!(words.is_none_or(|it| it.chars().count() <= WORDS_MAX), "{kind:?}");
        check_recorded(kind);
    }
}
