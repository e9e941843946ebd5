//! A kubelet on loopback, and the poller that asks it.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::sync::mpsc::Receiver;
use tokio_rustls::TlsAcceptor;

use super::super::own_files::pem;
use super::*;
use crate::testing::Scratch;
use crate::testing::fake::Asked;
use crate::testing::pace;

fn times() -> Times {
    Times { every: Duration::from_millis(20), refused: Duration::from_millis(20), pace: pace() }
}

/// A key and a certificate that it signed itself, as a kubelet makes them.
pub(super) fn certificate() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(vec!["n1".to_owned()]).expect("a certificate")
}

pub(super) fn speaks(certificate: &CertifiedKey<KeyPair>) -> Option<TlsAcceptor> {
    let key = PrivateKeyDer::Pkcs8(certificate.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.cert.der().clone()], key);
    Some(TlsAcceptor::from(Arc::new(config.expect("a certificate"))))
}

/// Whose user has the token `secret`.
pub(super) fn kubeconfig(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("kubeconfig");
    let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],\n\
         clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: u, user: {token: secret}}]}";
    std::fs::write(&path, text).expect("file");
    path
}

/// A kubelet, and who asks it.
pub(super) struct Rig {
    files: Scratch,
    /// The kubelet's.
    pub(super) own: CertifiedKey<KeyPair>,
    pub(super) fake: Fake,
    pub(super) api: KubeletApi,
    pub(super) facts: Receiver<Fact>,
}

impl Rig {
    /// Within a `LocalSet`. Trusts the certificate that is in the file `ca`.
    pub(super) async fn start(pods: bool, cluster: Option<Cluster>, trusted: bool) -> Self {
        let (files, own) = (Scratch::new(), certificate());
        let mut fake = Fake::new().await;
        fake.tls = speaks(&own);
        let config = KubeletApiConfig {
            endpoint: Endpoint { host: "127.0.0.1".into(), port: fake.addr.port() },
            ca: Some(files.path("ca")),
            access: Some(Access::Kubeconfig(kubeconfig(&files))),
            node_name: "n1".into(),
            probers: vec!["no-such-kubelet".into()],
            pods,
        };
        let text = if trusted { pem("CERTIFICATE", own.cert.der()) } else { String::new() };
        std::fs::write(files.path("ca"), text).expect("file");
        let (view_tx, view) = watch::channel(View::default());
        let (tx, facts) = mpsc::channel(16);
        let endpoint = config.endpoint.clone();
        let poller = Poller::new(config, cluster, times(), view_tx, tx);
        let (first, _) = std_mpsc::sync_channel(1);
        tokio::task::spawn_local(poller.run(first));
        Self { files, own, fake, api: KubeletApi { endpoint, view }, facts }
    }

    /// This certificate is trusted from now on.
    pub(super) fn trust(&self, certificate: &CertifiedKey<KeyPair>) {
        std::fs::write(self.files.path("ca"), pem("CERTIFICATE", certificate.cert.der())).expect("file");
    }

    /// Answers the next question, which must be for this.
    pub(super) async fn answer(&mut self, path: &str, status: &str, body: &str) {
        self.asked(path).await.answer(status, body).await;
    }

    pub(super) async fn asked(&mut self, path: &str) -> Asked {
        let asked = self.fake.next().await;
        assert_eq!(asked.path, path);
        asked
    }

    /// The next question for the counters: both are asked again after as long, and pods may come first.
    pub(super) async fn asked_for_counts(&mut self) -> Asked {
        loop {
            let asked = self.fake.next().await;
            if asked.path != "/pods" {
                return asked;
            }
            asked.answer("200 OK", super::PODS).await;
        }
    }

    pub(super) async fn fact(&mut self) -> tracer_model::event::ProbeCounts {
        let fact = timeout(GUARD, self.facts.recv()).await.expect("in time").expect("the poller");
        let Fact::ProbeCounts(counts) = fact else { panic!("{fact:?}") };
        *counts
    }

    pub(super) async fn until_pods(&mut self, count: usize) {
        let is = |view: &View| view.pods.as_ref().map(Vec::len) == Some(count);
        timeout(GUARD, self.api.view.wait_for(is)).await.expect("in time").expect("the poller");
    }

    pub(super) fn states(&self) -> String {
        self.api.sources().join("\n")
    }

    /// Answers the next question for pods with this; until then there were 5,000.
    pub(super) async fn until_asked_for_pods(&mut self, body: &str) {
        loop {
            let asked = self.fake.next().await;
            if asked.path == "/pods" {
                assert_eq!(self.api.pods().map(|pods| pods.len()), Some(5_000));
                return asked.answer("200 OK", body).await;
            }
            asked.answer("200 OK", COUNTS).await;
        }
    }
}
