//! What the kubelet is shown: the token of this pod's service account, or what a kubeconfig has.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use kube::Config;
use kube::client::ConfigExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use secrecy::ExposeSecret as _;

use super::super::cluster::{Access, reason};
use super::own_files::certificates;
use super::trouble::Trouble;
use super::trust::Trust;

/// Where a pod finds its service account's token and the cluster's authority.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How the tracer says who it is.
#[derive(Clone, Debug)]
pub(super) enum Credentials {
    /// Not at all: a kubelet that answers everybody.
    None,
    /// The service account of this pod, whose token is exchanged once in a while.
    Account,
    /// A kubeconfig's.
    Config(Box<Config>),
}

impl Credentials {
    pub(super) async fn of(access: Option<&Access>) -> Result<Self, Trouble> {
        match access {
            None => Ok(Self::None),
            Some(Access::InCluster) => Ok(Self::Account),
            Some(Access::Kubeconfig(path)) => of_kubeconfig(path).await,
        }
    }

    /// The token as it is now.
    pub(super) fn token(&self) -> Result<Option<String>, Trouble> {
        let read = |path: &str| match fs::read_to_string(path) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(error) => Err(Trouble::Credentials(format!("the token {path}: {error}"))),
        };
        match self {
            Self::None => Ok(None),
            Self::Account => read(&format!("{ACCOUNT}/token")),
            Self::Config(config) => match (&config.auth_info.token, &config.auth_info.token_file) {
                (Some(token), _) => Ok(Some(token.expose_secret().to_owned())),
                (None, Some(path)) => read(path),
                (None, None) => Ok(None),
            },
        }
    }

    /// The cluster's authority, which vouches for its kubelets in some clusters.
    pub(super) fn add_authority(&self, trust: &mut Trust) {
        let roots: Vec<CertificateDer<'static>> = match self {
            Self::None => return,
            Self::Account => certificates(&fs::read(format!("{ACCOUNT}/ca.crt")).unwrap_or_default()),
            Self::Config(config) => config.root_cert.iter().flatten().cloned().map(CertificateDer::from).collect(),
        };
        trust.add_roots(roots, "the cluster's CA");
    }

    /// TLS with a kubelet that is trusted like this.
    pub(super) fn tls(&self, trust: Trust) -> Result<ClientConfig, Trouble> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(trust.verifier(provider.clone()));
        let wrong = |error: &(dyn std::error::Error + 'static)| Trouble::Credentials(reason(error));
        if let Self::Config(config) = self {
            // With the certificate of the client, in whichever form the kubeconfig has it.
            let mut tls = config.rustls_client_config().map_err(|error| wrong(&error))?;
            tls.dangerous().set_certificate_verifier(verifier);
            return Ok(tls);
        }
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.map_err(|error| wrong(&error))?.dangerous().with_custom_certificate_verifier(verifier);
        Ok(tls.with_no_client_auth())
    }
}

async fn of_kubeconfig(path: &Path) -> Result<Credentials, Trouble> {
    // The first wins; an earlier one is ring, too: no other is linked.
    let _ = ring::default_provider().install_default();
    let wrong = |error: &(dyn std::error::Error + 'static)| {
        Trouble::Credentials(format!("--kubeconfig {}: {}", path.display(), reason(error)))
    };
    let file = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    Ok(Credentials::Config(Box::new(config.map_err(|error| wrong(&error))?)))
}
