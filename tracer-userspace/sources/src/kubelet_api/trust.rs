//! Whom the token is shown to. A kubelet's certificate is self-signed by default and no authority vouches for it: so it must
//! be the very certificate that lies on the kubelet's disk, or one of `--kubelet-ca`, or signed for this node by the cluster's
//! authority. There is no way to do without.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::own_files::{Kubelet, certificates};

/// Whose certificates are accepted.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    /// These, whatever name and time they are for: that the peer has their key is proven by the handshake.
    pinned: Vec<CertificateDer<'static>>,
    /// Those that these authorities signed for one of the names.
    roots: RootCertStore,
    names: Vec<ServerName<'static>>,
    /// Where certificates were looked for, for people.
    tried: Vec<String>,
}

impl Trust {
    /// Nobody, yet; names are those of this node.
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = names.into_iter().filter_map(|name| ServerName::try_from(name.to_owned()).ok()).collect();
        Self { pinned: Vec::new(), roots: RootCertStore::empty(), names, tried: Vec::new() }
    }

    /// The kubelet's own certificate: of the files in which it can be the first that holds one.
    pub(super) fn add_kubelet(&mut self, kubelet: Option<&Kubelet>) {
        let Some(kubelet) = kubelet else {
            self.tried.push("no kubelet that runs as root in this network namespace".to_owned());
            return;
        };
        for path in kubelet.certificate_files() {
            match kubelet.certificates(&path) {
                Ok(found) if !found.is_empty() => {
                    self.pinned.extend(found);
                    self.tried.push(format!("{} of process {}", path.display(), kubelet.pid));
                    return;
                }
                Ok(_) => self.tried.push(format!("{} (without a certificate)", path.display())),
                Err(error) => self.tried.push(format!("{} ({error})", path.display())),
            }
        }
    }

    /// `--kubelet-ca`: the kubelet's certificate, or that of who signed it.
    pub(super) fn add_file(&mut self, path: &PathBuf) {
        match fs::read(path) {
            Ok(text) => {
                let found = certificates(&text);
                self.add_roots(found.iter().cloned(), &path.display().to_string());
                self.pinned.extend(found);
            }
            Err(error) => self.tried.push(format!("{} ({error})", path.display())),
        }
    }

    /// An authority that signs for nodes.
    pub(super) fn add_roots(&mut self, found: impl IntoIterator<Item = CertificateDer<'static>>, from: &str) {
        let (added, _) = self.roots.add_parsable_certificates(found);
        self.tried.push(if added == 0 { format!("{from} (without a certificate)") } else { from.to_owned() });
    }

    /// What was looked at.
    pub(super) fn tried(&self) -> String {
        self.tried.join(", ")
    }

    /// What asks a peer for its certificate.
    pub(super) fn verifier(self, provider: Arc<CryptoProvider>) -> Verifier {
        let roots = Arc::new(self.roots);
        // Without an authority there is none to ask.
        let signed = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build().ok();
        Verifier { pinned: self.pinned, signed, names: self.names, provider }
    }
}

/// Accepts the kubelet only.
#[derive(Debug)]
pub(super) struct Verifier {
    pinned: Vec<CertificateDer<'static>>,
    signed: Option<Arc<WebPkiServerVerifier>>,
    names: Vec<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned.iter().any(|it| it == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let signed = self.signed.as_ref();
        let is_for = |name: &ServerName<'_>| {
            signed.is_some_and(|it| it.verify_server_cert(end_entity, intermediates, name, ocsp_response, now).is_ok())
        };
        if self.names.iter().any(is_for) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    fn accepts(trust: Trust, cert: &CertificateDer<'static>) -> bool {
        let verifier = trust.verifier(Arc::new(rustls::crypto::ring::default_provider()));
        let asked = ServerName::try_from("127.0.0.1").unwrap();
        verifier.verify_server_cert(cert, &[], &asked, &[], UnixTime::now()).is_ok()
    }

    fn self_signed(name: &str) -> CertificateDer<'static> {
        rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap().cert.der().clone()
    }

    #[test]
    fn only_the_very_certificate_is_accepted() {
        let (own, other) = (self_signed("n1"), self_signed("n1"));
        let trust = Trust { pinned: vec![own.clone()], ..Trust::of(["n1"]) };
        assert!(accepts(trust.clone(), &own));
        assert!(!accepts(trust, &other), "another of the same name");
        assert!(!accepts(Trust::of(["n1"]), &own), "nobody vouches for it");
    }

    #[test]
    fn the_authority_vouches_for_this_node_only() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let signed = |name: &str| {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.signed_by(&KeyPair::generate().unwrap(), &ca).unwrap().der().clone()
        };
        let mut trust = Trust::of(["n1"]);
        trust.add_roots([ca.der().clone()], "the cluster's CA");
        assert!(accepts(trust.clone(), &signed("n1")));
        assert!(!accepts(trust.clone(), &signed("n2")), "another node");
        assert!(!accepts(trust.clone(), &self_signed("n1")), "another authority");
        assert_eq!(trust.tried(), "the cluster's CA");
    }
}
