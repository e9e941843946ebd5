//! What goes wrong between the tracer and the kubelet, in words that follow its address and say what to do.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::super::cluster::{Asked, Failure};

/// Why a request gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// No answer, or one that cannot be read.
    #[error(transparent)]
    Api(#[from] Failure),
    /// Somebody else may be listening there: no token was shown.
    #[error(
        "is not trusted, and nothing was sent: its certificate is neither in nor signed by any of these: {0}; name it, or the one that signed it, with --kubelet-ca FILE (the kubelet's --tls-cert-file, or kubelet.crt in its --cert-dir)"
    )]
    Untrusted(String),
    /// What is to be shown cannot be had.
    #[error("cannot be asked: {0}")]
    Credentials(String),
    /// 401
    #[error(
        "refuses the credentials (401): the token is missing or expired, the kubelet takes none (authentication.webhook), or cannot ask the API server whose it is"
    )]
    Unauthenticated,
    /// 403
    #[error(
        "does not permit it (403): grant verb `get` on resource `{0}` in a ClusterRole bound to this account (deploy/kustomize/components/kubelet){older}",
        older = older(.0)
    )]
    Forbidden(&'static str),
}

/// `nodes/pods` by itself is asked about since KEP-2862; before, only whoever may do everything could read it.
fn older(resource: &str) -> &'static str {
    if resource == "nodes/pods" {
        "; a kubelet before 1.33 knows `nodes/proxy` only, which is not to be granted: take pods from the cluster API"
    } else {
        ""
    }
}

impl Trouble {
    /// A refusal.
    pub(super) fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8], asked: Asked) -> Self {
        match code {
            StatusCode::UNAUTHORIZED => Self::Unauthenticated,
            StatusCode::FORBIDDEN => Self::Forbidden(asked.resource),
            _ => Failure::of_answer(code, headers, body, asked).into(),
        }
    }

    /// How long the kubelet wants to be left alone.
    pub(super) const fn after(&self) -> Option<Duration> {
        match self {
            Self::Api(failure) => failure.after(),
            _ => None,
        }
    }

    /// The kubelet does not answer, whatever it is asked.
    pub(super) const fn is_outage(&self) -> bool {
        matches!(self, Self::Api(Failure::Unreachable(_) | Failure::Cut))
    }

    /// The kubelet that was looked up may be another by now.
    pub(super) const fn may_be_of_another(&self) -> bool {
        self.is_outage() || matches!(self, Self::Untrusted(_))
    }

    /// Somebody has to do something before it is worth asking again. Each question that the kubelet has to refuse it
    /// asks the API server about.
    pub(super) const fn lasts(&self) -> bool {
        matches!(
            self,
            Self::Unauthenticated | Self::Forbidden(_) | Self::Credentials(_) | Self::Api(Failure::Unknown(_))
        )
    }
}
