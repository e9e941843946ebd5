//! The recipes for log pipelines: rsyslog's is run over real records, with a rotation in between, and every field of
//! what it stores is compared with the record. Those that cannot be run here are parsed, and their READMEs say so.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::deploy::{place, text};
use crate::tools::{self, Tool};
use crate::{bless, sh};

/// rsyslogd and what Debian's base system lacks of its libraries.
const PACKAGES: &[&str] = &["rsyslog", "libestr0", "libfastjson4"];
/// How long rsyslogd may take to read some hundred lines.
const PATIENCE: Duration = Duration::from_secs(20);

/// A stored field and where it is in the record.
const FIELDS: &[(&str, &str)] = &[
    ("time", "/time"),
    ("node", "/node_name"),
    ("label", "/verdict/label"),
    ("outcome", "/verdict/outcome"),
    ("confidence", "/verdict/confidence"),
    ("namespace", "/k8s/namespace"),
    ("pod", "/k8s/pod_name"),
    ("container", "/k8s/container_name"),
    ("probe", "/probe/type"),
    ("dst", "/dst/addr"),
    ("port", "/dst/port"),
    ("summary", "/verdict/summary"),
    ("remediation", "/verdict/remediation"),
];

/// All recipes.
pub(crate) fn check() -> Result<()> {
    for file in ["fluent-bit/fluent-bit.yaml", "vector/vector.yaml"] {
        let path = place().join("recipes").join(file);
        serde_yaml_ng::from_str::<Value>(&text(&path)?).with_context(|| format!("deploy/recipes/{file}"))?;
    }
    match tools::find("usr/sbin/rsyslogd", PACKAGES)? {
        Some(tool) => rsyslog(&tool),
        None => Ok(()),
    }
}

/// The verdicts of all fixtures through rsyslog.
fn rsyslog(tool: &Tool) -> Result<()> {
    let place = Place::new()?;
    let modules = tool.path("usr/lib").join(tools::triplet()).join("rsyslog");
    let arguments = |command: &mut std::process::Command| {
        command.arg("-f").arg(&place.config).arg("-M").arg(&modules).arg("-iNONE");
    };
    let mut validate = tool.command();
    validate.arg("-N1");
    arguments(&mut validate);
    sh::capture(&mut validate)?;
    let records = records()?;
    let (old, new) = records.split_at(records.len() / 2);
    fs::write(place.file("records.ndjson"), lines(old) + "{\"type\":\"start\"}\n{\"cut\":\n")?;
    let mut command = tool.command();
    arguments(command.arg("-n"));
    let mut daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    place.stored(old.len(), &mut daemon)?;
    fs::rename(place.file("records.ndjson"), place.file("records.ndjson.1"))?;
    fs::write(place.file("records.ndjson"), lines(new))?;
    let stored = place.stored(records.len(), &mut daemon)?;
    drop(daemon);
    let unparsed = fs::read_to_string(place.file("stored-unparsed.log")).unwrap_or_default();
    if unparsed.trim() != "{\"cut\":" {
        bail!("the line that was cut is not where it belongs, there is {unparsed:?}");
    }
    compare(&records, &stored)
}

/// The verdicts of the fixtures, as the tracer printed them.
fn records() -> Result<Vec<Value>> {
    let mut records = Vec::new();
    for case in bless::cases(&sh::root().join("tests/fixtures")) {
        let verdicts = text(&case.join("verdicts.ndjson"))?;
        let parsed: Result<Vec<Value>, _> = verdicts.lines().map(serde_json::from_str).collect();
        records.extend(parsed.with_context(|| case.display().to_string())?);
    }
    if records.len() < 10 {
        bail!("tests/fixtures has only {} verdicts", records.len());
    }
    Ok(records)
}

fn lines(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

/// Every field is stored as it was in the record, and absent where it was.
fn compare(records: &[Value], stored: &[Value]) -> Result<()> {
    if records.len() != stored.len() {
        bail!("{} verdicts were written and {} are stored", records.len(), stored.len());
    }
    for (record, stored) in records.iter().zip(stored) {
        for (field, pointer) in FIELDS {
            if stored.get(field) != record.pointer(pointer) {
                bail!("{field} of {record} is stored as {:?}", stored.get(field));
            }
        }
    }
    Ok(())
}

/// The recipe with its paths in a folder of its own.
struct Place {
    dir: PathBuf,
    config: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let dir = sh::target().join("recipes-rsyslog");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("spool")).with_context(|| dir.display().to_string())?;
        let here = dir.to_str().context("the path of target/ is not UTF-8")?;
        let recipe = text(&place().join("recipes/rsyslog/tracer.conf"))?;
        let recipe = recipe.replace("/var/log/tracer/", &format!("{here}/"));
        let recipe = recipe.replace("/var/log/tracer-", &format!("{here}/stored-"));
        let config = dir.join("rsyslog.conf");
        fs::write(&config, format!("global(workDirectory=\"{here}/spool\")\n{recipe}"))?;
        Ok(Self { dir, config })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Waits until so many verdicts are stored.
    fn stored(&self, count: usize, daemon: &mut Daemon) -> Result<Vec<Value>> {
        let file = self.file("stored-verdicts.log");
        let end = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if text.lines().count() >= count && text.ends_with('\n') {
                let parsed: Result<_, _> = text.lines().map(serde_json::from_str).collect();
                return parsed.with_context(|| format!("{} is not JSON", file.display()));
            }
            if let Some(status) = daemon.0.try_wait()? {
                bail!("rsyslogd ended with {status}");
            }
            if Instant::now() > end {
                bail!("rsyslogd stored {} of {count} verdicts in {PATIENCE:?}", text.lines().count());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends with its owner.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_lost_or_made_up_is_found() {
        let record = [json!({"time": "t", "verdict": {"label": "x"}, "dst": {"port": 80}})];
        let good = json!({"time": "t", "label": "x", "port": 80});
        assert!(compare(&record, &[good]).is_ok());
        for wrong in [json!({"time": "t", "label": "x"}), json!({"time": "t", "label": "x", "port": "80"})] {
            assert!(compare(&record, &[wrong]).is_err());
        }
        assert!(compare(&record, &[json!({"time": "t", "label": "x", "port": 80, "pod": ""})]).is_err());
        assert!(compare(&record, &[]).is_err());
    }
}
