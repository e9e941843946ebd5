//! Copies log lines of the programs to tracer's own log (feature `kernel-log`, for debugging them).

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "tracer::kernel", level = %record.level(), "{}", record.args());
    }

    fn flush(&self) {}
}

/// Reads the programs' lines in a task. Must be called inside a tokio runtime.
pub(super) fn follow(ebpf: &mut Ebpf) {
    let logger = match EbpfLogger::init_with_logger(ebpf, ToTracing) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "the log lines of the kernel programs cannot be read"),
    };
    // SAFETY: the descriptor is owned by `logger`, which lives in the `AsyncFd` and never changes it.
    let Ok(mut lines) = (unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }) else { return };
    tokio::spawn(async move {
        while let Ok(mut guard) = lines.readable_mut().await {
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    });
}
