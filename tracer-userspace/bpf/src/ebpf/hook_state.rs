//! The status of each hook: its program type, what was tried before, and why it is missing.

use tracer_common::names::Hook;

use super::{
    Loaded,
    attach::Walk,
    hooks::{HOOKS, ProgramType, Row, When},
    refusal::Refusal,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub program_type: ProgramType,
    pub reason: String,
    /// The missing capability; absent if something else is missing.
    pub needs: Option<&'static str>,
    /// The command that fixes it, if a setting of the kernel is the reason.
    pub fix: Option<&'static str>,
    /// The kernel has kprobes, and lacks the function.
    pub no_function: bool,
    /// The kernel withholds it by lockdown.
    pub locked_down: bool,
}

/// Why there is, or is not, a program on a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    Attached(ProgramType),
    /// This program reports the same, and more.
    Superseded(&'static str),
    /// Refused, but these hooks together report the same.
    Covered(&'static [Hook]),
    /// Its functions are in a module that is not loaded.
    AwaitsModule,
    Missing,
}

#[derive(Clone, Debug)]
pub struct HookStatus {
    pub row: &'static Row,
    pub hook_state: HookState,
    /// The refused tries, in order.
    pub tried: Vec<Tried>,
}

impl HookStatus {
    /// The capability that a missing hook lacks. Its state is then unknown: with the capability, the kernel may allow it.
    pub fn needs(&self) -> Option<&'static str> {
        let is_missing = self.hook_state == HookState::Missing;
        self.tried.iter().find_map(|tried| tried.needs).filter(|_| is_missing)
    }
}

impl Loaded {
    /// The status of every hook, in the order of the table.
    pub fn hook_statuses(&self) -> Vec<HookStatus> {
        HOOKS.iter().map(|row| status_of(&self.walk, row)).collect()
    }

    /// Attaches now the hooks that a run attaches when they are first needed; those of a prober to the root cgroup.
    pub fn attach_on_demand(&mut self) {
        for row in HOOKS.iter().filter(|row| matches!(row.when, When::OnDemand | When::Prober)) {
            if !self.walk.was_tried(row.hook) {
                self.walk.retry(&mut self.ebpf, row.hook);
            }
        }
        self.status = self.walk.report();
    }
}

fn status_of(walk: &Walk, row: &'static Row) -> HookStatus {
    let refusals: Vec<&Refusal> = walk.tried(row.hook).collect();
    let hook_state = match (walk.program_type(row.hook), walk.substitute(row)) {
        (Some(program_type), _) => HookState::Attached(program_type),
        (None, Some(program)) if walk.makes_needless(row) => HookState::Superseded(program),
        _ if walk.is_covered(row) => HookState::Covered(row.covered_by),
        _ if walk.awaits_module(row) => HookState::AwaitsModule,
        _ => HookState::Missing,
    };
    let any_attached = walk.has_attached();
    let mut tried: Vec<Tried> = refusals.iter().map(|refusal| Tried::new(refusal, any_attached)).collect();
    tried.dedup();
    HookStatus { row, hook_state, tried }
}

impl Tried {
    fn new(refusal: &Refusal, any_attached: bool) -> Self {
        let program_type = refusal.program_type;
        let text = refusal.explain(any_attached);
        let reason = text.strip_prefix(program_type.name()).unwrap_or(&text).trim_start_matches([':', ' ']).to_owned();
        let (needs, fix) = (refusal.needs(any_attached), refusal.fix());
        let no_function = program_type == ProgramType::Kprobe && refusal.is_missing_function();
        Self { program_type, reason, needs, fix, no_function, locked_down: refusal.is_lockdown() }
    }
}
