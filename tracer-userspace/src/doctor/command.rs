//! The command: runs the checks, prints their findings, gives the exit code.

use super::{Finding, exit_code, lacks_prober, run};
use crate::cli::Form;
use crate::clock;
use crate::config;
use crate::error::{self, Error};
use crate::record::{Body, Record, SCHEMA};
use crate::sink::output::Output;
use crate::sink::{findings, ndjson, wall_time};

/// Carries `tracer doctor` out.
///
/// # Errors
/// The output cannot be opened or written.
pub fn doctor(config: &config::Doctor) -> Result<u8, Error> {
    let mut output = Output::open(config.output.file.as_deref(), None, false)?;
    if lacks_prober(&config.options) {
        error::warn(&"no kubelet runs here: our own network namespace is looked at (--prober names another process)");
    }
    let findings = run(&config.options);
    let code = exit_code(&findings, config.fail_on);
    match config.output.form {
        Form::Pretty => {
            output
                .put(findings::table(&findings, &config.node_name, findings::width(), config.output.colour).as_bytes());
        }
        Form::Ndjson => {
            records(findings, &config.node_name).iter().for_each(|record| output.put(&ndjson::line(record)))
        }
    }
    output.finish();
    Ok(if output.has_failed() { 2 } else { code })
}

/// Findings as records, numbered.
fn records(findings: Vec<Finding>, node_name: &str) -> Vec<Record> {
    let time_boot_ns = clock::boot_ns();
    let time = wall_time(time_boot_ns, clock::boot_to_wall_ns());
    let record = |(seq, finding)| Record {
        schema: SCHEMA.to_owned(),
        body: Body::Finding(Box::new(finding)),
        time: time.clone(),
        time_boot_ns,
        seq,
        node_name: node_name.to_owned(),
    };
    (0..).zip(findings).map(record).collect()
}
