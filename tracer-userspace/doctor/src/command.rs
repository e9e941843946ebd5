//! Carries out `tracer doctor`: runs the checks, prints their findings and returns the exit code.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, Options, Status, exit_code, lacking_prober, run};
use tracer_model::record::{Body, Record};
use tracer_node::clock;
use tracer_output::sink::output::Output;
use tracer_output::sink::pretty::findings;
use tracer_output::sink::{Format, SinkConfig, record};
use tracer_terminal::error::{self, Error};
use tracer_terminal::screen::Screen;

#[derive(Clone, Debug)]
pub struct DoctorConfig {
    pub output: SinkConfig,
    pub options: Options,
    /// Shows only findings that are not ok.
    pub only_problems: bool,
    /// The least bad status that makes the exit code 1.
    pub fail_on: Status,
    pub node_name: String,
}

pub fn doctor(config: &DoctorConfig) -> Result<u8, Error> {
    require_proc(Path::new("/"))?;
    let mut output = Output::open(config.output.file.as_deref(), None, false)?;
    if let Some(lacking) = lacking_prober(&config.options) {
        error::warn(&format!("{lacking}: tracer checks its own network namespace (--prober names another process)"));
    }
    let findings = run(&config.options);
    let code = exit_code(&findings, config.fail_on);
    let missing = missing_privileges(&findings, code);
    match config.output.format {
        Format::Pretty => {
            let screen = Screen { colour: config.output.colour, columns: output.columns().or(config.output.columns) };
            output.put(findings::table(&findings, &config.node_name, config.only_problems, screen).as_bytes());
        }
        format => {
            let shown = |finding: &Finding| !config.only_problems || finding.status != Status::Ok;
            let findings = findings.into_iter().filter(shown).collect();
            records(findings, &config.node_name).iter().for_each(|record| output.put(&format.line(record)));
        }
    }
    output.finish();
    missing.iter().for_each(|missing| error::report(missing));
    Ok(if output.has_failed() { 2 } else { code })
}

/// Fails without /proc: what is read there would seem to be missing, privileges included.
fn require_proc(root: &Path) -> Result<(), Error> {
    if root.join("proc/self").exists() {
        return Ok(());
    }
    Err(Error::Kernel("doctor reads the node from /proc, which is not mounted here".into()))
}

/// The message that explains exit code 3.
fn missing_privileges(findings: &[Finding], code: u8) -> Option<String> {
    if code != 3 {
        return None;
    }
    let needs: Vec<&str> = findings.iter().filter_map(|finding| finding.needs.as_deref()).collect();
    let names: BTreeSet<&str> = needs.iter().copied().collect();
    let are = if names.len() > 1 { "are" } else { "is" };
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!("{} of {} findings are unknown: {names} {are} missing", needs.len(), findings.len()))
}

fn records(findings: Vec<Finding>, node_name: &str) -> Vec<Record> {
    let now = (clock::boot_ns(), clock::boot_to_wall_ns());
    let bodies = findings.into_iter().map(|finding| Body::Finding(Box::new(finding)));
    (0..).zip(bodies).map(|(seq, body)| record(body, now, seq, node_name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Draft, Unread};
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn each_missing_capability_is_named_once() {
        let unknown = |name| Draft::new("c", "w", "e").unknown(Unread::lacks("r", name));
        let findings = [
            unknown("CAP_B"),
            unknown("CAP_A"),
            unknown("CAP_B"),
            Draft::new("c", "w", "e").unknown(Unread::new("r", "m")),
        ];
        let message = missing_privileges(&findings, 3);
        assert_eq!(message.as_deref(), Some("3 of 4 findings are unknown: CAP_A, CAP_B are missing"));
        assert_eq!(missing_privileges(&findings, 1), None);
    }

    #[test]
    fn without_proc_there_is_one_message() {
        let message = |tree: &Tree| require_proc(&tree.path()).err().map(|error| error.to_string());
        let expected = "doctor reads the node from /proc, which is not mounted here";
        assert_eq!(message(&Tree::new(&[("sys/kernel/btf/vmlinux", "")])).as_deref(), Some(expected));
        assert_eq!(message(&Tree::new(&[("proc/self/status", "")])), None);
    }
}
