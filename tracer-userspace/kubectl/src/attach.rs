//! `kubectl tracer attach`: a pod that runs tracer on one node for a while, with the rights of the DaemonSet.

mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use super::api::{Api, Log, LogOptions};
use super::cli::{Attach, DaemonSet, Format};
use super::daemon::tracer_of;
use super::objects::{Pod, Waiting};
use super::problem::Problem;
use super::records::{LINE_MAX, Reading};
use tracer_model::lines::Lines;
use tracer_model::record::Record;
use tracer_output::sink::pretty::Pretty;
use tracer_terminal::error;
use tracer_terminal::screen::{Screen, safe};

/// An image may have to be pulled.
const START: Duration = Duration::from_mins(2);
/// How long to wait for tracer's summary after its end was requested. It normally takes less than a second.
const END: Duration = Duration::from_secs(15);
/// How long a request is made again after the connection was lost.
const AWAY: Duration = Duration::from_secs(30);
/// Diagnostics that are remembered.
const DIAGNOSTICS: usize = 256;
const POLL: Duration = Duration::from_millis(500);

/// Runs tracer on the node. Gives its exit code.
pub(super) async fn attach(api: &Api, args: &Attach, out: &mut dyn Write) -> Result<u8, Problem> {
    let mut signals =
        Signals::new().map_err(|error| Problem::Found(format!("signals: {}", error::os_message(&error))))?;
    let kernel = api.node(&args.node).await?.status.node_info.kernel_version;
    let image = image(api, args).await?;
    let pod = api.create_pod(&args.attach_namespace, &pod::of(args, &kernel, &image)?).await?;
    let (node, seconds) = (&args.node, args.duration.as_secs());
    error::report_line("attach", &format!("pod {} runs tracer on {node} for {seconds} s", pod.full_name()));
    let ended = tokio::select! {
        log = start(api, args, &pod) => match log {
            Ok(log) => print(api, args, &pod, log, &mut signals, out).await,
            Err(problem) => Err(problem),
        },
        _ = signals.next() => Ok(None),
    };
    let code = match &ended {
        Ok(None) => exit_code(api, &pod).await.ok().flatten().unwrap_or(0),
        Ok(Some(code)) => *code,
        Err(_) => 0,
    };
    let lost = matches!(ended, Err(Problem::Unreachable(_)));
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let patience = if lost { AWAY } else { Duration::ZERO };
    if let Err(problem) = retried(patience, async || api.delete_pod(namespace, name).await).await {
        let seconds = pod::deadline(args).as_secs();
        error::warn(&format!(
            "pod {namespace}/{name} could not be deleted: {problem}. It ends by itself within {seconds} s. Later: kubectl delete pod -n {namespace} {name}"
        ));
    }
    ended.map(|_| code)
}

/// The image, and the Secrets to pull it with.
#[derive(Clone, Debug, Default)]
struct Image {
    name: String,
    pull_secrets: Vec<String>,
}

/// The requested image, else that of the DaemonSet's pods.
async fn image(api: &Api, args: &Attach) -> Result<Image, Problem> {
    if let Some(name) = &args.image {
        return Ok(Image { name: name.clone(), ..Image::default() });
    }
    let DaemonSet { namespace, selector } = &args.daemonset;
    let ask = "name the image of tracer with --image, such as --image REGISTRY/tracer:0.1.0";
    let pods = api.pods(namespace, selector, None).await;
    let pods =
        pods.map_err(|problem| Problem::Found(format!("{ask}; that of the DaemonSet is not known: {problem}")))?;
    let found = pods.iter().find_map(|pod| Some((&tracer_of(pod)?.image, &pod.spec.image_pull_secrets)));
    let (name, secrets) = found.filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Problem::Found(format!(
            "{ask}; no pod of `{selector}` in namespace `{namespace}` has one (--daemonset-namespace)"
        ))
    })?;
    // A pod can use Secrets of its own namespace only.
    let is_there = *namespace == args.attach_namespace;
    if !is_there && !secrets.is_empty() {
        error::warn(&format!(
            "{name} is pulled without the Secrets of namespace {namespace}; if that fails, add --attach-namespace {namespace}"
        ));
    }
    let pull_secrets = secrets.iter().filter(|_| is_there).map(|it| it.name.clone()).collect();
    Ok(Image { name: name.clone(), pull_secrets })
}

/// Waits until tracer runs. Gives its log.
async fn start(api: &Api, args: &Attach, pod: &Pod) -> Result<Log, Problem> {
    let (node, deadline) = (&args.node, Instant::now() + START);
    loop {
        let now = api.pod(&pod.metadata.namespace, &pod.metadata.name).await?;
        match now.status.phase.as_str() {
            "" | "Pending" => {}
            "Failed" if now.status.container_statuses.is_empty() => {
                return Err(Problem::Found(format!("{node} refuses the pod: {}", now.status.message)));
            }
            _ => return follow(api, pod, None).await,
        }
        let waiting = now.status.container_statuses.iter().find_map(|it| it.state.waiting.as_ref());
        let refused = waiting.filter(|it| !matches!(it.reason.as_str(), "ContainerCreating" | "PodInitializing"));
        if let Some(Waiting { reason, message, .. }) = refused {
            return Err(Problem::Found(format!("the pod does not start on {node}: {reason}: {message}")));
        }
        if Instant::now() > deadline {
            let why = match waiting {
                Some(_) => "is the image being pulled?",
                None => "is there a node of this name, and does its kubelet run?",
            };
            let seconds = START.as_secs();
            return Err(Problem::Found(format!("{node} did not start the pod within {seconds} s: {why}")));
        }
        sleep(POLL).await;
    }
}

async fn follow(api: &Api, pod: &Pod, since_time: Option<String>) -> Result<Log, Problem> {
    api.log(pod, pod::CONTAINER, &LogOptions { follow: true, since_time, ..LogOptions::default() }).await
}

/// Prints the pod's log until the pod ends, and gives tracer's exit code. A signal deletes the pod, and its summary is still
/// printed. A second signal ends at once. A log that breaks off while tracer runs is followed again: what is between here
/// and the API server may cut a silent connection.
async fn print(
    api: &Api,
    args: &Attach,
    pod: &Pod,
    mut log: Log,
    signals: &mut Signals,
    out: &mut dyn Write,
) -> Result<Option<u8>, Problem> {
    let mut printer = Printer::new(args);
    let mut ends: Option<Instant> = None;
    let mut code = None;
    loop {
        let deadline = ends.unwrap_or_else(|| Instant::now() + END);
        tokio::select! {
            piece = log.next() => match piece {
                Ok(Some(piece)) if printer.feed(&piece, out).is_ok() => {}
                // The reader of stdout is gone.
                Ok(Some(_)) => return Ok(None),
                _ if ends.is_some() => return Ok(None),
                Ok(None) if code.is_some() => return Ok(code),
                cut => {
                    code = retried(AWAY, async || exit_code(api, pod).await).await?;
                    if cut.is_ok() && code.is_some() {
                        return Ok(code);
                    }
                    // A container that has just ended is still Running here.
                    sleep(POLL).await;
                    (printer.lines, printer.again) = (Lines::new(LINE_MAX), true);
                    let since = printer.reading.times.as_ref().map(|(_, last)| last.clone());
                    log = retried(AWAY, async || follow(api, pod, since.clone()).await).await?;
                }
            },
            _ = signals.next() => {
                if ends.replace(Instant::now() + END).is_some() {
                    return Ok(None);
                }
                api.delete_pod(&pod.metadata.namespace, &pod.metadata.name).await?;
            }
            () = sleep_until(deadline), if ends.is_some() => return Ok(None),
        }
    }
}

async fn exit_code(api: &Api, pod: &Pod) -> Result<Option<u8>, Problem> {
    let now = api.pod(&pod.metadata.namespace, &pod.metadata.name).await?;
    let code = now.status.container_statuses.iter().find_map(|it| it.state.terminated.as_ref()).map(|it| it.exit_code);
    match code {
        // Evicted, or past its deadline, with no status of its container.
        None if now.status.phase == "Failed" => {
            Err(Problem::Found(format!("{} ended: {}", pod.full_name(), now.status.message)))
        }
        code => Ok(code.and_then(|code| u8::try_from(code).ok())),
    }
}

/// Makes the request again while the API does not answer, as long as this.
async fn retried<T>(patience: Duration, request: impl AsyncFn() -> Result<T, Problem>) -> Result<T, Problem> {
    let until = Instant::now() + patience;
    loop {
        match request().await {
            Err(Problem::Unreachable(_) | Problem::Late(_)) if Instant::now() < until => sleep(POLL).await,
            done => return done,
        }
    }
}

/// Prints the pod's records in the requested format, and its diagnostics on stderr.
struct Printer {
    format: Format,
    screen: Screen,
    pretty: Pretty,
    lines: Lines,
    reading: Reading,
    /// The number of the last record. A log that is followed again begins with records that are printed.
    last_seq: Option<u64>,
    /// The diagnostics that are printed, if the log is followed again.
    printed: BTreeSet<Vec<u8>>,
    again: bool,
}

impl Printer {
    fn new(args: &Attach) -> Self {
        Self {
            format: args.output.unwrap_or_else(Format::of_stdout),
            screen: Screen::of_stdout(),
            pretty: Pretty::default().naming_nodes(),
            lines: Lines::new(LINE_MAX),
            reading: Reading::default(),
            last_seq: None,
            printed: BTreeSet::new(),
            again: false,
        }
    }

    fn feed(&mut self, piece: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let Self { format, screen, pretty, lines, reading, last_seq, printed: diagnostics, again } = self;
        let mut printed = Vec::new();
        lines.feed(piece, |line| {
            let Some(line) = line else { return Ok(()) };
            let Some(head) = reading.take(line) else {
                if diagnostics.len() == DIAGNOSTICS {
                    diagnostics.clear();
                }
                if diagnostics.insert(line.to_vec()) || !*again {
                    let _ = writeln!(io::stderr(), "{}", safe(&String::from_utf8_lossy(line)));
                }
                return Ok(());
            };
            if last_seq.is_some_and(|last| head.seq <= last) {
                return Ok(());
            }
            *last_seq = Some(head.seq);
            if *format == Format::Json {
                printed.extend(line.iter().chain(b"\n"));
            } else if let Ok(record) = serde_json::from_slice::<Record>(line) {
                printed.extend(pretty.text(&record, 0, *screen).into_bytes());
            }
            io::Result::Ok(())
        })?;
        out.write_all(&printed).and_then(|()| out.flush())
    }
}

/// SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal is gone).
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let [interrupt, terminate, hangup] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(Self([signal(interrupt)?, signal(terminate)?, signal(hangup)?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
