//! Files that are read are not written to: records appended to a recording or a list of pods would end its use.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::cli::{Cli, Command};
use tracer_sources::NamedLog;
use tracer_terminal::error::Error;

/// Refuses an `--output-file` that the same command reads, or records to. (`report` looks at its own.)
///
/// # Errors
/// It is one of them.
pub(super) fn refuse_as_output(cli: &Cli) -> Result<(), Error> {
    let Some(output) = cli.flags.output_file.as_deref() else { return Ok(()) };
    if of_command(&cli.command).into_iter().chain(of_flags(cli)).flatten().any(|input| is_same(input, output)) {
        let path = output.display();
        return Err(Error::Usage(format!("--output-file {path}: is one of the inputs: choose another name")));
    }
    Ok(())
}

fn of_command(command: &Command) -> [Option<&Path>; 2] {
    match command {
        Command::Replay { file, compare } => [Some(file), compare.as_deref()],
        Command::Record { file } => [Some(file), None],
        _ => [None, None],
    }
}

fn of_flags(cli: &Cli) -> [Option<&Path>; 4] {
    let flags = &cli.flags;
    let log = match &flags.kubelet_log {
        Some(NamedLog::File(path)) => Some(path.as_path()),
        _ => None,
    };
    let [pods, services, kubeconfig] = [&flags.pods, &flags.services, &flags.kubeconfig].map(|it| it.as_deref());
    [pods, services, kubeconfig, log]
}

/// The same regular file, or the same name of one that is not there yet.
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
    fn an_input_is_no_output() {
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
