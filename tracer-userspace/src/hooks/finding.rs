//! Makes a finding of a hook, in the form of the findings of `tracer doctor`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Runs, Watched};
use tracer_bpf::ebpf::HookState;
use tracer_doctor::{Finding, Status, hook_fix};
use tracer_model::plural::counted;
use tracer_model::record::Remediation;

pub(super) fn of_hook(watched: &Watched, window: Duration) -> Finding {
    let row = watched.status.row;
    let status = status(watched);
    let needs = watched.status.needs();
    let finding = Finding {
        check: format!("hooks/{}", watched.hook().name()),
        status,
        observed: observed(watched, window),
        expected: format!("attached: {}", program_types(watched).join(", else ")),
        why: format!("without it, tracer does not know this: {}", row.lost),
        remediation: (status != Status::Ok).then(|| fix(watched, needs)),
        persist: None,
        needs: needs.map(str::to_owned),
        fields: fields(watched, window),
    };
    finding.with_sentences()
}

fn status(watched: &Watched) -> Status {
    match watched.status.hook_state {
        HookState::Missing if watched.status.needs().is_some() => Status::Unknown,
        HookState::Missing if watched.status.row.required => Status::Fail,
        HookState::Missing => Status::Warn,
        HookState::Attached(_) | HookState::Superseded(_) | HookState::Covered(_) | HookState::AwaitsModule => {
            Status::Ok
        }
    }
}

/// Program types in the order in which they are tried.
fn program_types(watched: &Watched) -> Vec<&'static str> {
    let mut program_types: Vec<_> =
        watched.status.row.variants.iter().map(|variant| variant.program_type.name()).collect();
    program_types.dedup();
    program_types
}

fn observed(watched: &Watched, window: Duration) -> String {
    match watched.status.hook_state {
        HookState::Attached(program_type) => format!("{}: {}", program_type.name(), cost(watched.runs, window)),
        HookState::Superseded(program) => format!("not needed: {program} is attached and covers it"),
        HookState::Covered(by) => {
            let names: Vec<_> = by.iter().map(|hook| hook.name()).collect();
            format!("refused, and covered by {} instead; {}", names.join(" and "), reasons(watched))
        }
        HookState::AwaitsModule => {
            "not attached: its kernel module is not loaded; a run retries it every 5 seconds".to_owned()
        }
        HookState::Missing => format!("not attached; {}", reasons(watched)),
    }
}

/// `24 runs, 812 ns each, 0.0004 % of one CPU`.
pub(super) fn cost(runs: Option<Runs>, window: Duration) -> String {
    let Some(runs) = runs else { return "attached; the kernel does not count its runs".to_owned() };
    match runs.ns_each() {
        None => format!("no run in {:.0} s", window.as_secs_f64()),
        Some(ns) => {
            let share = runs.share(window) * 100.0;
            format!("{}, {ns:.0} ns each, {share:.4} % of one CPU", counted(runs.count, "run"))
        }
    }
}

fn reasons(watched: &Watched) -> String {
    let tried = watched.status.tried.iter().map(|tried| format!("{}: {}", tried.program_type.name(), tried.reason));
    tried.collect::<Vec<_>>().join("; ")
}

fn fix(watched: &Watched, needs: Option<&str>) -> Remediation {
    match needs {
        Some(capability) => format!("run `tracer hooks` as root, or with {capability}").into(),
        None => hook_fix(&watched.status),
    }
}

fn fields(watched: &Watched, window: Duration) -> BTreeMap<String, Value> {
    let row = watched.status.row;
    let tried = watched
        .status
        .tried
        .iter()
        .map(|tried| json!({"program_type": tried.program_type.name(), "reason": tried.reason}));
    let mut fields: BTreeMap<String, Value> = BTreeMap::from([
        ("tried".to_owned(), Value::from(tried.collect::<Vec<_>>())),
        ("lost".to_owned(), row.lost.into()),
        ("required".to_owned(), row.required.into()),
        ("window_s".to_owned(), rounded(window.as_secs_f64()).into()),
    ]);
    if let HookState::Attached(program_type) = watched.status.hook_state {
        fields.insert("program_type".to_owned(), program_type.name().into());
        fields.insert("events".to_owned(), watched.events.into());
    }
    if let Some(runs) = watched.runs {
        fields.insert("runs".to_owned(), runs.count.into());
        fields.insert("run_time_ns".to_owned(), ((runs.seconds * 1e9).round() as u64).into());
        fields.insert("share_of_one_cpu".to_owned(), rounded(runs.share(window)).into());
        fields.extend(runs.ns_each().map(|ns| ("ns_per_run".to_owned(), (ns as u64).into())));
    }
    fields
}

/// Rounds to nine decimals.
fn rounded(x: f64) -> f64 {
    (x * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_bpf::ebpf::hooks::{HOOKS, ProgramType};
    use tracer_bpf::ebpf::{HookStatus, Tried};

    const WINDOW: Duration = Duration::from_secs(5);

    fn watched(hook: &str, hook_state: HookState, tried: Vec<Tried>) -> Watched {
        let row = HOOKS.iter().find(|row| row.hook.name() == hook).expect("a hook");
        Watched { status: HookStatus { row, hook_state, tried }, events: 3, runs: None }
    }

    fn refused(program_type: ProgramType, needs: Option<&'static str>) -> Tried {
        Tried { program_type, reason: "the kernel says no".into(), needs, fix: None }
    }

    #[test]
    fn an_attached_hook_shows_its_cost() {
        let mut hook = watched("kfree_skb", HookState::Attached(ProgramType::RawTracepoint), vec![]);
        hook.runs = Some(Runs { count: 1000, seconds: 0.0005 });
        let finding = of_hook(&hook, WINDOW);
        assert_eq!((finding.check.as_str(), finding.status), ("hooks/kfree_skb", Status::Ok));
        assert_eq!(finding.observed, "raw_tracepoint: 1000 runs, 500 ns each, 0.0100 % of one CPU");
        assert_eq!((&finding.fields["runs"], &finding.fields["ns_per_run"]), (&json!(1000), &json!(500)));
        assert_eq!(finding.remediation, None);
    }

    #[test]
    fn runs_that_were_not_counted_are_absent() {
        let finding = of_hook(&watched("kfree_skb", HookState::Attached(ProgramType::RawTracepoint), vec![]), WINDOW);
        assert!(!finding.fields.contains_key("runs") && finding.observed.contains("does not count"), "{finding:?}");
    }

    #[test]
    fn a_missing_hook_is_a_warning_with_each_reason() {
        let tried = vec![refused(ProgramType::Fentry, None), refused(ProgramType::Kprobe, None)];
        let finding = of_hook(&watched("__put_net", HookState::Missing, tried), WINDOW);
        assert_eq!(finding.status, Status::Warn);
        assert_eq!(finding.observed, "Not attached; fentry: the kernel says no; kprobe: the kernel says no");
        assert_eq!(finding.fields["tried"][1], json!({"program_type": "kprobe", "reason": "the kernel says no"}));
        assert!(finding.remediation.expect("a fix").text.contains("CONFIG_KPROBES"));
    }

    #[test]
    fn a_setting_of_the_kernel_is_the_fix() {
        let silenced = Tried { fix: Some("sysctl -w kernel.ftrace_enabled=1"), ..refused(ProgramType::Fentry, None) };
        let finding = of_hook(&watched("__put_net", HookState::Missing, vec![silenced]), WINDOW);
        let fix = finding.remediation.expect("a fix");
        assert_eq!(fix.commands[0].run, "sysctl -w kernel.ftrace_enabled=1");
    }

    #[test]
    fn a_missing_privilege_is_named_and_its_exit_code_is_3() {
        let tried = vec![refused(ProgramType::Fentry, None), refused(ProgramType::Kprobe, Some("CAP_SYS_ADMIN"))];
        let finding = of_hook(&watched("__put_net", HookState::Missing, tried), WINDOW);
        assert_eq!((finding.status, finding.needs.as_deref()), (Status::Unknown, Some("CAP_SYS_ADMIN")));
        assert_eq!(tracer_doctor::exit_code(&[finding], Status::Fail), 3);
    }

    #[test]
    fn a_covered_hook_and_one_that_awaits_its_module_are_ok() {
        let covered = watched("tcp_connect", HookState::Covered(&[]), vec![refused(ProgramType::Kprobe, None)]);
        let waits = watched("ip_vs_leave", HookState::AwaitsModule, vec![refused(ProgramType::Kprobe, None)]);
        assert_eq!((of_hook(&covered, WINDOW).status, of_hook(&waits, WINDOW).status), (Status::Ok, Status::Ok));
    }
}
