//! Whether the kubelet logs the results of probes where tracer can read them.

use super::Check;
use super::finding::{Finding, Fix, Unread};
use tracer_sources::{KubeletLogging, KubeletLoggingError, TO_NAME_THE_LOG, kubelet_stderr_lost};

pub(super) const CHECK: Check = Check {
    name: "kubelet_log",
    why: "only the kubelet knows why a probe's command failed and which answer came over TLS. At verbosity 0, the default, it does not log this",
    expected: || {
        "a kubelet with verbosity 1 or more (-v, logging.verbosity) that logs text or json to the systemd journal or a file".into()
    },
    run: |view| {
        let pid = view.prober_pid()?;
        Ok(vec![judge(KubeletLogging::of(pid), kubelet_stderr_lost(pid).as_deref())])
    },
};

/// `lost`: why tracer cannot find the log by the kubelet's stderr. `--kubelet-log` can still name it.
fn judge(read: Result<KubeletLogging, KubeletLoggingError>, lost: Option<&str>) -> Finding {
    let logging = match read {
        Ok(logging) => logging,
        Err(error) => {
            let fix = "see whether its log has lines with `Probe failed`";
            return CHECK.draft().unknown(Unread::for_lack_of(error.needs(), error.to_string(), fix));
        }
    };
    let KubeletLogging { pid, verbosity, format, .. } = &logging;
    let draft = CHECK.draft().with("pid", *pid).with("verbosity", *verbosity).with("format", format.clone());
    let logs = format!("the kubelet (pid {pid}) logs with verbosity {verbosity}, as {format}");
    match (logging.lack(), lost) {
        (Some(lack), _) => draft.warn(format!("the kubelet (pid {pid}) {lack}"), Fix::lasting(logging.fix())),
        (None, Some(lost)) => draft.unknown(Unread::new(format!("{logs}; but its stderr {lost}"), TO_NAME_THE_LOG)),
        (None, None) => draft.ok(logs),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix};
    use super::*;
    use crate::Status;
    use tracer_sources::testing::reported as kubelet_reported;

    #[test]
    fn a_kubelet_that_does_not_log_probes_is_named_with_the_fix() {
        let finding = judge(kubelet_reported("kubelet --v=0", &[]), Some("is a pipe"));
        assert_eq!(finding.status, Status::Warn);
        assert!(finding.observed.contains("pid 7") && finding.observed.contains("verbosity 0"), "{finding:?}");
        assert!(fix(&finding).contains("-v=1") && fix(&finding).contains("--api-events"));
        assert_eq!((finding.fields["verbosity"].as_u64(), finding.fields["format"].as_str()), (Some(0), Some("text")));
        let loud = || kubelet_reported("kubelet --v=2 --logging-format=json", &[]);
        let finding = judge(loud(), Some("is a pipe"));
        assert!(finding.status == Status::Unknown && finding.observed.ends_with("its stderr is a pipe"), "{finding:?}");
        assert!(fix(&finding).contains("--kubelet-log") && fix(&finding).contains("--api-events"));
        let finding = judge(loud(), None);
        assert_eq!(finding.status, Status::Ok);
        assert_eq!(finding.observed, "The kubelet (pid 7) logs with verbosity 2, as json");
    }

    #[test]
    fn unreadable_log_settings_are_unknown() {
        let finding = judge(kubelet_reported("kubelet --config=/c", &[]), None);
        assert!(finding.status == Status::Unknown && finding.observed.contains("/c of the kubelet"), "{finding:?}");
        let finding = judge(Err(KubeletLoggingError::Embedded { pid: 7 }), None);
        assert!(finding.status == Status::Unknown && finding.needs.is_none(), "{finding:?}");
        let source = std::io::Error::from_raw_os_error(libc::EACCES);
        let finding = judge(Err(KubeletLoggingError::Read { pid: 7, path: "/c".into(), source }), None);
        assert_eq!(finding.needs.as_deref(), Some("CAP_SYS_PTRACE"));
        assert_eq!(Tree::new(&[("etc/hostname", "")]).finding(&CHECK).status, Status::Unknown);
    }
}
