//! A TLS server with a self-signed certificate.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ResolvesServerCertUsingSni;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// If it refuses, it has no certificate for a client without SNI, such as a probe of an IP address. That client gets
    /// a fatal alert.
    pub fn new(refuses: bool) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?.with_no_client_auth();
        if refuses {
            let config = config.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
            return Ok(Self { config: Arc::new(config) });
        }
        let made = rcgen::generate_simple_self_signed(vec!["pod.invalid".to_owned()]).context("make a certificate")?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|e| anyhow!("key: {e}"))?;
        Ok(Self { config: Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key)?) })
    }

    /// Does the handshake, reads the request, answers 200 and sends close_notify.
    pub fn answer(&self, stream: TcpStream) -> io::Result<()> {
        let mut tls = self.accept(stream)?;
        super::answer(&mut tls, "200 OK")?;
        tls.conn.send_close_notify();
        tls.conn.complete_io(&mut tls.sock).map(drop)
    }

    /// A session. Its first read does the handshake.
    pub fn accept(&self, stream: TcpStream) -> io::Result<StreamOwned<ServerConnection, TcpStream>> {
        let session = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Ok(StreamOwned::new(session, stream))
    }
}
