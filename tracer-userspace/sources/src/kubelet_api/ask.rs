//! One question to the kubelet: a connection, a TLS handshake that shows who it is, a GET, and its answer piece by piece.
//!
//! A connection for each: at a few questions a minute a handshake is nothing, and the token is the one that is valid now.

use std::io;
use std::net::{TcpStream as Blocking, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::cluster::{Asked, Failure};
use super::Endpoint;
use super::trouble::Trouble;
use tracer_terminal::error::chain;

/// Of a refusal only the beginning is read.
const REFUSAL_MAX: usize = 16 << 10;
/// No list of a node's pods is larger: 5,000 of 12 kB each.
pub(super) const ANSWER_MAX: usize = 64 << 20;
/// A connection on the node is made at once, or refused.
const CONNECT: Duration = Duration::from_secs(3);

/// What every question needs.
pub(super) struct Asker {
    pub(super) endpoint: Endpoint,
    pub(super) tls: Arc<ClientConfig>,
    /// Where certificates were looked for.
    pub(super) tried: String,
}

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct Answer {
    body: Incoming,
    deadline: Instant,
    read: usize,
    connection: AbortHandle,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Asker {
    /// The answer to a GET; all of it has to come `within` this time.
    pub(super) async fn get(
        &self,
        path: &str,
        token: Option<&str>,
        asked: Asked,
        within: Duration,
    ) -> Result<Answer, Trouble> {
        let deadline = Instant::now() + within;
        let late = |_| Failure::Unreachable(format!("no answer within {} s", within.as_secs()));
        let tls = timeout_at(deadline, self.connect()).await.map_err(late)??;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|error| broken(&error))?;
        let connection = tokio::spawn(connection).abort_handle();
        let response = timeout_at(deadline, sender.send_request(self.request(path, token)?)).await.map_err(late)?;
        let (parts, body) = response.map_err(|error| broken(&error))?.into_parts();
        let mut answer = Answer { body, deadline, read: 0, connection };
        if parts.status.is_success() {
            return Ok(answer);
        }
        let text = answer.beginning().await;
        Err(Trouble::of_answer(parts.status, &parts.headers, &text, asked))
    }

    fn request(&self, path: &str, token: Option<&str>) -> Result<Request<Empty<Bytes>>, Trouble> {
        let request = Request::get(path).header(HOST, self.endpoint.authority()).header(ACCEPT, "*/*");
        let request = token.into_iter().fold(request, |it, token| it.header(AUTHORIZATION, format!("Bearer {token}")));
        request.body(Empty::new()).map_err(|_| Trouble::Credentials("the token is none".into()))
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, Trouble> {
        let stream = self.dial().map_err(|error| Failure::Unreachable(error.to_string()))?;
        // Who it is does not follow from its name: see `trust`.
        let name = ServerName::try_from(self.endpoint.host.clone());
        let name = name.map_err(|_| Failure::Unreachable(format!("`{}` is no name of a host", self.endpoint.host)))?;
        let tls = TlsConnector::from(self.tls.clone()).connect(name, stream).await;
        tls.map_err(|error| self.of_handshake(&error))
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let Endpoint { host, port } = &self.endpoint;
        let none = io::Error::other(format!("`{host}` has no address"));
        let addrs = (host.as_str(), *port).to_socket_addrs()?;
        // An error is tried to be fixed by the next address; a connection ends the search.
        let made = addrs.map(|addr| Blocking::connect_timeout(&addr, CONNECT)).try_fold(none, |_, made| match made {
            Ok(stream) => Err(stream),
            Err(error) => Ok(error),
        });
        let stream = made.map_or_else(Ok, Err)?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }

    fn of_handshake(&self, error: &io::Error) -> Trouble {
        let tls = error.get_ref().and_then(|it| it.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(_)) => Trouble::Untrusted(self.tried.clone()),
            _ => broken(error),
        }
    }
}

impl Answer {
    /// The next piece; nothing at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let piece = match timeout_at(self.deadline, self.body.frame()).await {
            Ok(None) => return Ok(None),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(_))) | Err(_) => return Err(Failure::Cut),
        };
        self.read = self.read.saturating_add(piece.len());
        if self.read > ANSWER_MAX {
            return Err(Failure::Garbage(format!("an answer of more than {} MiB", ANSWER_MAX >> 20)));
        }
        Ok(Some(piece))
    }

    async fn beginning(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        while let Ok(Some(piece)) = self.next().await
            && text.len() < REFUSAL_MAX
        {
            text.extend_from_slice(&piece);
        }
        text.truncate(REFUSAL_MAX);
        text
    }
}

fn broken(error: &(dyn std::error::Error + 'static)) -> Trouble {
    Failure::Unreachable(chain(error)).into()
}
