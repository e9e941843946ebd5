//! Connects to the API with a kubeconfig, or as the service account of this pod. TLS is rustls with ring.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use kube::client::{AuthError, Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use super::failure::Failure;
use super::pace::Pace;
use super::reason::reason;

/// Where a pod finds its service account's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// How long a token is used until its file is read again, as kube and client-go do.
const TOKEN_AGE: Duration = Duration::from_secs(50);

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
    /// A credential plugin failed. The next try may succeed.
    #[error("cluster API {0}")]
    NotSignedIn(Failure),
    /// No thread or runtime.
    #[error("cluster API: {0}")]
    System(#[from] std::io::Error),
}

pub fn in_cluster() -> bool {
    std::env::var("KUBERNETES_SERVICE_HOST").is_ok_and(|host| !host.is_empty()) && Path::new(TOKEN).exists()
}

/// Makes a client, and sends nothing yet. While a credential plugin fails, it calls `failed` and tries again.
pub async fn client(access: &Access, pace: &Pace, failed: impl Fn(&Failure)) -> Result<Client, ConnectError> {
    let mut failures = 0;
    loop {
        match make_client(access).await {
            Err(ConnectError::NotSignedIn(failure)) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!("cluster API {failure}; tracer retries");
                }
                failed(&failure);
                tokio::time::sleep(pace.backoff(failures)).await;
            }
            made => return made,
        }
    }
}

async fn make_client(access: &Access) -> Result<Client, ConnectError> {
    // The first provider stays. An earlier one is ring, too, because no other is linked.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let wrong = |problem: String| match access {
        Access::Kubeconfig(path) => ConnectError::Kubeconfig { path: path.clone(), problem },
        Access::InCluster => ConnectError::InCluster(problem),
    };
    let mut config = match access {
        Access::Kubeconfig(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| wrong(reason(&error)))?;
            config_of(file, &KubeConfigOptions::default()).await.map_err(|error| wrong(reason(&error)))?
        }
        Access::InCluster => Config::incluster().map_err(|error| wrong(reason(&error)))?,
    };
    // tracer retries by itself: it reports the outage, and waits as long as the server asks.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    client_of(config).map_err(|error| match &error {
        kube::Error::Auth(AuthError::AuthExecRun { .. } | AuthError::AuthExecParse(_)) => {
            ConnectError::NotSignedIn(Failure::NotSignedIn(reason(&error)))
        }
        _ => wrong(reason(&error)),
    })
}

/// A client of this configuration. It trims the token of a file, as client-go does and kube does not: no header may have
/// the newline at the end of a file. As in kube, a file comes before a credential plugin.
pub fn client_of(mut config: Config) -> kube::Result<Client> {
    let auth = &mut config.auth_info;
    let Some(path) = auth.token_file.take_if(|_| auth.token.is_none()) else { return Client::try_from(config) };
    auth.exec = None;
    let mut file = TokenFile::open(path, TOKEN_AGE).map_err(kube::Error::Auth)?;
    let with_token = move |mut request: Request<Body>| {
        request.headers_mut().insert(AUTHORIZATION, file.token());
        request
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&MapRequestLayer::new(with_token)).build())
}

/// A file with a token, which is read again when the token is old.
#[derive(Clone)]
struct TokenFile {
    path: String,
    token: HeaderValue,
    read: Instant,
    age: Duration,
}

impl TokenFile {
    fn open(path: String, age: Duration) -> Result<Self, AuthError> {
        Ok(Self { token: bearer(&path)?, path, read: Instant::now(), age })
    }

    /// The token. While the file cannot be read, the one before.
    fn token(&mut self) -> HeaderValue {
        if self.read.elapsed() > self.age {
            self.read = Instant::now();
            self.token = bearer(&self.path).unwrap_or_else(|_| self.token.clone());
        }
        self.token.clone()
    }
}

fn bearer(path: &str) -> Result<HeaderValue, AuthError> {
    let unread = |error| AuthError::ReadTokenFile(error, path.into());
    let token = std::fs::read_to_string(path).map_err(unread)?;
    // A writer may have just truncated it.
    if token.trim().is_empty() {
        return Err(unread(io::Error::other("no token in it")));
    }
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(AuthError::InvalidBearerToken)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The configuration of a kubeconfig's context, with the proxy that kubectl would use.
pub async fn config_of(file: Kubeconfig, options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    let own = own_proxy(&file, options);
    let mut config = Config::from_custom_kubeconfig(file, options).await?;
    // kube compares NO_PROXY with the address of the proxy, and takes HTTPS_PROXY for loopback, too.
    config.proxy_url = match own {
        Some(own) => Some(own.parse().map_err(KubeconfigError::ParseProxyUrl)?),
        None => proxy_of(&config.cluster_url, |name| std::env::var(name).ok()),
    };
    Ok(config)
}

/// The `proxy-url` of the kubeconfig's cluster.
fn own_proxy(file: &Kubeconfig, options: &KubeConfigOptions) -> Option<String> {
    let name = options.context.as_ref().or(file.current_context.as_ref())?;
    let context = file.contexts.iter().find(|it| it.name == *name)?.context.as_ref()?;
    let cluster = file.clusters.iter().find(|it| it.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

/// The proxy of the environment for this server.
fn proxy_of(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let first = |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
    let proxy = first(["HTTPS_PROXY", "https_proxy"])?;
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    let direct = first(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let matcher = Matcher::builder().https(proxy.clone()).no(format!("{direct},localhost,127.0.0.0/8,::1")).build();
    matcher.intercept(server).and_then(|_| proxy.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestFile;

    #[test]
    fn the_proxy_of_the_environment_is_used_as_kubectl_uses_it() {
        let of = |server: &str, proxy: &str, direct: &str| {
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some(proxy.to_owned()),
                "no_proxy" => Some(direct.to_owned()),
                _ => None,
            };
            proxy_of(&server.parse().expect("a URL"), variable).map(|it| it.to_string())
        };
        let (server, proxy) = ("https://api.example.org:6443", "http://bob:pw@10.0.0.9:3128/");
        assert_eq!(of(server, proxy, "").as_deref(), Some(proxy));
        assert_eq!(of(server, proxy, "10.0.0.0/8,").as_deref(), Some(proxy), "of the API server, not of the proxy");
        assert_eq!(of(server, "10.0.0.9:3128", "").as_deref(), Some("http://10.0.0.9:3128/"));
        assert_eq!(of(server, "", ""), None);
        for direct in ["example.org", "api.example.org", ".example.org", "*"] {
            assert_eq!(of(server, proxy, direct), None, "{direct}");
        }
        assert_eq!(of("https://10.1.2.3:6443", proxy, "localhost, 10.0.0.0/8"), None);
        assert_eq!(of("https://127.0.0.1:6443", proxy, ""), None, "kubectl never goes to loopback through a proxy");
    }

    #[test]
    fn a_token_is_read_again_and_an_empty_file_leaves_the_one_before() {
        let file = TestFile::new("token", "one\n");
        let mut token = TokenFile::open(file.path.display().to_string(), Duration::ZERO).expect("a token");
        for (text, expected) in [("two\n", "Bearer two"), ("\n", "Bearer two"), ("three", "Bearer three")] {
            std::fs::write(&file.path, text).expect("a file");
            assert_eq!(token.token(), expected);
        }
        std::fs::write(&file.path, "").expect("a file");
        let error = TokenFile::open(file.path.display().to_string(), TOKEN_AGE).err().expect("empty");
        assert!(error.to_string().contains("failed to read token file"), "{error}");
    }

    #[tokio::test]
    async fn the_proxy_of_the_kubeconfig_comes_first_and_its_password_is_not_reported() {
        let file = |proxy: &str| {
            let text = format!(
                "{{current-context: c, contexts: [{{name: c, context: {{cluster: k}}}}], \
                clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:1', proxy-url: '{proxy}'}}}}]}}"
            );
            Kubeconfig::from_yaml(&text).expect("a kubeconfig")
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (proxy, works) in [("socks5://h:1080", true), ("http://bob:pw@h:1/", true), ("ftp://bob:pw@h:1/", false)] {
            let config = config_of(file(proxy), &KubeConfigOptions::default()).await.expect("a configuration");
            assert!(config.proxy_url.as_ref().is_some_and(|it| it.to_string().starts_with(proxy)), "{proxy}");
            let problem = Client::try_from(config).err().map(|error| reason(&error));
            let expected = "the proxy ftp://h:1 has a protocol that tracer does not speak";
            assert_eq!(problem.as_deref(), (!works).then_some(expected));
        }
    }
}
