//! Completions for shells, and man pages: made from the same definitions as `--help`.

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

use super::definition;
use tracer_model::record::Cause;
use tracer_terminal::error::Error;

fn commands() -> Command {
    let mut command = definition::of_everything();
    command.build();
    command
}

pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&commands()), "tracer", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A command for completion: without hidden parts, and with the names of causes as values.
fn shown(command: &Command) -> Command {
    let causes = || PossibleValuesParser::new(Cause::ALL.iter().map(|cause| cause.name()));
    // clap adds these two itself.
    let own = |name: &str| name != "help" && name != "version";
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set() && own(arg.get_id().as_str())).cloned();
    let args = args.map(|arg| match arg.get_id().as_str() {
        "explained" | "causes" => arg.value_parser(causes()),
        _ => arg,
    });
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set() && own(sub.get_name())).map(shown);
    let about = command.get_about().cloned().unwrap_or_default();
    let shown = Command::new(command.get_name().to_owned()).about(about).args(args).subcommands(commands);
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    }
}

/// The man page (roff) of a command, or of all.
pub fn man(name: Option<&str>) -> Result<String, Error> {
    let all = commands();
    let command = match name {
        None => all,
        Some(name) => {
            let unknown = || Error::Usage(format!("man {name}: no such command (see `tracer --help`)"));
            // The page of `run` is called `tracer-run(1)`.
            all.find_subcommand(name).cloned().ok_or_else(unknown)?.display_name(format!("tracer-{name}"))
        }
    };
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.map_err(|error| Error::Usage(format!("man: {error}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            for name in definition::names() {
                assert!(script.contains(&name), "{shell}: {name}");
            }
            for hidden in ["selftest-helper", "ring-kib", "markdown"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
            assert!(matches!(shell, Shell::Elvish | Shell::PowerShell) || script.contains("loopback_down"), "{shell}");
            assert!(script.contains("metrics-listen") && script.contains("until-failure"), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_page_and_a_line_in_the_main_page() {
        let first = man(None).unwrap();
        assert!(first.contains(".TH tracer 1"), "{first}");
        for name in definition::names() {
            // roff writes a hyphen as `\-`.
            assert!(first.contains(&format!("tracer\\-{name}(1)")), "{name} is not in\n{first}");
            let page = man(Some(&name)).unwrap();
            assert!(page.contains(&format!(".TH tracer-{name} 1")) && page.contains("OPTIONS"), "{page}");
        }
        assert!(man(Some("run")).unwrap().contains("metrics\\-listen"));
        assert_eq!(man(Some("nothing")).unwrap_err().exit_code(), 2);
    }
}
