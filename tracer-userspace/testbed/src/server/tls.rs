//! The configuration of a TLS server with a self-signed certificate.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ResolvesServerCertUsingSni, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

pub(super) const REFUSE: &str = "tls-refuse";
pub(super) const CLIENT_CERT: &str = "tls-client-cert";

/// In mode [`REFUSE`] it has no certificate for a client without SNI, such as a probe of an IP address. That client gets
/// a fatal alert. In mode [`CLIENT_CERT`] a client without a certificate gets one after the server's flight.
pub(super) fn config(mode: &str) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    if mode == REFUSE {
        let names = Arc::new(ResolvesServerCertUsingSni::new());
        return Ok(Arc::new(config.with_no_client_auth().with_cert_resolver(names)));
    }
    let made = rcgen::generate_simple_self_signed(vec!["pod.invalid".to_owned()]).context("make a certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|e| anyhow!("key: {e}"))?;
    let cert = made.cert.der().clone();
    let config = if mode == CLIENT_CERT {
        let mut roots = RootCertStore::empty();
        roots.add(cert.clone())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        config.with_client_cert_verifier(verifier.build()?)
    } else {
        config.with_no_client_auth()
    };
    Ok(Arc::new(config.with_single_cert(vec![cert], key)?))
}
