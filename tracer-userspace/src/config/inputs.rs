//! Refuses to write to a file that the command reads: appended records would damage a recording or a list of pods.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use crate::cli::{Command, LiveFlags};
use tracer_sources::NamedLog;
use tracer_terminal::error::Error;

/// Refuses an `--output-file` that the same command reads, or records to. `report` checks its files itself.
pub(super) fn refuse_as_output(command: &Command) -> Result<(), Error> {
    let (output, inputs) = match command {
        Command::Attach(live) | Command::Run { live, .. } => (&live.records.output, of_live(live)),
        Command::Record { file, live } => (&live.records.output, [of_live(live), vec![file]].concat()),
        Command::Replay { file, compare, records } => {
            (&records.output, iter::once(file).chain(compare).map(PathBuf::as_path).collect())
        }
        Command::Show { files, output, .. } => (output, files.iter().map(PathBuf::as_path).collect()),
        Command::Doctor(args) => (&args.output, args.pods.pods.iter().map(PathBuf::as_path).collect()),
        _ => return Ok(()),
    };
    let Some(output) = output.file.output_file.as_deref() else { return Ok(()) };
    if inputs.into_iter().any(|input| is_same(input, output)) {
        let path = output.display();
        return Err(Error::Usage(format!("--output-file {path}: is one of the inputs: choose another name")));
    }
    Ok(())
}

fn of_live(flags: &LiveFlags) -> Vec<&Path> {
    let sources = &flags.sources;
    let log = match &sources.kubelet_log {
        Some(NamedLog::File(path)) => Some(path),
        _ => None,
    };
    let files = [flags.pods.pods.as_ref(), sources.services.as_ref(), sources.kubeconfig.as_ref(), log];
    files.into_iter().flatten().map(PathBuf::as_path).collect()
}

/// Whether both are the same regular file, or the same name of a file that does not exist yet.
fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::planned;
    use tracer_testing::Scratch;

    #[test]
    fn an_input_as_output_is_refused() {
        let scratch = Scratch::new();
        let (input, link) = (scratch.path("in"), scratch.path("link"));
        std::fs::write(&input, "{}").unwrap();
        std::fs::hard_link(&input, &link).unwrap();
        let (input, link) = (input.to_str().unwrap(), link.to_str().unwrap());
        for args in [
            &["replay", input][..],
            &["replay", "other", "--compare", input],
            &["attach", "--pods", input],
            &["run", "--services", input],
            &["doctor", "--pods", input],
        ] {
            let error = planned(&[args, &["--output-file", link]].concat()).unwrap_err().to_string();
            assert_eq!(error, format!("--output-file {link}: is one of the inputs: choose another name"), "{args:?}");
        }
        assert!(planned(&["replay", input, "--output-file", scratch.path("out").to_str().unwrap()]).is_ok());
        assert!(planned(&["replay", "/dev/null", "--output-file", "/dev/null"]).is_ok());
        assert!(planned(&["record", "new", "--output-file", "new"]).is_err());
    }
}
