//! The certificate that the kubelet serves with, as it lies on the kubelet's own disk: looked up by its command line,
//! through `/proc/PID/root`, so that neither a mount nor the mount namespace matters.

use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;

use super::super::kubelet::process::{Files as _, RootOf, arguments, flag};
use tracer_model::event::Netns;
use tracer_node::procfs::{self, Process};

/// Where the kubelet keeps the certificates that it makes or is given (`--cert-dir`).
const CERT_DIR: &str = "/var/lib/kubelet/pki";

/// The process of the kubelet. One that runs in a pod, not as root or in another network namespace than the tracer may call
/// itself so and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kubelet {
    /// Process id.
    pub(super) pid: u32,
}

/// The fields of a `KubeletConfiguration` that are of interest.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Configuration {
    tls_cert_file: Option<PathBuf>,
}

impl Kubelet {
    /// The first process of these names that can be one.
    pub(super) fn find(names: &[String]) -> Option<Self> {
        let own = procfs::netns_of(std::process::id());
        let mut processes = procfs::scan(names).0.into_iter();
        processes.find(|it| can_be(it, own) && procfs::is_root(it.pid)).map(|it| Self { pid: it.pid })
    }

    /// Where its certificate can be, the first that is there in use. By `pkg/kubelet/certificate` and `cmd/kubelet/app`.
    pub(super) fn certificate_files(&self) -> Vec<PathBuf> {
        let args = arguments(self.pid);
        let configured = || self.configuration(Path::new(flag(&args, "--config")?)).tls_cert_file;
        if let Some(named) = flag(&args, "--tls-cert-file").map(PathBuf::from).or_else(configured) {
            return vec![named];
        }
        let directory = Path::new(flag(&args, "--cert-dir").unwrap_or(CERT_DIR));
        ["kubelet-server-current.pem", "kubelet.crt"].map(|name| directory.join(name)).into()
    }

    fn configuration(&self, path: &Path) -> Configuration {
        let text = RootOf(self.pid).read(path).unwrap_or_default();
        serde_yaml_ng::from_slice(&text).unwrap_or_default()
    }

    /// The certificates in a file of its own; the key that may be beside them is passed over.
    pub(super) fn certificates(&self, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
        RootOf(self.pid).read(path).map(|text| certificates(&text))
    }
}

/// By its name and place.
fn can_be(process: &Process, own: Option<Netns>) -> bool {
    process.prober.is_some() && process.pod.is_none() && own.is_some() && process.netns == own
}

/// All certificates of a text in PEM.
pub(super) fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text).filter_map(Result::ok).collect()
}

/// As a file holds it.
#[cfg(test)]
pub(super) fn pem(kind: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::cgroup::PodProcess;
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_process_that_is_told_nothing_keeps_its_certificate_at_the_usual_place() {
        let own = Kubelet { pid: std::process::id() };
        let files = own.certificate_files();
        assert_eq!(files, ["kubelet-server-current.pem", "kubelet.crt"].map(|it| Path::new(CERT_DIR).join(it)));
    }

    #[test]
    fn only_a_process_of_the_node_itself_is_the_kubelet() {
        let own = Some(Netns(1));
        let process = |netns, prober: Option<&str>, pod: Option<&str>| Process {
            pid: 7,
            netns,
            prober: prober.map(Into::into),
            pod: pod.map(|uid| PodProcess { uid: uid.into(), container: None }),
        };
        assert!(can_be(&process(own, Some("kubelet"), None), own));
        assert!(!can_be(&process(own, None, None), own), "another name");
        assert!(!can_be(&process(own, Some("kubelet"), Some("u")), own), "in a pod");
        assert!(!can_be(&process(Some(Netns(2)), Some("kubelet"), None), own), "in a container");
        assert!(!can_be(&process(None, Some("kubelet"), None), None), "where is not known");
    }

    #[test]
    fn a_file_is_read_as_the_process_sees_it() {
        let own = Kubelet { pid: std::process::id() };
        let made = rcgen::generate_simple_self_signed(vec!["n1".to_owned()]).expect("a certificate");
        let scratch = Scratch::new();
        let path = scratch.path("own.pem");
        fs::write(&path, pem("PRIVATE KEY", &made.signing_key.serialize_der()) + &pem("CERTIFICATE", made.cert.der()))
            .expect("file");
        let found = own.certificates(&path).expect("readable");
        assert_eq!(found, [made.cert.der().clone()], "without the key");
        fs::remove_file(&path).expect("file");
        assert!(own.certificates(&path).is_err());
    }
}
