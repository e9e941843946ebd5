//! The tracer under test. It runs outside of the test node's namespaces, as a DaemonSet does, and is stopped by
//! SIGTERM.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracer_model::record::{Body, Record};

use crate::net::die_with_parent;
use crate::options::Options;
use crate::pods;
use crate::proc::Proc;

/// The program and arguments of the tracer.
#[derive(Clone, Debug)]
pub struct Tracer {
    pub program: PathBuf,
    pub prober: String,
    /// The file with the PodList.
    pub pods: PathBuf,
    /// Use a ring of one page.
    pub tiny_ring: bool,
    /// The file with the Services.
    pub services: Option<PathBuf>,
    /// The cluster API, in place of that file.
    pub kubeconfig: Option<PathBuf>,
    /// The file with the kernel's types.
    pub btf: Option<PathBuf>,
    /// Gets each record when it is read.
    pub on_record: fn(&Record),
    pub kubelet_log: Option<PathBuf>,
}

impl Tracer {
    /// Writes the files with pods and Services to `options.scratch`.
    pub fn new(options: &Options, program: PathBuf) -> Result<Self> {
        Ok(Self {
            program,
            prober: options.prober.clone(),
            pods: write(&options.scratch.join("pods.json"), &pods::plan(options.probe_timeout).to_string())?,
            services: Some(write(&options.scratch.join("services.json"), &pods::services().to_string())?),
            tiny_ring: false,
            kubeconfig: None,
            btf: options.btf.clone(),
            on_record: |_| {},
            kubelet_log: None,
        })
    }

    /// The same without the probes of the pods, and with the log of a kubelet.
    pub fn without_specs(&self, options: &Options) -> Result<Self> {
        let pods = pods::without_probes(pods::plan(options.probe_timeout)).to_string();
        let pods = write(&options.scratch.join("names.json"), &pods)?;
        Ok(Self { pods, kubelet_log: Some(write(&options.kubelet_log(), "")?), ..self.clone() })
    }
}

fn write(path: &Path, content: &str) -> Result<PathBuf> {
    let folder = path.parent().context("a file in a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path.to_owned())
}

pub(super) fn flag<'a>(name: &'a str, file: Option<&'a Path>) -> impl Iterator<Item = &'a OsStr> {
    file.into_iter().flat_map(move |file| [OsStr::new(name), file.as_os_str()])
}

/// What the tracer printed so far.
#[derive(Debug)]
struct Printed {
    on_record: fn(&Record),
    records: Vec<Record>,
    /// The last line that is not a record.
    garbage: Option<String>,
}

impl Printed {
    fn add(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(record) => {
                (self.on_record)(&record);
                self.records.push(record);
            }
            Err(error) => self.garbage = Some(format!("{line}: {error}")),
        }
    }
}

#[derive(Debug)]
pub struct Session {
    proc: Proc,
    printed: RefCell<Printed>,
    stderr: Arc<Mutex<String>>,
    patience: Duration,
}

impl Session {
    /// Starts `tracer attach` and waits for its `start` record.
    pub fn attach(tracer: &Tracer, patience: Duration) -> Result<Self> {
        Self::start(tracer, &["attach", "-o", "json"], patience)
    }

    /// Starts `tracer record FILE` and waits for its `start` record.
    pub fn record(tracer: &Tracer, file: &Path, patience: Duration) -> Result<Self> {
        let file = file.to_str().context("name of the recording")?;
        Self::start(tracer, &["record", file, "-o", "json"], patience)
    }

    fn start(tracer: &Tracer, args: &[&str], patience: Duration) -> Result<Self> {
        let mut command = Command::new(&tracer.program);
        command.args(args).args(["--prober", &tracer.prober, "--pods"]).arg(&tracer.pods);
        if tracer.tiny_ring {
            command.args(["--ring-kib", "4"]);
        }
        command.args(flag("--services", tracer.services.as_deref()));
        command.args(flag("--kubeconfig", tracer.kubeconfig.as_deref()));
        command.args(flag("--kubelet-log", tracer.kubelet_log.as_deref()));
        command.args(flag("--btf", tracer.btf.as_deref())).stderr(Stdio::piped());
        die_with_parent(without_settings(&mut command));
        let mut proc = Proc::spawn(command)?;
        let stderr = Arc::default();
        read_stderr(proc.stderr()?, Arc::clone(&stderr));
        let printed = Printed { on_record: tracer.on_record, records: Vec::new(), garbage: None };
        let session = Self { proc, printed: RefCell::new(printed), stderr, patience };
        let started = session.wait(patience, |records| records.iter().any(|r| matches!(r.body, Body::Start(_))));
        if !started {
            bail!("no start record from the tracer: {}", session.trouble());
        }
        Ok(session)
    }

    /// Waits until the records meet a condition. False if they do not in time.
    pub fn wait(&self, patience: Duration, mut done: impl FnMut(&[Record]) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            self.read_lines();
            if done(&self.printed.borrow().records) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let Ok(line) = self.proc.line(left) else { return false };
            self.printed.borrow_mut().add(&line);
        }
    }

    fn read_lines(&self) {
        while let Ok(line) = self.proc.line(Duration::ZERO) {
            self.printed.borrow_mut().add(&line);
        }
    }

    pub fn records(&self) -> Vec<Record> {
        self.read_lines();
        self.printed.borrow().records.clone()
    }

    /// What went wrong, for a message: a line that is not a record, and the end of stderr.
    pub fn trouble(&self) -> String {
        let garbage = self.printed.borrow().garbage.clone().unwrap_or_default();
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tail = stderr.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" | ");
        format!("{garbage} {tail}").trim().to_owned()
    }

    /// Stops the tracer with SIGTERM and returns all records. The last one must be `stop`.
    pub fn stop(mut self) -> Result<Vec<Record>> {
        kill(Pid::from_raw(self.proc.pid().cast_signed()), Signal::SIGTERM).context("end the tracer")?;
        let rest = self.proc.finish(self.patience).with_context(|| format!("after SIGTERM: {}", self.trouble()))?;
        rest.iter().for_each(|line| self.printed.get_mut().add(line));
        let Printed { records, garbage, .. } = self.printed.into_inner();
        if let Some(garbage) = garbage {
            bail!("not a record: {garbage}");
        }
        check_complete(&records)?;
        Ok(records)
    }
}

/// Removes environment variables that configure a tracer, except for its log level.
pub fn without_settings(command: &mut Command) -> &mut Command {
    let is_setting = |name: &str| name.starts_with("TRACER_") && name != "TRACER_LOG";
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_setting)) {
        command.env_remove(name);
    }
    command
}

/// Fails unless the last record is `stop` and the sequence numbers have no gaps.
pub fn check_complete(records: &[Record]) -> Result<()> {
    if !matches!(records.last(), Some(Record { body: Body::Stop(_), .. })) {
        bail!("the last record is not `stop`");
    }
    for (n, record) in records.iter().enumerate() {
        if record.seq != n as u64 {
            bail!("record {n} has seq {}", record.seq);
        }
    }
    Ok(())
}

/// Replays a recording as an unprivileged user.
pub fn replay(tracer: &Path, file: &Path) -> Result<Vec<Record>> {
    // Only the owner may open a recording, so the other user gets it as stdin.
    let input = File::open(file).with_context(|| format!("open {}", file.display()))?;
    let mut command = Command::new(tracer);
    command.args(["replay", "-", "-o", "json"]).stdin(input).uid(65534).gid(65534);
    let output = without_settings(&mut command).output().with_context(|| format!("replay {}", file.display()))?;
    if !output.status.success() {
        bail!("replay: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("records in UTF-8")?;
    text.lines().map(|l| serde_json::from_str(l).with_context(|| format!("record {l}"))).collect()
}

fn read_stderr(pipe: impl Read + Send + 'static, stderr: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut text = stderr.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&line);
            text.push('\n');
        }
    });
}
