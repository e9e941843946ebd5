//! Errors of kube's client without secrets. The client's own messages have the environment, the arguments and the output
//! of a credential plugin, and the lines of a kubeconfig around a wrong one.

use std::error::Error;
use std::iter::successors;

use kube::client::AuthError;
use kube::config::KubeconfigError;

use crate::kubelet::redact::closing_quote;
use tracer_terminal::error::{chain, os_message};

/// An error of kube and its causes, in one line.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    successors(Some(error), |&error| error.source()).find_map(without_secrets).unwrap_or_else(|| chain(error))
}

/// The reason of a request without an answer, in one short line. The names of the client's layers, the system's number and
/// the address are of no use to a reader.
pub(super) fn reason_of_request(error: &kube::Error) -> String {
    let text = reason(error);
    let layers = ["ServiceError: ", "client error (Connect): ", "tcp connect error: "];
    let text = layers.iter().fold(text.as_str(), |text, layer| text.strip_prefix(layer).unwrap_or(text));
    one_line(text.split(" (os error").next().and_then(|it| it.split(": https://").next()).unwrap_or(text))
}

/// Makes one short line of any text that a server sent.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// A message in place of an error that quotes secrets.
fn without_secrets(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<KubeconfigError>() {
        return of_kubeconfig(error);
    }
    if let Some(kube::Error::ProxyProtocolUnsupported { proxy_url }) = error.downcast_ref() {
        let (scheme, host) = (proxy_url.scheme_str().unwrap_or_default(), proxy_url.host().unwrap_or_default());
        let port = proxy_url.port().map(|port| format!(":{port}")).unwrap_or_default();
        return Some(format!("the proxy {scheme}://{host}{port} has a protocol that tracer does not speak"));
    }
    match error.downcast_ref::<AuthError>()? {
        AuthError::AuthExecRun { cmd, out } => {
            Some(format!("the credential plugin{} failed: {}", program(cmd), out.status))
        }
        AuthError::AuthExecStart(error) => {
            Some(format!("the credential plugin of the kubeconfig cannot be started: {}", os_message(error)))
        }
        AuthError::AuthExecParse(_) => Some("the credential plugin printed no ExecCredential".to_owned()),
        AuthError::ParseTokenKey(_) => Some("the credential plugin printed no JSON".to_owned()),
        AuthError::MalformedTokenExpirationDate(_) => Some("the token has a malformed expiration date".to_owned()),
        _ => None,
    }
}

fn of_kubeconfig(error: &KubeconfigError) -> Option<String> {
    match error {
        KubeconfigError::Parse(problem) => {
            let place = problem.location().map(|it| format!(" at line {}, column {}", it.line(), it.column()));
            Some(format!("failed to parse kubeconfig YAML{}", place.unwrap_or_default()))
        }
        // The caller names the file.
        KubeconfigError::ReadConfig(error, _) => Some(os_message(error)),
        _ => None,
    }
}

/// The name of the program in a command, such as `/bin/program argument`, or
/// `env -u A B="c" "/bin/program" "argument"` as std writes it.
fn program(command: &str) -> String {
    let mut rest = command.strip_prefix("env ").unwrap_or(command);
    while let Some(unset) = rest.strip_prefix("-u ") {
        rest = unset.split_once(' ').map_or("", |(_, rest)| rest);
    }
    while let Some((_, value)) = rest.split_once("=\"").filter(|(name, _)| !name.contains([' ', '"'])) {
        rest = behind_quote(value).trim_start();
    }
    let path = match rest.strip_prefix('"') {
        Some(quoted) => &quoted[..quoted.len() - behind_quote(quoted).len()],
        None => rest.split(' ').next().unwrap_or_default(),
    };
    let name = path.trim_end_matches('"').rsplit('/').next().unwrap_or_default();
    if name.is_empty() { String::new() } else { format!(" {name}") }
}

/// The text after the closing quote of a quoted text with escapes.
fn behind_quote(quoted: &str) -> &str {
    closing_quote(quoted).map_or("", |end| &quoted[end + 1..])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use kube::config::Kubeconfig;

    use super::*;
    use tracer_testing::{assert_lacks, assert_starts};

    fn failed(command: &mut Command) -> AuthError {
        let out = Box::new(command.output().expect("a shell"));
        AuthError::AuthExecRun { cmd: format!("{command:?}"), out }
    }

    #[test]
    fn of_a_credential_plugin_only_the_name_and_the_status_are_reported() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo secret; echo secret >&2; exit 3", "secret \"a b\""]);
        command.env("SECRET", "secret=\"x\" \\").env("A", "").env_remove("HOME").env_remove("B");
        let reported = "the credential plugin sh failed: exit status: 3";
        assert_eq!(reason(&kube::Error::Auth(failed(&mut command))), reported, "{command:?}");
        assert_eq!(reason(&kube::Error::Service(failed(&mut command).into())), reported, "when a token is renewed");
        assert_eq!(program("/usr/lib/gcloud secret --secret"), " gcloud");
        assert_eq!(["A=\"secret", "env -u", ""].map(program), ["", " -u", ""]);
    }

    #[test]
    fn of_a_kubeconfig_only_the_place_is_reported() {
        let text =
            "apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    token: secret\n    username: [secret]\n";
        let error = Kubeconfig::from_yaml(text).expect_err("a list is no name");
        assert!(error.to_string().contains("secret"), "{error}");
        let reported = reason(&error);
        assert_starts(&reported, "failed to parse kubeconfig YAML at line ");
        assert_lacks(&reported, &["secret"]);
    }

    #[test]
    fn a_missing_kubeconfig_is_named_by_the_caller() {
        let error = Kubeconfig::read_from("/none").expect_err("no file");
        assert_eq!(reason(&error), "No such file or directory");
    }

    #[test]
    fn other_reasons_are_reported_as_they_are() {
        let reported = reason(&kube::Error::Auth(AuthError::MissingCommand));
        assert_eq!(reported, "auth error: command must be specified to use exec authentication plugin");
    }
}
