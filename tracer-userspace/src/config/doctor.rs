//! The plan of `tracer doctor`.

use std::path::PathBuf;

use super::{btf, node_name, output, probers, readable, refuse_empty, rotation};
use crate::cli::DoctorArgs;
use tracer_doctor::command::DoctorConfig;
use tracer_doctor::{CHECKS, Options};
use tracer_output::sink::SinkConfig;
use tracer_sources::files;
use tracer_terminal::error::Error;
use tracer_terminal::typed::nearest;

pub(super) fn plan(args: DoctorArgs) -> Result<DoctorConfig, Error> {
    let output = output(&args.output);
    let output = SinkConfig { rotation: rotation(&args.rotation, output.file.is_some())?, ..output };
    let pods = readable("--pods", args.pods.pods)?.map(|path| files::read_pods(&path)).transpose();
    let pods = pods.map_err(|error| Error::Source(error.to_string()))?;
    // An empty list does not show that the node has no pods.
    let pods = pods.filter(|pods| !pods.is_empty());
    refuse_empty("--check", &args.checks)?;
    let checks = args.checks.iter().map(|name| known(name).map(str::to_owned)).collect::<Result<_, _>>()?;
    let probers = probers(args.probers.probers)?;
    let btf = btf(args.btf)?;
    let options = Options { root: root(args.root)?, checks, pods, probers, btf, ..Options::default() };
    let node_name = node_name(args.node)?;
    Ok(DoctorConfig { output, options, only_problems: args.problems, fail_on: args.fail_on, node_name })
}

/// Checks that the folder can be listed and has files of a node. Elsewhere each check would be `unknown`.
fn root(path: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(None) };
    match std::fs::read_dir(&path) {
        Ok(_) if ["proc/sys", "etc"].iter().any(|folder| path.join(folder).exists()) => Ok(Some(path)),
        Ok(_) => {
            let path = path.display();
            Err(Error::Usage(format!("--root {path}: has no files of a node: neither `proc/sys` nor `etc` is in it")))
        }
        Err(error) => Err(Error::file("--root", path, error)),
    }
}

/// The check with this name, in upper or lower case, with `-` or `_`.
fn known(name: &str) -> Result<&'static str, Error> {
    let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    if let Some(known) = names.iter().find(|known| **known == name.to_lowercase().replace('-', "_")) {
        return Ok(known);
    }
    let nearest = nearest(name, names.iter().copied());
    let nearest = nearest.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    Err(Error::Usage(format!("--check `{name}`: no such check; {nearest}known: {}", names.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_unknown_check_lists_the_known_ones() {
        let error = |name| known(name).expect_err("unknown").to_string();
        assert!(error("contrack").contains("did you mean `conntrack`?"));
        assert_eq!(known("Port-Overlap").expect("a check"), "port_overlap");
        assert!(error("lo").contains("known: port_overlap, listener_overlap, loopback_up"));
        assert!(known("rp_filter").is_ok());
    }
}
