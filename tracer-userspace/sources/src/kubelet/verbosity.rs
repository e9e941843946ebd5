//! What the kubelet writes to its log, according to its command line and its configuration.
//!
//! The kubelet logs outcomes of probes with `klog.V(1)` (`pkg/kubelet/prober/prober.go`, from 1.0 on). The default
//! verbosity is 0: then the log has no outcomes, but Events still report them.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::process::{Root, arguments, flag};
use tracer_terminal::error::{os_message, without_value};

/// The name of its process. Programs that embed the kubelet (k3s, kubelite) do not have its settings on their command
/// line.
pub(super) const NAME: &str = "kubelet";
/// From this verbosity on the log has outcomes of probes.
const OUTCOMES: u32 = 1;
/// From this verbosity on the log has the body of each answer, in the text format with its line breaks. So a pod can
/// send lines that look like the kubelet's (`klog.V(4).Infof`, `pkg/probe/http/http.go`).
const BODIES: u32 = 4;
/// The source file that writes outcomes, as `--vmodule` names it.
const SOURCE: &str = "prober";
/// Log formats that tracer reads (`component-base/logs/api/v1`). The first is the kubelet's default.
const FORMATS: &[&str] = &["text", "json"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletLogging {
    pub pid: u32,
    /// `-v`, or `logging.verbosity`.
    pub verbosity: u32,
    /// `--logging-format`, or `logging.format`.
    pub format: String,
    /// A pattern of `--vmodule` or `logging.vmodule` makes the kubelet log outcomes, whatever the verbosity is.
    by_module: bool,
    /// The file in which the verbosity is set, or can be; absent: a flag.
    set_in: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum KubeletLoggingError {
    #[error("process {pid} is no kubelet of its own: its command line does not show how the kubelet in it logs")]
    Embedded { pid: u32 },
    #[error("the command line of the kubelet (pid {pid}) cannot be read, or has no flag")]
    Bare { pid: u32 },
    #[error("{} of the kubelet (pid {pid}) cannot be read: {}", path.display(), os_message(source))]
    Read { pid: u32, path: PathBuf, source: io::Error },
    #[error("{} of the kubelet (pid {pid}) is no KubeletConfiguration: {reason}", path.display())]
    Garbage { pid: u32, path: PathBuf, reason: String },
}

impl KubeletLoggingError {
    /// The missing capability, if that is the reason.
    pub fn needs(&self) -> Option<&'static str> {
        let denied = matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied);
        denied.then_some("CAP_SYS_PTRACE")
    }
}

/// The part of a `KubeletConfiguration` that tracer reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Configuration {
    logging: Option<Logging>,
}

/// `logging`. An absent field keeps the value of an earlier file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logging {
    verbosity: Option<u32>,
    format: Option<String>,
    vmodule: Option<Vec<Module>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Module {
    file_pattern: String,
    verbosity: u32,
}

impl KubeletLogging {
    /// Reads the settings of a kubelet's process.
    pub fn of(pid: u32) -> Result<Self, KubeletLoggingError> {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.trim_end() == NAME {
            Self::reported(pid, &arguments(pid), &Root::of(pid))
        } else {
            Err(KubeletLoggingError::Embedded { pid })
        }
    }

    /// Merges the settings as the kubelet does: files of `--config-dir` override the file of `--config`, and flags
    /// override both (`cmd/kubelet/app/server.go`).
    pub(crate) fn reported(pid: u32, args: &[String], files: &Root) -> Result<Self, KubeletLoggingError> {
        if !args.iter().skip(1).any(|arg| arg.starts_with('-')) {
            return Err(KubeletLoggingError::Bare { pid });
        }
        let base = flag(args, "--config").map(PathBuf::from);
        let mut reported =
            Self { pid, verbosity: 0, format: FORMATS[0].to_owned(), by_module: false, set_in: base.clone() };
        for path in base.into_iter().chain(drop_ins(pid, args, files)?) {
            reported.take(configuration(pid, &path, files)?.logging.unwrap_or_default(), &path);
        }
        reported.take_flags(args);
        Ok(reported)
    }

    fn take(&mut self, logging: Logging, path: &Path) {
        if let Some(verbosity) = logging.verbosity {
            (self.verbosity, self.set_in) = (verbosity, Some(path.to_owned()));
        }
        self.format = logging.format.filter(|it| !it.is_empty()).unwrap_or(std::mem::take(&mut self.format));
        if let Some(modules) = logging.vmodule {
            self.by_module = modules.iter().any(|it| it.verbosity >= OUTCOMES && may_match(&it.file_pattern));
        }
    }

    fn take_flags(&mut self, args: &[String]) {
        if let Some(verbosity) = verbosity_flag(args) {
            (self.verbosity, self.set_in) = (verbosity, None);
        }
        if let Some(format) = flag(args, "--logging-format") {
            format.clone_into(&mut self.format);
        }
        if let Some(modules) = flag(args, "--vmodule") {
            self.by_module = modules.split(',').filter_map(|it| it.split_once('=')).any(|(pattern, level)| {
                level.trim().parse::<u32>().is_ok_and(|it| it >= OUTCOMES) && may_match(pattern.trim())
            });
        }
    }

    /// Why its log has no outcomes of probes, in words that follow the kubelet's name.
    pub fn lack(&self) -> Option<String> {
        let Self { verbosity, format, .. } = self;
        if !FORMATS.contains(&format.as_str()) {
            return Some(format!("logs in the format `{format}`, which is not read"));
        }
        let written = *verbosity >= OUTCOMES || self.by_module;
        (!written)
            .then(|| format!("logs with verbosity {verbosity} and writes how probes ended from {OUTCOMES} on only"))
    }

    /// Why a pod can forge lines of its log, in words that follow the kubelet's name.
    pub fn exposure(&self) -> Option<String> {
        let Self { verbosity, format, .. } = self;
        (*verbosity >= BODIES && format == FORMATS[0]).then(|| {
            format!(
                "logs with verbosity {verbosity} as text. \
                 A pod's answer can then look like a kubelet log line about any pod. \
                 Use verbosity {} or less, or `logging: {{format: json}}`",
                BODIES - 1
            )
        })
    }

    pub fn fix(&self) -> String {
        let change = match &self.set_in {
            _ if !FORMATS.contains(&self.format.as_str()) => {
                format!("have the kubelet log as {}", FORMATS.join(" or "))
            }
            None => format!("start the kubelet with -v={OUTCOMES}"),
            Some(path) => {
                format!("set `logging: {{verbosity: {OUTCOMES}}}` in {} and restart the kubelet", path.display())
            }
        };
        format!("{change}, or take its Events instead (--api-events NAMESPACE)")
    }
}

/// The file with all lines of a kubelet that writes its log to files (klog, until Kubernetes 1.26). Its stderr has only
/// errors then, which probes that failed are not. Only the text format honors these flags.
pub(super) fn log_file(args: &[String]) -> Option<PathBuf> {
    let is_text = flag(args, "--logging-format").is_none_or(|format| format == FORMATS[0]);
    let to_files = flag(args, "--logtostderr").is_some_and(|value| value.eq_ignore_ascii_case("false"));
    let program = args.first().and_then(|path| path.rsplit('/').next()).unwrap_or(NAME);
    let in_dir = || Path::new(flag(args, "--log-dir").unwrap_or("/tmp")).join(format!("{program}.INFO"));
    (is_text && to_files).then(|| flag(args, "--log-file").map_or_else(in_dir, PathBuf::from))
}

/// The files in `--config-dir` with names that end in `.conf`, sorted by name.
fn drop_ins(pid: u32, args: &[String], files: &Root) -> Result<Vec<PathBuf>, KubeletLoggingError> {
    let Some(directory) = flag(args, "--config-dir").map(Path::new) else { return Ok(Vec::new()) };
    let listed = files.list(directory);
    let paths =
        listed.map_err(|source| KubeletLoggingError::Read { pid, path: directory.to_owned(), source })?.into_iter();
    Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "conf")).collect())
}

fn configuration(pid: u32, path: &Path, files: &Root) -> Result<Configuration, KubeletLoggingError> {
    let text = files.read(path).map_err(|source| KubeletLoggingError::Read { pid, path: path.to_owned(), source })?;
    // An empty drop-in changes nothing.
    let parsed = serde_yaml_ng::from_slice::<Option<Configuration>>(&text);
    parsed.map(Option::unwrap_or_default).map_err(|error| KubeletLoggingError::Garbage {
        pid,
        path: path.to_owned(),
        reason: without_value(&error.to_string()),
    })
}

/// The verbosity of `-v=2`, `-v 2`, `-v2`, `--v=2` or `--v 2`; the last one counts.
fn verbosity_flag(args: &[String]) -> Option<u32> {
    let value = |at: usize| {
        let arg = args.get(at)?;
        let rest = arg.strip_prefix("--v").or_else(|| arg.strip_prefix("-v"))?;
        let value = if rest.is_empty() { args.get(at + 1)? } else { rest.strip_prefix('=').unwrap_or(rest) };
        value.parse().ok()
    };
    (0..args.len()).rev().find_map(value)
}

/// Whether a pattern of klog may match [`SOURCE`]: the name itself, or a pattern with `*`, `?` or `[…]`.
fn may_match(pattern: &str) -> bool {
    let name = pattern.rsplit('/').next().unwrap_or(pattern);
    match name.split_once(['*', '?', '[']) {
        Some((before, _)) => SOURCE.starts_with(before),
        None => name == SOURCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reported;

    fn verbosity(line: &str, files: &[(&str, &'static str)]) -> u32 {
        reported(line, files).unwrap().verbosity
    }

    const CONFIG: &str = "/var/lib/kubelet/config.yaml";
    /// As kubeadm starts it and writes its file.
    const KUBEADM: &str =
        "/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml";
    const NO_VERBOSITY: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nlogging:\n  flushFrequency: 0\n  options:\n    json:\n      infoBufferSize: \"0\"\n  verbosity: 0\n";

    #[test]
    fn a_kubelet_of_kubeadm_logs_no_outcomes() {
        let logging = reported(KUBEADM, &[(CONFIG, NO_VERBOSITY)]).unwrap();
        assert_eq!((logging.verbosity, logging.format.as_str()), (0, "text"));
        assert!(logging.lack().unwrap().contains("verbosity 0"), "{logging:?}");
        assert!(logging.fix().contains(CONFIG) && logging.fix().contains("verbosity: 1"), "{}", logging.fix());
        let raised = reported(KUBEADM, &[(CONFIG, "logging: {verbosity: 1, format: json}")]).unwrap();
        assert_eq!((raised.lack(), raised.format.as_str()), (None, "json"));
        let unset = reported(KUBEADM, &[(CONFIG, "kind: KubeletConfiguration")]).unwrap();
        assert!(unset.lack().is_some() && unset.fix().contains(CONFIG));
    }

    /// In JSON a body is on one line, and up to verbosity 3 the log has no bodies.
    #[test]
    fn bodies_in_the_text_format_are_reported_as_exposure() {
        let exposure = |line: &str| reported(&format!("kubelet {line}"), &[]).unwrap().exposure();
        assert!(exposure("-v=4").is_some_and(|it| it.starts_with("logs with verbosity 4 as text")));
        assert!(exposure("-v=10").is_some());
        assert_eq!((exposure("-v=3"), exposure("-v=4 --logging-format=json")), (None, None));
    }

    #[test]
    fn every_form_of_the_flag_overrides_the_file() {
        for flag in ["-v=2", "-v 2", "-v2", "--v=2", "--v 2", "--v=0 -v=2", "-v=2 --volume-plugin-dir=/x --vmodule=a=7"]
        {
            assert_eq!(verbosity(&format!("{KUBEADM} {flag}"), &[(CONFIG, NO_VERBOSITY)]), 2, "{flag}");
        }
        let lowered = reported(&format!("{KUBEADM} --v=0"), &[(CONFIG, "logging: {verbosity: 4}")]).unwrap();
        assert!(lowered.lack().is_some());
        assert!(lowered.fix().starts_with("start the kubelet with -v=1"), "{}", lowered.fix());
        let json = reported("kubelet --logging-format=json", &[]).unwrap();
        assert!(json.format == "json" && json.fix().starts_with("start the kubelet with -v=1"), "{json:?}");
    }

    #[test]
    fn drop_ins_override_the_file_in_the_order_of_their_names() {
        let line = format!("{KUBEADM} --config-dir /etc/kubelet.d");
        let files = [
            (CONFIG, "logging: {verbosity: 3, format: json}"),
            ("/etc/kubelet.d/10-a.conf", "logging: {verbosity: 2}"),
            ("/etc/kubelet.d/20-b.conf", "{\"logging\": {\"verbosity\": 0}}"),
            ("/etc/kubelet.d/30-c.conf", ""),
            ("/etc/kubelet.d/40-d.conf.bak", "logging: {verbosity: 9}"),
        ];
        let logging = reported(&line, &files).unwrap();
        assert_eq!((logging.verbosity, logging.format.as_str()), (0, "json"), "a value that a drop-in lacks stays");
        assert!(logging.fix().contains("20-b.conf"), "{}", logging.fix());
    }

    #[test]
    fn a_vmodule_pattern_can_enable_outcomes() {
        for modules in ["prober=1", "a=0,prob*=5", "*=2", "kubelet/prober/*=1", "[p]rober=1"] {
            let logging = reported(&format!("kubelet --vmodule={modules}"), &[]).unwrap();
            assert_eq!(logging.lack(), None, "{modules}");
        }
        for modules in ["prober=0", "probe=4", "worker*=4", "prober_manager=4", "prober", "=1"] {
            assert!(reported(&format!("kubelet --vmodule={modules}"), &[]).unwrap().lack().is_some(), "{modules}");
        }
        let file = (CONFIG, "logging: {vmodule: [{filePattern: prober, verbosity: 1}]}");
        assert_eq!(reported(KUBEADM, &[file]).unwrap().lack(), None);
    }

    #[test]
    fn the_file_of_a_kubelet_that_logs_to_files_is_found() {
        let file = |flags: &str| {
            let args: Vec<String> = format!("/usr/bin/kubelet {flags}").split(' ').map(str::to_owned).collect();
            log_file(&args).map(|path| path.display().to_string())
        };
        for (flags, path) in [
            ("--logtostderr=false --v=2 --log-dir=/opt/logs", Some("/opt/logs/kubelet.INFO")),
            ("--logtostderr=false --log-dir=/opt/logs --log-file=/k.log", Some("/k.log")),
            ("--logtostderr=false", Some("/tmp/kubelet.INFO")),
            ("--logtostderr=true --log-dir=/opt/logs", None),
            ("--log-dir=/opt/logs", None),
            ("--logtostderr=false --log-dir=/opt/logs --logging-format=json", None),
        ] {
            assert_eq!(file(flags).as_deref(), path, "{flags}");
        }
    }

    #[test]
    fn an_unknown_format_is_reported() {
        let logging = reported("kubelet -v=4 --logging-format=xml", &[]).unwrap();
        assert!(logging.lack().unwrap().contains("`xml`") && logging.fix().contains("text or json"));
    }

    #[test]
    fn missing_or_broken_settings_are_errors() {
        let missing = reported(KUBEADM, &[]).unwrap_err();
        assert!(missing.to_string().contains(CONFIG) && missing.needs().is_none(), "{missing}");
        for junk in ["logging: {verbosity: high}", "logging: ["] {
            assert!(matches!(reported(KUBEADM, &[(CONFIG, junk)]), Err(KubeletLoggingError::Garbage { .. })), "{junk}");
        }
        assert!(matches!(reported("kubelet", &[]), Err(KubeletLoggingError::Bare { .. })));
        let own = KubeletLogging::of(std::process::id());
        assert!(matches!(own, Err(KubeletLoggingError::Embedded { .. })), "not its name");
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let denied = KubeletLoggingError::Read { pid: 7, path: CONFIG.into(), source };
        assert_eq!(denied.needs(), Some("CAP_SYS_PTRACE"));
    }
}
