//! A TLS server with a self-signed certificate.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ResolvesServerCertUsingSni, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::Mode;

#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// In mode `tls-refuse` it has no certificate for a client without SNI, such as a probe of an IP address. That client
    /// gets a fatal alert. In mode `tls-client-cert` a client without a certificate gets one after the server's flight.
    pub fn new(mode: Mode) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        if mode == Mode::TlsRefuse {
            let names = Arc::new(ResolvesServerCertUsingSni::new());
            return Ok(Self { config: Arc::new(config.with_no_client_auth().with_cert_resolver(names)) });
        }
        let made = rcgen::generate_simple_self_signed(vec!["pod.invalid".to_owned()]).context("make a certificate")?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|e| anyhow!("key: {e}"))?;
        let cert = made.cert.der().clone();
        let config = if mode == Mode::TlsClientCert {
            let mut roots = RootCertStore::empty();
            roots.add(cert.clone())?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.build()?)
        } else {
            config.with_no_client_auth()
        };
        Ok(Self { config: Arc::new(config.with_single_cert(vec![cert], key)?) })
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
