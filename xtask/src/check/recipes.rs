//! The recipes for log pipelines: rsyslog's is run over real records, with a rotation in between, and what it stores is
//! compared with the records. Those that cannot be run here are parsed, and their READMEs say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::deploy::{place, text};
use crate::packages::{self, Tool};
use crate::{sh, tracer};

/// rsyslogd and what Debian's base system lacks of its libraries.
const PACKAGES: &[&str] = &["rsyslog", "libestr0", "libfastjson4"];
/// How long rsyslogd may take to read some hundred lines.
const PATIENCE: Duration = Duration::from_secs(20);
/// A line that is no record.
const CUT: &str = "{\"cut\":";

/// A stored field and where it is in the record.
const FIELDS: &[(&str, &str)] = &[
    ("time", "/time"),
    ("node", "/node_name"),
    ("cause", "/verdict/cause"),
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
    packages::find("usr/sbin/rsyslogd", PACKAGES)?.map_or(Ok(()), |tool| rsyslog(&tool))
}

/// The verdicts of all fixtures through rsyslog.
fn rsyslog(tool: &Tool) -> Result<()> {
    let dir = sh::target().join("recipes-rsyslog");
    configure(&dir)?;
    sh::capture(daemon(tool, &dir).arg("-N1"))?;
    let records = records()?;
    let lines: Vec<_> = records.iter().map(|record| format!("{record}\n")).collect();
    let (old, new) = lines.split_at(lines.len() / 2);
    let (input, rotated) = (dir.join("records.ndjson"), dir.join("records.ndjson.1"));
    fs::write(&input, format!("{}{{\"type\":\"start\"}}\n{CUT}\n", old.concat()))?;
    let mut running = Daemon(daemon(tool, &dir).arg("-n").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    stored(&dir, old.len(), &mut running)?;
    fs::rename(&input, rotated)?;
    fs::write(&input, new.concat())?;
    let stored = stored(&dir, records.len(), &mut running)?;
    drop(running);
    let unparsed = fs::read_to_string(dir.join("stored-unparsed.log")).unwrap_or_default();
    ensure!(unparsed.trim() == CUT, "the line that was cut is not where it belongs, there is {unparsed:?}");
    ensure!(stored.len() == records.len(), "{} verdicts were written and {} are stored", records.len(), stored.len());
    records.iter().zip(&stored).try_for_each(|(record, stored)| compare(record, stored))
}

/// The recipe with its paths in a folder of its own.
fn configure(dir: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir.join("spool")).with_context(|| dir.display().to_string())?;
    let here = dir.to_str().context("the path of target/ is not UTF-8")?;
    let recipe = text(&place().join("recipes/rsyslog/tracer.conf"))?;
    let recipe = recipe.replace("/var/log/tracer/", &format!("{here}/"));
    let recipe = recipe.replace("/var/log/tracer-", &format!("{here}/stored-"));
    Ok(fs::write(dir.join("rsyslog.conf"), format!("global(workDirectory=\"{here}/spool\")\n{recipe}"))?)
}

fn daemon(tool: &Tool, dir: &Path) -> Command {
    let mut command = tool.command();
    command.arg("-f").arg(dir.join("rsyslog.conf")).arg("-M").arg(tool.libraries().join("rsyslog")).arg("-iNONE");
    command
}

/// The verdicts of the fixtures, as the tracer prints them.
fn records() -> Result<Vec<Value>> {
    tracer::build()?;
    let recordings = tracer::fixtures(&sh::root().join("tests/fixtures"));
    let records: Vec<_> = recordings.iter().map(|it| tracer::verdicts(it)).collect::<Result<_>>()?;
    let records = records.concat();
    ensure!(records.len() >= 10, "tests/fixtures has only {} verdicts", records.len());
    Ok(records)
}

/// Every field is stored as it was in the record, and absent where it was.
fn compare(record: &Value, stored: &Value) -> Result<()> {
    let wrong = FIELDS.iter().find(|(field, pointer)| stored.get(field) != record.pointer(pointer));
    ensure!(wrong.is_none(), "{wrong:?} of {record} is stored in {stored}");
    Ok(())
}

/// Waits until so many verdicts are stored.
fn stored(dir: &Path, count: usize, daemon: &mut Daemon) -> Result<Vec<Value>> {
    let file: PathBuf = dir.join("stored-verdicts.log");
    let end = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() >= count && text.ends_with('\n') {
            return sh::records(&text);
        }
        if let Some(status) = daemon.0.try_wait()? {
            bail!("rsyslogd ended with {status}");
        }
        ensure!(Instant::now() < end, "rsyslogd stored {} of {count} verdicts in {PATIENCE:?}", text.lines().count());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends with its owner.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0.id().cast_signed()),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_lost_or_made_up_is_found() {
        let record = json!({"time": "t", "verdict": {"cause": "x"}, "dst": {"port": 80}});
        assert!(compare(&record, &json!({"time": "t", "cause": "x", "port": 80})).is_ok());
        for wrong in [
            json!({"time": "t", "cause": "x"}),
            json!({"time": "t", "cause": "x", "port": "80"}),
            json!({"time": "t", "cause": "x", "port": 80, "pod": ""}),
        ] {
            assert!(compare(&record, &wrong).is_err(), "{wrong}");
        }
    }
}
