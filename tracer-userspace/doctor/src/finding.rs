//! Builds the findings of the checks.

use std::collections::BTreeMap;
use std::io;

use serde_json::Value;

pub use tracer_model::record::{FindingBody as Finding, Remediation, Status};
use tracer_model::shell;
use tracer_terminal::error::os_message;

/// Why something could not be read, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// What the check tried to read, and the error.
    pub reason: String,
    /// The capability that is missing.
    pub needs: Option<&'static str>,
    pub fix: Remediation,
}

impl Unread {
    /// Something other than a privilege is missing.
    pub fn new(reason: impl Into<String>, fix: impl Into<Remediation>) -> Self {
        Self { reason: reason.into(), needs: None, fix: fix.into() }
    }

    /// The check needs the pods, but `--pods` was not given. `${NODE:?}` stops the shell if NODE is empty: kubectl would accept
    /// the empty name and list only pods without a node.
    pub fn without_pods(reason: impl Into<String>, check: &str) -> Self {
        let list = "NODE=$(hostname); kubectl get pods -A -o json --field-selector spec.nodeName=${NODE:?} > pods.json";
        let command = format!("{list} && tracer doctor --check {check} --pods pods.json");
        Self::new(reason, Remediation::on_node("Give the check the pods of this node", command))
    }

    /// A privilege is missing.
    pub fn lacks(reason: impl Into<String>, capability: &'static str) -> Self {
        Self {
            reason: reason.into(),
            needs: Some(capability),
            fix: format!("run `tracer doctor` as root, or with {capability}").into(),
        }
    }

    /// The privilege `needs` is missing; if there is none, `fix` would help.
    pub fn for_lack_of(needs: Option<&'static str>, reason: impl Into<String>, fix: impl Into<Remediation>) -> Self {
        match needs {
            Some(capability) => Self::lacks(reason, capability),
            None => Self::new(reason, fix),
        }
    }

    pub fn file(path: &str, error: &io::Error) -> Self {
        let needs = (error.kind() == io::ErrorKind::PermissionDenied).then_some("CAP_DAC_READ_SEARCH");
        let fix = Remediation::on_node("See why", format!("ls -l {path}"));
        Self::for_lack_of(needs, format!("cannot read {path}: {}", os_message(error)), fix)
    }
}

/// The file for settings that persist. Files are read in the order of their names, this one after `99-sysctl.conf`, which is a
/// link to /etc/sysctl.conf.
const SYSCTL_FILE: &str = "/etc/sysctl.d/99-zz-kubernetes.conf";
/// The text before a command that makes a fix persist.
pub const KEEP: &str = "Keep it after a reboot";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    now: Remediation,
    persist: Option<Remediation>,
}

impl Fix {
    /// `now` is the fix, and `persist` keeps it after a reboot.
    pub fn new(now: impl Into<Remediation>, persist: impl Into<Remediation>) -> Self {
        Self { now: now.into(), persist: Some(persist.into()) }
    }

    /// A fix that lasts by itself.
    pub fn lasting(now: impl Into<Remediation>) -> Self {
        Self { now: now.into(), persist: None }
    }

    pub fn sysctl(settings: &[(impl AsRef<str>, impl AsRef<str>)]) -> Self {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        let now: Vec<_> = settings.iter().map(|(name, value)| format!("sysctl -w {name}={}", quoted(value))).collect();
        let names: Vec<_> = settings.iter().map(|(name, _)| *name).collect();
        Self::new(
            Remediation::on_node(format!("Set {}", listed(&names)), now.join(" && ")),
            Remediation::on_node(KEEP, Self::persist(&settings)),
        )
    }

    #[must_use]
    pub fn reword(mut self, text: impl FnOnce(&str) -> String) -> Self {
        self.now = self.now.reword(text);
        self
    }

    pub fn persist(settings: &[(&str, &str)]) -> String {
        let lines: Vec<_> = settings.iter().map(|(name, value)| format!("'{name} = {value}'")).collect();
        format!("printf '%s\\n' {} >> {SYSCTL_FILE}", lines.join(" "))
    }
}

/// The setting of one link, for a command.
pub fn of_link(family: &str, link: &str, setting: &str) -> String {
    format!("net.{family}.conf.{}.{setting}", shell::link_setting(link))
}

/// Quotes a value for a shell if it contains spaces.
fn quoted(value: &str) -> String {
    if value.contains(char::is_whitespace) { format!("'{value}'") } else { value.to_owned() }
}

/// Lists the first four names, and counts the others.
pub fn listed(names: &[&str]) -> String {
    let more = if names.len() > 4 { format!(" and {} more", names.len() - 4) } else { String::new() };
    format!("{}{more}", names.iter().take(4).copied().collect::<Vec<_>>().join(", "))
}

/// A finding before its status is known.
#[derive(Clone, Debug)]
pub struct Draft {
    check: &'static str,
    why: &'static str,
    expected: String,
    fields: BTreeMap<String, Value>,
}

impl Draft {
    pub fn new(check: &'static str, why: &'static str, expected: impl Into<String>) -> Self {
        Self { check, why, expected: expected.into(), fields: BTreeMap::new() }
    }

    /// Adds a field, such as a number that was read.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    pub fn ok(self, observed: impl Into<String>) -> Finding {
        self.finish(Status::Ok, observed.into(), None)
    }

    /// It does harm in a case that `observed` names.
    pub fn warn(self, observed: impl Into<String>, fix: Fix) -> Finding {
        self.finish(Status::Warn, observed.into(), Some(fix))
    }

    pub fn fail(self, observed: impl Into<String>, fix: Fix) -> Finding {
        self.finish(Status::Fail, observed.into(), Some(fix))
    }

    pub fn unknown(self, unread: Unread) -> Finding {
        let fix = Some(Fix::lasting(unread.fix)).filter(|fix| !fix.now.is_empty());
        Finding { needs: unread.needs.map(str::to_owned), ..self.finish(Status::Unknown, unread.reason, fix) }
    }

    fn finish(self, status: Status, observed: String, fix: Option<Fix>) -> Finding {
        let (remediation, persist) = fix.map_or((None, None), |fix| (Some(fix.now), fix.persist));
        let finding = Finding {
            check: self.check.to_owned(),
            status,
            observed,
            expected: self.expected,
            why: self.why.to_owned(),
            remediation,
            persist,
            needs: None,
            fields: self.fields,
        };
        finding.with_sentences()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_of_a_setting_has_a_command_for_now_and_one_to_persist() {
        let fix = Fix::sysctl(&[("net.ipv4.ip_local_port_range", "32768 60999")]);
        let now = "Set net.ipv4.ip_local_port_range: sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
        assert_eq!(fix.now.to_string(), now);
        let persist =
            "printf '%s\\n' 'net.ipv4.ip_local_port_range = 32768 60999' >> /etc/sysctl.d/99-zz-kubernetes.conf";
        assert_eq!(fix.persist, Some(Remediation::on_node(KEEP, persist)));
    }

    #[test]
    fn an_unreadable_file_is_unknown_and_a_denied_one_names_the_capability() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let finding = Draft::new("c", "w", "e").unknown(Unread::file("/x", &error));
        assert_eq!((finding.status, finding.needs.as_deref()), (Status::Unknown, Some("CAP_DAC_READ_SEARCH")));
        assert_eq!(finding.observed, "Cannot read /x: Permission denied");
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(Draft::new("c", "w", "e").unknown(Unread::file("/x", &error)).needs, None);
    }
}
