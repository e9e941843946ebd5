//! Which hooks this kernel lets tracer attach, and how. The check attaches them for a moment, as `tracer attach` does.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::runtime;

use super::Check;
use super::finding::{Finding, Fix, Remediation, Unread};
use super::view::View;
use tracer_bpf::ebpf::hooks::ProgramType;
use tracer_bpf::ebpf::{self, EbpfError, HiddenFunctions, HookState, HookStatus, LoadOptions};
use tracer_terminal::error::chain;

pub(super) const CHECK: Check = Check {
    name: "tracer_hooks",
    why: "without a hook some causes cannot be proven: each verdict names the missing ones that matter to it",
    expected: || "BTF, and for each hook a program type that this kernel can attach".into(),
    run: |view| Ok([check(view)?].into_iter().chain(HiddenFunctions::here().map(judge_hidden)).collect()),
};

fn check(view: &View) -> Result<Finding, Unread> {
    view.node("only the kernel itself shows which hooks can be attached; --root shows files only")?;
    Ok(attach(view).map_or_else(|error| cannot_attach(&error), |hooks| judge(&hooks)))
}

/// Attaches the programs without a prober, so that they emit no events.
fn attach(view: &View) -> Result<Vec<HookStatus>, EbpfError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(EbpfError::Ring)?;
    // The ring is registered with an event loop.
    let _inside = runtime.enter();
    let mut loaded = ebpf::load(&LoadOptions { btf: view.options.btf.clone(), ..LoadOptions::default() })?;
    loaded.attach_on_demand();
    Ok(loaded.hook_statuses())
}

fn cannot_attach(error: &EbpfError) -> Finding {
    let (draft, observed) = (CHECK.draft(), chain(error));
    let fix = match error {
        EbpfError::NoBtf(..) => {
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y (every distribution's since 5.10), or give it with --btf FILE"
        }
        EbpfError::Btf(..) | EbpfError::OtherBtf { .. } => "give the BTF of exactly this kernel with --btf FILE",
        EbpfError::Lockdown => "boot with lockdown=integrity, or Linux 6.2 or newer",
        EbpfError::RequiredHook { .. } => {
            "boot a kernel with CONFIG_BPF_EVENTS=y; a locked-down one needs net.core.bpf_jit_enable=1, too"
        }
        EbpfError::MapPermission { .. } | EbpfError::ProgramPermission(_) => {
            return draft.unknown(Unread::lacks(observed, "CAP_BPF"));
        }
        _ => return draft.unknown(Unread::new(observed, "report it as a bug, with this row and the kernel's version")),
    };
    draft.fail(observed, Fix::lasting(fix))
}

fn judge(hooks: &[HookStatus]) -> Finding {
    let mut missing: Vec<&HookStatus> = hooks.iter().filter(|it| it.hook_state == HookState::Missing).collect();
    let names: Vec<&str> = missing.iter().map(|it| it.row.hook.name()).collect();
    let attached = hooks.iter().filter(|it| matches!(it.hook_state, HookState::Attached(_))).count();
    let draft = CHECK.draft().with("attached", attached).with("missing_hooks", names);
    let draft = draft.with("hooks", hooks.iter().map(fields).collect::<Vec<_>>());
    if missing.is_empty() {
        return draft.ok(format!("{attached} of {} hooks are attached, and none of the others is needed", hooks.len()));
    }
    let lost = distinct(missing.iter().map(|hook| hook.row.lost.to_owned()));
    let refused = distinct(missing.iter().flat_map(|hook| refusals(hook)));
    let refused = if refused.is_empty() { refused } else { format!(". The kernel refuses {refused}") };
    let counts = format!("{} of {} hooks are missing", missing.len(), attached + missing.len());
    let observed = format!("{counts}. tracer does not see: {lost}{refused}");
    let needed: BTreeSet<&'static str> = missing.iter().filter_map(|hook| hook.needs()).collect();
    let Some(first) = needed.first() else { return draft.warn(observed, Fix::lasting(fix_of_all(&missing))) };
    let unread = Unread::lacks(observed, first);
    missing.retain(|hook| hook.needs().is_none());
    let privileges = format!("run `tracer doctor` as root, or with {}", Vec::from_iter(needed).join(", "));
    let fix = match missing.is_empty() {
        true => privileges.into(),
        false => fix_of_all(&missing).reword(|rest| format!("{privileges}; {rest}")),
    };
    draft.unknown(Unread { fix, ..unread })
}

fn judge_hidden(hidden: HiddenFunctions) -> Finding {
    let draft = CHECK.expects("names of the kernel's functions");
    match hidden {
        HiddenFunctions::BySetting => draft.warn(hidden.explain(), Fix::sysctl(&[("kernel.kptr_restrict", "1")])),
        HiddenFunctions::ByCapability => draft.unknown(Unread::lacks(hidden.explain(), "CAP_SYSLOG")),
    }
}

/// What became of the hook.
const fn state(hook: &HookStatus) -> &'static str {
    match hook.hook_state {
        HookState::Attached(_) => "attached",
        HookState::Superseded(_) => "not_needed",
        HookState::Covered(_) => "covered",
        HookState::AwaitsModule => "module_not_loaded",
        HookState::Missing => "missing",
    }
}

/// Each program type that the kernel refused, with its reason.
fn refusals(hook: &HookStatus) -> impl Iterator<Item = String> {
    hook.tried.iter().map(|tried| format!("{} ({})", tried.program_type.name(), tried.reason))
}

/// Lists each text once.
fn distinct(texts: impl Iterator<Item = String>) -> String {
    Vec::from_iter(texts.collect::<BTreeSet<_>>()).join("; ")
}

fn fields(hook: &HookStatus) -> Value {
    let tried = hook.tried.iter().map(|it| json!({"program_type": it.program_type.name(), "reason": it.reason}));
    let mut fields = json!({"hook": hook.row.hook.name(), "state": state(hook), "tried": tried.collect::<Vec<_>>()});
    match hook.hook_state {
        HookState::Attached(program_type) => fields["program_type"] = program_type.name().into(),
        HookState::Missing => fields["lost"] = hook.row.lost.into(),
        HookState::Superseded(_) | HookState::Covered(_) | HookState::AwaitsModule => {}
    }
    if let Some(capability) = hook.needs() {
        fields["needs"] = capability.into();
    }
    fields
}

/// The distinct fixes of these hooks as one. Texts with a command come last: the commands follow all texts.
fn fix_of_all(missing: &[&HookStatus]) -> Remediation {
    let fixes: Vec<Remediation> = missing.iter().map(|hook| fix(hook)).collect();
    let texts: BTreeSet<_> = fixes.iter().map(|fix| (!fix.commands.is_empty(), fix.text.as_str())).collect();
    let text = texts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; ");
    Remediation::from(text).run(fixes.into_iter().flat_map(|fix| fix.commands))
}

/// How to get a missing hook, if no privilege is missing.
fn fix(hook: &HookStatus) -> Remediation {
    let needs_kprobes = |program_type: ProgramType| matches!(program_type, ProgramType::Fentry | ProgramType::Kprobe);
    match hook.tried.iter().find_map(|tried| tried.fix) {
        Some(command) => Remediation::on_node("change the setting, then start tracer again", command),
        None if hook.tried.iter().any(|tried| tried.locked_down) => "boot this kernel with lockdown=integrity".into(),
        None if hook.tried.last().is_some_and(|tried| tried.no_function) => {
            "nothing: the compiler renamed the function, or this part of the kernel is switched off".into()
        }
        None if hook.row.variants.iter().any(|variant| needs_kprobes(variant.program_type)) => {
            "boot a kernel with CONFIG_KPROBES=y, CONFIG_FUNCTION_TRACER=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y"
                .into()
        }
        None => "boot a newer kernel: this one has no such tracepoint".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Tree, fix as fix_of};
    use super::*;
    use crate::Status;
    use tracer_bpf::ebpf::Tried;
    use tracer_bpf::ebpf::hooks::HOOKS;
    use tracer_testing::{assert_ends, assert_has};

    /// Every hook is attached but `name`, which is missing after `tried`.
    fn without(name: &str, tried: Tried) -> Vec<HookStatus> {
        let of = |row: &'static ebpf::hooks::Row| match row.hook.name() == name {
            true => HookStatus { row, hook_state: HookState::Missing, tried: vec![tried.clone()] },
            false => HookStatus { row, hook_state: HookState::Attached(ProgramType::RawTracepoint), tried: Vec::new() },
        };
        HOOKS.iter().map(of).collect()
    }

    fn refused(needs: Option<&'static str>, fix: Option<&'static str>) -> Tried {
        let reason = "refused by this kernel's policy".to_owned();
        Tried { program_type: ProgramType::Fentry, reason, needs, fix, no_function: false, locked_down: false }
    }

    #[test]
    fn all_hooks_are_ok_and_a_missing_one_is_a_warning() {
        let all = judge(&without("none", refused(None, None)));
        assert_eq!((all.status, &all.fields["missing_hooks"]), (Status::Ok, &serde_json::json!([])));
        let finding = judge(&without("__put_net", refused(None, None)));
        assert_eq!(finding.status, Status::Warn);
        let found = &finding.observed;
        let words = "hooks are missing. tracer does not see: when a network namespace ended. The kernel refuses fentry (refused by this kernel's policy)";
        assert_ends(found, words);
        let hooks = finding.fields["hooks"].as_array().expect("the hooks");
        let of = |name: &str| hooks.iter().find(|hook| hook["hook"] == name).expect("a hook");
        let tried = json!([{"program_type": "fentry", "reason": "refused by this kernel's policy"}]);
        let lost = "when a network namespace ended";
        assert_eq!(of("__put_net"), &json!({"hook": "__put_net", "state": "missing", "tried": tried, "lost": lost}));
        let attached = json!({"hook": "kfree_skb", "state": "attached", "tried": [], "program_type": "raw_tracepoint"});
        assert_eq!(of("kfree_skb"), &attached);
        assert!(fix_of(&finding).contains("CONFIG_KPROBES"));
        let renamed = judge(&without("__put_net", Tried { no_function: true, ..refused(None, None) }));
        assert!(fix_of(&renamed).starts_with("nothing: "), "{}", fix_of(&renamed));
    }

    #[test]
    fn a_setting_is_the_fix_and_a_missing_privilege_is_unknown() {
        let silenced = judge(&without("__put_net", refused(None, Some("sysctl -w kernel.ftrace_enabled=1"))));
        assert_eq!(fix_of(&silenced), "sysctl -w kernel.ftrace_enabled=1");
        let denied = judge(&without("__put_net", refused(Some("CAP_PERFMON"), None)));
        assert_eq!((denied.status, denied.needs.as_deref()), (Status::Unknown, Some("CAP_PERFMON")));
        let of =
            |name: &'static str, tried| without(name, tried).into_iter().filter(move |it| it.row.hook.name() == name);
        let both = of("__put_net", refused(Some("CAP_PERFMON"), None))
            .chain(of("ip_vs_leave", refused(Some("CAP_SYS_ADMIN"), None)))
            .chain(of("tcp_conn_request", refused(None, Some("sysctl -w kernel.ftrace_enabled=1"))));
        let fix = judge(&both.collect::<Vec<_>>()).remediation.expect("a fix");
        assert!(fix.text.contains("with CAP_PERFMON, CAP_SYS_ADMIN; change the setting"), "{}", fix.text);
        assert_eq!(fix.commands[0].run, "sysctl -w kernel.ftrace_enabled=1");
    }

    #[test]
    fn the_fixes_of_all_missing_hooks_are_named_once() {
        let missing = |name: &'static str, fix| {
            without(name, refused(None, fix)).into_iter().filter(move |it| it.row.hook.name() == name)
        };
        let all = [
            missing("__put_net", Some("sysctl -w kernel.ftrace_enabled=1")),
            missing("tcp_conn_request", Some("sysctl -w kernel.ftrace_enabled=1")),
            missing("ip_vs_leave", Some("echo 1 > /sys/kernel/debug/kprobes/enabled")),
            missing("icmp6_send", None),
            missing("tcp_send_reset", None),
        ];
        let fix = judge(&all.into_iter().flatten().collect::<Vec<_>>()).remediation.expect("a fix");
        let runs: Vec<_> = fix.commands.iter().map(|it| it.run.as_str()).collect();
        assert_eq!(runs, ["sysctl -w kernel.ftrace_enabled=1", "echo 1 > /sys/kernel/debug/kprobes/enabled"]);
        assert!(fix.text.starts_with("Boot a kernel with CONFIG_KPROBES=y"), "{}", fix.text);
        assert!(fix.text.contains("; boot a newer kernel: this one has no such tracepoint; "), "{}", fix.text);
        assert!(fix.text.ends_with("; change the setting, then start tracer again"), "{}", fix.text);
        assert_eq!(fix.text.matches("the setting").count(), 1, "{}", fix.text);
    }

    #[test]
    fn hidden_functions_are_a_warning_or_a_missing_capability() {
        let by_setting = judge_hidden(HiddenFunctions::BySetting);
        assert_eq!((by_setting.status, fix_of(&by_setting)), (Status::Warn, "sysctl -w kernel.kptr_restrict=1"));
        let denied = judge_hidden(HiddenFunctions::ByCapability);
        assert_eq!((denied.status, denied.needs.as_deref()), (Status::Unknown, Some("CAP_SYSLOG")));
    }

    #[test]
    fn without_btf_the_check_fails_and_with_root_it_is_unknown() {
        let absent = EbpfError::NoBtf("file".into(), std::io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(cannot_attach(&absent).status, Status::Fail);
        let other = EbpfError::OtherBtf { file: "file".into(), there: 2432, here: 2304 };
        let words = "file: BTF of another kernel: a tcp_sock has 2432 bytes there";
        assert_has(&cannot_attach(&other).observed, &[words]);
        let denied = cannot_attach(&EbpfError::ProgramPermission("CAP_BPF is missing".into()));
        assert_eq!((denied.status, denied.needs.as_deref()), (Status::Unknown, Some("CAP_BPF")));
        assert_eq!(Tree::new(&[("etc/hostname", "")]).finding(&CHECK).status, Status::Unknown);
    }
}
