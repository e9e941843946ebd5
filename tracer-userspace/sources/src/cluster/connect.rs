//! Connects to the API with a kubeconfig, or as the service account of this pod. TLS is rustls with ring.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::reason::reason;

/// Where a pod finds its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// `--kubeconfig`
    Kubeconfig(PathBuf),
    /// The service account of this pod.
    InCluster,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("--kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: String },
    /// The service account's files or variables.
    #[error("in-cluster access: {0} (--no-api does without the cluster API)")]
    InCluster(String),
    /// No thread or runtime.
    #[error("cluster API: {0}")]
    System(#[from] std::io::Error),
}

pub fn in_cluster() -> bool {
    std::env::var("KUBERNETES_SERVICE_HOST").is_ok_and(|host| !host.is_empty()) && Path::new(TOKEN).exists()
}

/// Makes a client, and sends nothing yet.
pub async fn client(access: &Access) -> Result<Client, ConnectError> {
    // The first provider stays. An earlier one is ring, too, because no other is linked.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let wrong = |problem: String| match access {
        Access::Kubeconfig(path) => ConnectError::Kubeconfig { path: path.clone(), problem },
        Access::InCluster => ConnectError::InCluster(problem),
    };
    let mut config = match access {
        Access::Kubeconfig(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| wrong(reason(&error)))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| wrong(reason(&error)))?
        }
        Access::InCluster => Config::incluster().map_err(|error| wrong(reason(&error)))?,
    };
    // tracer retries by itself: it reports the outage, and waits as long as the server asks.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    Client::try_from(config).map_err(|error| wrong(reason(&error)))
}
