//! The plan of `attach`, `run` and `record`.

use std::path::PathBuf;

use super::{load_options, node_name, readable, records};
use crate::cli::{LiveFlags, SourceFlags};
use crate::pipeline::LiveConfig;
use tracer_output::serve::Serve;
use tracer_output::sink::DestinationFlags;
use tracer_sources::cluster::{self, Access, ClusterConfig, Namespace};
use tracer_sources::{NamedLog, journal_in};
use tracer_terminal::error::Error;

/// Only a daemon has the flags in `daemon`.
pub(super) fn plan(
    mut flags: LiveFlags,
    daemon: Option<(Serve, DestinationFlags)>,
    record: Option<PathBuf>,
) -> Result<LiveConfig, Error> {
    let (serve, destinations) = daemon.unzip();
    let output = records(&flags.records)?;
    check_files(&mut flags)?;
    let LiveFlags { pods, sources, .. } = flags;
    let node_name = node_name(flags.node)?;
    let access = access(&sources, serve.is_some());
    let destinations = destinations.map(|flags| flags.destinations(access.clone(), &node_name)).transpose()?;
    let load = load_options(flags.probers, flags.kernel)?;
    Ok(LiveConfig {
        unavailable_source: serve.as_ref().filter(|_| access.is_none()).and_then(|_| unavailable_source(&sources)),
        cluster: access.and_then(|access| cluster_sources(access, &sources, pods.pods.is_none(), &node_name)),
        output,
        daemon: serve.is_some(),
        serve,
        record,
        duration: flags.duration,
        load,
        pods: pods.pods,
        services: sources.services,
        kubelet_log: sources.kubelet_log,
        destinations: destinations.unwrap_or_default(),
        node_name,
    })
}

/// Checks that each file that a flag names can be read. A flag with an empty name is absent afterwards.
fn check_files(LiveFlags { pods, sources, .. }: &mut LiveFlags) -> Result<(), Error> {
    pods.pods = readable("--pods", pods.pods.take())?;
    sources.services = readable("--services", sources.services.take())?;
    sources.kubelet_log = kubelet_log(sources.kubelet_log.take())?;
    sources.kubeconfig = readable("--kubeconfig", sources.kubeconfig.take())?;
    Ok(())
}

/// Checks that the file exists, or that the directory has a journal. The node's own journal may be created later.
fn kubelet_log(named: Option<NamedLog>) -> Result<Option<NamedLog>, Error> {
    match named {
        // Opening a pipe would wait for a writer.
        Some(NamedLog::File(path)) if std::fs::metadata(&path).is_ok_and(|it| !it.is_file() && !it.is_dir()) => {
            Err(Error::file("--kubelet-log", path, std::io::Error::other("not a plain file")))
        }
        Some(NamedLog::File(path)) => Ok(readable("--kubelet-log", Some(path))?.map(NamedLog::File)),
        Some(NamedLog::Journal(Some(directory))) if journal_in(&directory).is_none() => {
            let missing = std::io::Error::other("no system.journal in it, nor in a machine's directory below it");
            Err(Error::file("--kubelet-log", format!("journal:{}", directory.display()), missing))
        }
        named => Ok(named),
    }
}

/// How tracer reaches the cluster API, if it uses it: with the kubeconfig, else with the daemon's service account.
fn access(flags: &SourceFlags, daemon: bool) -> Option<Access> {
    if flags.no_api {
        return None;
    }
    let in_cluster = || (daemon && cluster::in_cluster()).then_some(Access::InCluster);
    flags.kubeconfig.clone().map(Access::Kubeconfig).or_else(in_cluster)
}

/// What to read from the cluster API; absent if files have all of it.
fn cluster_sources(access: Access, flags: &SourceFlags, pods: bool, node_name: &str) -> Option<ClusterConfig> {
    let config = ClusterConfig {
        access,
        node_name: node_name.to_owned(),
        pods,
        endpoints: flags.services.is_none(),
        events: namespaces(flags.api_events.clone()),
    };
    Some(config).filter(ClusterConfig::asks_something)
}

/// Removes duplicates; `*` stands for all namespaces.
fn namespaces(asked: Vec<Namespace>) -> Vec<Namespace> {
    if asked.contains(&Namespace::All) {
        return vec![Namespace::All];
    }
    asked.into_iter().fold(Vec::new(), |mut each, namespace| {
        if !each.contains(&namespace) {
            each.push(namespace);
        }
        each
    })
}

/// Refuses a kubeconfig on the command line that nothing would read.
pub(super) fn refuse_unread_kubeconfig(flags: &SourceFlags, typed: &[String]) -> Result<(), Error> {
    if flags.no_api && typed.iter().any(|id| id == "kubeconfig") {
        return Err(Error::Usage("--no-api and --kubeconfig exclude each other".into()));
    }
    Ok(())
}

/// Refuses `--api-events` without a kubeconfig. Its variable is accepted: `attach` may run in the environment of a daemon.
pub(super) fn refuse_api_flags_without_kubeconfig(
    command: &str,
    flags: &SourceFlags,
    typed: &[String],
) -> Result<(), Error> {
    let named = flags.kubeconfig.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    if !named && typed.iter().any(|id| id == "api_events") {
        return Err(Error::Usage(format!(
            "--api-events has no meaning for `tracer {command}` without --kubeconfig PATH"
        )));
    }
    Ok(())
}

/// The warning about `--api-events` in a daemon without access to the cluster API. The daemon runs without the
/// Events; other commands refuse the flag.
fn unavailable_source(flags: &SourceFlags) -> Option<String> {
    let why = if flags.no_api { "beside --no-api" } else { "here: no pod's service account, and no --kubeconfig PATH" };
    (!flags.api_events.is_empty()).then(|| format!("--api-events does nothing {why}"))
}
