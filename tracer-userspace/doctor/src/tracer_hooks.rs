//! What this kernel allows `tracer` to see, reported without attaching anything.
//!
//! The names of kallsyms, which need no privilege: a function that can be hooked is there under its name, a tracepoint as
//! `__traceiter_<name>` (from 5.10 on), the machinery of each form under that of a function of it.

use std::collections::{BTreeMap, HashSet};

use super::Check;
use super::finding::{Draft, Finding, Fix, Unread};
use super::view::View;
use tracer_bpf::ebpf::hooks::{Form, HOOKS, Row, When};
use tracer_bpf::ebpf::switches::{SWITCHES, Switch};

/// The check.
pub(super) const CHECK: Check = Check {
    name: "tracer_hooks",
    why: "without a hook some causes cannot be proven: `tracer attach` and each verdict name what is missing",
    run: |view| vec![check(view)],
};

/// What brings function probes.
pub const FUNCTION_PROBES: &str =
    "boot a kernel with CONFIG_KPROBES=y, CONFIG_FUNCTION_TRACER=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y";

/// That of fentry.
const FENTRY: &str = "register_ftrace_direct";

/// A function without which no program of the form can be attached.
const MACHINERY: &[(Form, &str)] = &[
    (Form::Fentry, FENTRY),
    (Form::Kprobe, "register_kprobe"),
    (Form::RawTracepoint, "bpf_raw_tracepoint_open"),
    (Form::Tracepoint, "syscall_enter_register"),
    (Form::Cgroup, "__cgroup_bpf_run_filter_skb"),
];

/// Other names of the same in other kernels.
const ALIASES: &[(&str, &[&str])] = &[
    (FENTRY, &["register_ftrace_direct_multi", "__register_ftrace_direct"]),
    (
        "bpf_raw_tracepoint_open",
        &["bpf_probe_register", "__bpf_probe_register", "bpf_raw_tp_link_attach", "bpf_get_raw_tracepoint"],
    ),
    ("syscall_enter_register", &["perf_sysenter_enable", "perf_syscall_enter"]),
];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kernel {
    btf: bool,
    /// Those names of kallsyms that matter.
    symbols: HashSet<String>,
    /// Settings by which some forms are attached and never called.
    off: Vec<&'static Switch>,
}

fn draft() -> Draft {
    CHECK.expects("BTF, and for each hook a program type that this kernel can attach")
}

fn check(view: &View) -> Finding {
    let read = || -> Result<Kernel, Unread> {
        let text = view.kernel("/proc/kallsyms")?;
        let btf = view.exists("/sys/kernel/btf/vmlinux")?;
        let wanted = wanted();
        let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
        let symbols = names.filter(|name| wanted.contains(*name)).map(str::to_owned).collect();
        Ok(Kernel { btf, symbols, off: off(view) })
    };
    match read() {
        Ok(kernel) if kernel.symbols.is_empty() => draft().unknown(Unread::new(
            "/proc/kallsyms names nothing that is known (kernel.kptr_restrict hides addresses only)",
            "mount -t proc proc /proc",
        )),
        Ok(kernel) => judge(&kernel),
        Err(unread) => draft().unknown(unread),
    }
}

/// debugfs is often not mounted, and root's alone: what cannot be read is taken for on.
fn off(view: &View) -> Vec<&'static Switch> {
    SWITCHES.iter().filter(|switch| Switch::is_off(view.kernel(switch.path).ok().as_deref())).collect()
}

/// All names that are asked for.
fn wanted() -> HashSet<String> {
    let variants = HOOKS.iter().flat_map(|row| row.variants);
    let targets = variants.flat_map(|variant| variant.programs.iter().map(|(_, target)| symbol(variant.form, target)));
    let machinery = MACHINERY.iter().map(|(_, name)| (*name).to_owned());
    let aliases = ALIASES.iter().flat_map(|(_, names)| names.iter().map(|name| (*name).to_owned()));
    targets.flatten().chain(machinery).chain(aliases).collect()
}

/// The symbol of what a program is attached to; none where nothing but the machinery is needed.
fn symbol(form: Form, target: &str) -> Option<String> {
    match form {
        Form::Fentry | Form::Kprobe => Some(target.to_owned()),
        Form::RawTracepoint => Some(format!("__traceiter_{target}")),
        Form::Tracepoint | Form::Cgroup => None,
    }
}

impl Kernel {
    fn has(&self, name: &str) -> bool {
        let aliases = ALIASES.iter().find(|(it, _)| *it == name).map_or(&[][..], |(_, names)| names);
        self.symbols.contains(name) || aliases.iter().any(|name| self.symbols.contains(*name))
    }

    /// Forms that can be attached at all.
    fn can(&self, form: Form) -> bool {
        let is_called = !self.off.iter().any(|switch| switch.silences.contains(&form));
        is_called && MACHINERY.iter().find(|(it, _)| *it == form).is_none_or(|(_, name)| self.has(name))
    }

    /// The form in which a hook would be attached.
    fn form(&self, row: &Row) -> Option<Form> {
        let fits = |form: Form, programs: &[(&str, &str)]| {
            self.can(form)
                && programs
                    .iter()
                    .all(|(_, target)| symbol(form, target).is_none_or(|name| self.symbols.contains(&name)))
        };
        row.variants.iter().find(|variant| fits(variant.form, variant.programs)).map(|variant| variant.form)
    }

    /// A hook is missing: no program type of it can be attached, and no other hook replaces it.
    fn lacks(&self, row: &Row) -> bool {
        let has = |hook| HOOKS.iter().any(|it| it.hook == hook && self.form(it).is_some());
        let covered = !row.covered_by.is_empty() && row.covered_by.iter().all(|hook| has(*hook));
        let spared = row.unless.is_some_and(|program| self.attaches(program));
        self.form(row).is_none() && !covered && !spared && row.when != When::ModuleLoaded
    }

    /// The same kernel, if it refuses fentry.
    fn without_fentry(&self) -> Self {
        let of_fentry = |name: &str| {
            let aliases = ALIASES.iter().find(|(it, _)| *it == FENTRY).map_or(&[][..], |(_, names)| names);
            name == FENTRY || aliases.contains(&name)
        };
        let symbols = self.symbols.iter().filter(|name| !of_fentry(name)).cloned().collect();
        Self { btf: self.btf, symbols, off: self.off.clone() }
    }

    /// This program, or one that sits on the same in another form, would be attached.
    fn attaches(&self, program: &str) -> bool {
        HOOKS.iter().any(|row| {
            self.form(row).is_some()
                && row.variants.iter().flat_map(|it| it.programs).any(|(name, _)| name.ends_with(program))
        })
    }
}

fn judge(kernel: &Kernel) -> Finding {
    let missing: Vec<&Row> = HOOKS.iter().filter(|row| kernel.lacks(row)).collect();
    let (draft, without) = described(kernel, &missing);
    if !kernel.btf {
        return draft.fail(
            "no /sys/kernel/btf/vmlinux: offsets cannot be resolved",
            Fix::lasting("boot a kernel with CONFIG_DEBUG_INFO_BTF=y (every distribution's since 5.10)"),
        );
    }
    if let Some(row) = missing.iter().find(|row| row.required) {
        return draft.fail(
            format!("{} cannot be attached, without which nothing is seen{without}", row.hook.name()),
            Fix::lasting("boot a kernel with CONFIG_BPF_EVENTS=y"),
        );
    }
    if missing.is_empty() {
        judge_whole(kernel, draft, &without)
    } else {
        judge_partial(kernel, &missing, draft, &without)
    }
}

/// What is there; and in words which forms are not.
fn described(kernel: &Kernel, missing: &[&Row]) -> (Draft, String) {
    let forms: BTreeMap<&str, bool> = MACHINERY.iter().map(|(form, _)| (form.name(), kernel.can(*form))).collect();
    let draft = forms.iter().fold(draft().with("btf", kernel.btf), |draft, (form, can)| draft.with(form, *can));
    let names: Vec<&str> = missing.iter().map(|row| row.hook.name()).collect();
    let without: Vec<&str> = forms.iter().filter(|(_, can)| !**can).map(|(form, _)| *form).collect();
    let without = if without.is_empty() { String::new() } else { format!("; {}", lacking(kernel, &without)) };
    (draft.with("missing_hooks", names), without)
}

/// Why these forms are not to be had.
fn lacking(kernel: &Kernel, forms: &[&str]) -> String {
    let silenced = |form: &&str| kernel.off.iter().any(|it| it.silences.iter().any(|it| it.name() == *form));
    let (silent, absent): (Vec<&str>, Vec<&str>) = forms.iter().copied().partition(silenced);
    let off: Vec<&str> = kernel.off.iter().map(|switch| switch.name).collect();
    let silent =
        (!silent.is_empty()).then(|| format!("the kernel calls no {} ({} is 0)", silent.join(", no "), off.join(", ")));
    let absent = (!absent.is_empty()).then(|| format!("the kernel has no {}", absent.join(", no ")));
    silent.into_iter().chain(absent).collect::<Vec<_>>().join("; ")
}

/// Every hook has a form that the kernel knows.
fn judge_whole(kernel: &Kernel, draft: Draft, without: &str) -> Finding {
    let kernel = kernel.without_fentry();
    let doubtful: Vec<&str> = HOOKS.iter().filter(|row| kernel.lacks(row)).map(|row| row.hook.name()).collect();
    if doubtful.is_empty() {
        return draft.ok(format!("BTF and {} hooks{without}", HOOKS.len()));
    }
    let reason = format!(
        "{} need fentry, which a kernel's policy can refuse: only attaching shows it{without}",
        doubtful.join(", ")
    );
    draft.unknown(Unread::new(reason, "tracer hooks"))
}

fn judge_partial(kernel: &Kernel, missing: &[&Row], draft: Draft, without: &str) -> Finding {
    let lost: Vec<String> = missing.iter().map(|row| format!("{}: {}", row.hook.name(), row.lost)).collect();
    let observed = format!(
        "{} of {} hooks have no program type that this kernel can attach{without}; unknown without them: {}",
        missing.len(),
        HOOKS.len(),
        lost.join("; ")
    );
    draft.warn(observed, kernel.off.first().map_or_else(|| Fix::lasting(FUNCTION_PROBES), |switch| fix(switch)))
}

fn fix(switch: &Switch) -> Fix {
    match switch.is_sysctl() {
        true => Fix::sysctl(&[(switch.name, "1")]),
        false => Fix::lasting(switch.fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    fn kernel(with: impl Fn(&str) -> bool) -> Kernel {
        Kernel { btf: true, symbols: wanted().into_iter().filter(|name| with(name)).collect(), off: Vec::new() }
    }

    #[test]
    fn a_kernel_that_has_all() {
        let finding = judge(&kernel(|_| true));
        assert_eq!(finding.status, Status::Ok, "{}", finding.observed);
    }

    #[test]
    fn without_function_probes_some_hooks_are_missing() {
        let finding = judge(&kernel(|name| !name.contains("register_")));
        assert_eq!(finding.status, Status::Warn);
        let missing = finding.fields["missing_hooks"].to_string();
        assert!(missing.contains("__put_net") && !missing.contains("\"tcp_connect\""), "{missing}");
    }

    #[test]
    fn programs_that_are_never_called_are_no_hooks() {
        let finding = judge(&Kernel { off: vec![&SWITCHES[0]], ..kernel(|_| true) });
        assert_eq!(finding.status, Status::Warn, "{}", finding.observed);
        assert!(
            finding.observed.contains("calls no fentry") && finding.observed.contains("(kernel.ftrace_enabled is 0)"),
            "{}",
            finding.observed
        );
        assert_eq!(finding.remediation.as_deref(), Some("sysctl -w kernel.ftrace_enabled=1"));
        assert!(finding.fields["missing_hooks"].to_string().contains("__put_net"), "{:?}", finding.fields);
    }

    #[test]
    fn fentry_alone_is_no_promise() {
        let finding = judge(&kernel(|name| name != "register_kprobe"));
        assert_eq!(finding.status, Status::Unknown, "{}", finding.observed);
        assert!(finding.observed.contains("__put_net"), "{}", finding.observed);
    }

    #[test]
    fn without_btf_or_what_is_required_nothing_works() {
        assert_eq!(judge(&Kernel { btf: false, ..kernel(|_| true) }).status, Status::Fail);
        assert_eq!(judge(&kernel(|name| name != "__traceiter_inet_sock_set_state")).status, Status::Fail);
    }
}
