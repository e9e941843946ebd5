//! `tracer health`: asks the daemon of this node over its unix socket. A TCP probe on the host would fail by the same
//! faults that tracer looks for.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::Report;
use tracer_terminal::error::{Error, os_message};

/// Timeout of each read and write.
const PATIENCE: Duration = Duration::from_secs(3);
/// An answer is a few hundred bytes.
const ANSWER_MAX: u64 = 64 << 10;

/// The daemon's report, and the line of JSON that it came as.
pub fn ask(socket: &Path) -> Result<(Report, String), Error> {
    let place = socket.display();
    let answer = fetch(socket).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ": no `tracer run` listens there: start it, or name its --health-socket"
            }
            io::ErrorKind::PermissionDenied => ": run as root, as the daemon does",
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ": the daemon does not answer: it hangs or is stopped"
            }
            _ => "",
        };
        Error::Usage(format!("--health-socket {place}: {}{advice}", os_message(&error)))
    })?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
    let report = serde_json::from_str(body)
        .map_err(|_| Error::Usage(format!("--health-socket {place}: what listens there is no `tracer run`")))?;
    Ok((report, body.to_owned()))
}

/// Sends one request in HTTP/1.0: the server closes the connection after its answer.
fn fetch(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
