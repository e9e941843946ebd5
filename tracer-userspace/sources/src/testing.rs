//! For tests of the sources, here and in other crates: an API server with answers that the test writes, its client, the
//! log of a thread, and the log settings of a kubelet.
#![expect(clippy::new_without_default, reason = "for tests")]

pub mod fake;

use std::cell::RefCell;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Once;
use std::time::Duration;

use kube::{Client, Config};

use crate::cluster::Pace;
use crate::kubelet::process::Root;
use crate::{KubeletLogging, KubeletLoggingError};
pub(crate) use tracer_testing::Scratch;
#[cfg(test)]
pub(crate) use tracer_testing::TestFile;

/// Short pauses, and long limits that only a failure reaches.
pub fn pace() -> Pace {
    Pace {
        first: Duration::from_millis(5),
        most: Duration::from_millis(20),
        rewatch: Duration::from_millis(5),
        debounce: Duration::from_millis(20),
        stable: Duration::from_millis(1),
        ..Pace::default()
    }
}

/// A client of a server on loopback.
pub fn client_of(addr: SocketAddr) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut to = Config::new(format!("http://{addr}").parse().expect("URI"));
    to.default_retry = false;
    Client::try_from(to).expect("client")
}

thread_local! {
    /// The log of this thread. A test of tokio has a thread of its own.
    static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Collects the log of this thread.
pub struct Log;

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WRITTEN.with_borrow_mut(|written| written.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// One subscriber for the whole process. With one for each test, a call site could use the cached interest of
    /// another test, and a line would be lost.
    pub fn new() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let log = tracing_subscriber::fmt().with_env_filter("info,kube_client=off").with_ansi(false).without_time();
            tracing::subscriber::set_global_default(log.with_writer(|| LogWriter).finish())
                .expect("no other subscriber");
        });
        WRITTEN.take();
        Self
    }

    pub fn lines(&self) -> Vec<String> {
        String::from_utf8(WRITTEN.take()).expect("text").lines().map(Into::into).collect()
    }
}

/// The log settings of a kubelet with pid 7 that has this command line and these files.
pub fn reported(line: &str, files: &[(&str, &str)]) -> Result<KubeletLogging, KubeletLoggingError> {
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let root = Scratch::new();
    for (path, text) in files {
        root.file(path.trim_start_matches('/'), text);
    }
    KubeletLogging::reported(7, &args, &Root::at(root.root()))
}
