//! Attaches the hooks of the table: tries each program type in order and keeps the first that loads and attaches. Keeps the
//! reasons why the others failed.

use std::{collections::BTreeSet, fs::File, io, path::Path};

use aya::{
    Btf, Ebpf, Endianness,
    programs::{Program, ProgramError},
};
use tracer_common::names::Hook;

use super::{
    ahead::{self, Planned},
    hooks::{HOOKS, ProgramType, Row, Variant, When},
    program::{Link, attach, attach_to, load},
    refusal::{Refusal, Stage},
};
use tracer_model::event::{HookStatus, MissingHook};

#[derive(Clone, Debug, Default)]
pub struct HookReport {
    pub hooks: Vec<HookStatus>,
    /// Hooks that no program type could be attached to, with the reason and what is lost.
    pub missing: Vec<MissingHook>,
    /// Hooks on functions of modules that are not loaded.
    pub awaited: Vec<String>,
}

/// State of the walk, kept for hooks that are attached later.
#[derive(Debug, Default)]
pub(super) struct Walk {
    attached: BTreeSet<&'static str>,
    /// Those of programs at the cgroups of probers are kept elsewhere.
    links: Vec<(&'static str, Link)>,
    /// Programs that are loaded; loading twice is an error.
    loaded: BTreeSet<&'static str>,
    hook_forms: Vec<(Hook, ProgramType)>,
    refused: Vec<(Hook, Vec<Refusal>)>,
    /// Program types that were refused before another one was attached.
    refused_first: Vec<(Hook, Vec<Refusal>)>,
    /// Program types that the kernel refuses on each hook, with the reason. They are not tried again.
    given_up: Vec<Refusal>,
    /// Needed for fentry; dropped at the end of the start.
    btf: KernelBtf,
}

/// BTF of the kernel's functions; aya parses it when it is first needed.
#[derive(Debug, Default)]
pub(super) struct KernelBtf {
    bytes: Vec<u8>,
    read: Option<Btf>,
}

impl KernelBtf {
    fn get(&mut self) -> Result<&Btf, ProgramError> {
        Ok(match &mut self.read {
            Some(btf) => btf,
            none => none.insert(Btf::parse(&self.bytes, Endianness::default())?),
        })
    }
}

impl Walk {
    /// A walk without some program types. `functions`: BTF of the functions for trampolines.
    pub(super) fn without(excluded: Vec<Refusal>, functions: Vec<u8>) -> Self {
        let given_up = excluded.into_iter().chain(Refusal::silenced()).chain(Refusal::without_kprobes()).collect();
        Self { given_up, btf: KernelBtf { bytes: functions, read: None }, ..Self::default() }
    }

    /// Attaches all hooks that the table attaches at the start.
    pub(super) fn start(&mut self, ebpf: &mut Ebpf) {
        self.load_ahead(ebpf);
        for row in HOOKS {
            match row.when {
                When::Start | When::ModuleLoaded(_) => self.attach_row(ebpf, row),
                When::Prober => self.load_row(ebpf, row),
                When::ProberAlone | When::OnDemand => {}
            }
        }
        self.btf = KernelBtf::default();
    }

    /// Loads the programs of the first program type of each hook that this kernel does not refuse.
    fn load_ahead(&mut self, ebpf: &mut Ebpf) {
        self.try_fentry(ebpf);
        let planned = self.planned();
        let btf = if self.is_given_up(ProgramType::Fentry) { None } else { self.btf.get().ok() };
        self.loaded.extend(ahead::load_all(ebpf, &planned, btf));
    }

    /// Attaches one trampoline first, because half of the hooks prefer them. Some kernels load all trampolines but attach none.
    fn try_fentry(&mut self, ebpf: &mut Ebpf) {
        let mut variants = HOOKS.iter().filter(|row| !self.makes_needless(row)).flat_map(|row| row.variants);
        let Some(variant) = variants.find(|variant| variant.program_type == ProgramType::Fentry) else { return };
        if let Err(refusal) = self.attach_variant(ebpf, variant) {
            self.give_up_if_general(&refusal);
        }
    }

    fn planned(&self) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        for row in HOOKS {
            let by_planned = row.unless.is_some_and(|program| planned.iter().any(|(it, _)| body_of(it) == program));
            let spared = by_planned || self.makes_needless(row);
            let first = row.variants.iter().find(|variant| !self.is_given_up(variant.program_type));
            planned
                .extend(first.filter(|it| !spared && is_loaded_ahead(row, it)).into_iter().flat_map(|it| it.programs));
        }
        planned.retain(|(name, _)| !self.loaded.contains(name));
        planned
    }

    fn is_given_up(&self, program_type: ProgramType) -> bool {
        self.given_up.iter().any(|refusal| refusal.program_type == program_type)
    }

    /// Tries to attach a hook that is not attached. Returns whether it is attached now.
    pub(super) fn retry(&mut self, ebpf: &mut Ebpf, hook: Hook) -> bool {
        if !self.is_attached(hook)
            && let Some(row) = HOOKS.iter().find(|r| r.hook == hook)
        {
            self.forget_refusals(hook);
            self.attach_row(ebpf, row);
        }
        self.is_attached(hook)
    }

    /// Loads the programs of a hook that will be attached soon. If the kernel refuses them, the hook will show it.
    pub(super) fn prepare(&mut self, ebpf: &mut Ebpf, hook: Hook) {
        let rows = HOOKS.iter().filter(|row| row.hook == hook);
        let mut usable = rows.flat_map(|row| row.variants).filter(|variant| !self.is_given_up(variant.program_type));
        if let Some(variant) = usable.next() {
            let _ = self.load(ebpf, variant);
        }
    }

    /// Attaches the program of a cgroup hook to another cgroup.
    pub(super) fn attach_cgroup(&mut self, ebpf: &mut Ebpf, hook: Hook, folder: &File) -> Option<Link> {
        let row = HOOKS.iter().find(|row| row.hook == hook)?;
        let variant = row.variants.first()?;
        let (name, target) = variant.programs.first()?;
        self.forget_refusals(hook);
        let attached = self.load_program(ebpf, variant.program_type, name, target).and_then(|program| {
            attach_to(program, folder)
                .map_err(|error| Refusal::new(variant.program_type, Stage::Attach, target, &error))
        });
        let refuse = |refusal| self.refused.push((row.hook, vec![refusal]));
        let link = attached.map_err(refuse).ok()?;
        if !self.is_attached(hook) {
            self.hook_forms.push((row.hook, variant.program_type));
            self.attached.insert(name);
        }
        Some(link)
    }

    /// Detaches the programs of a hook. They stay loaded.
    pub(super) fn detach(&mut self, hook: Hook) {
        self.hook_forms.retain(|(h, _)| *h != hook);
        let rows = HOOKS.iter().filter(|row| row.hook == hook);
        for (name, _) in rows.flat_map(|row| row.variants).flat_map(|variant| variant.programs) {
            self.attached.remove(name);
            self.links.retain(|(it, _)| it != name);
        }
    }

    pub(super) fn is_attached(&self, hook: Hook) -> bool {
        self.hook_forms.iter().any(|(h, _)| *h == hook)
    }

    /// Whether the hook was attached or refused. False for a hook on demand that was not needed yet.
    pub(super) fn was_tried(&self, hook: Hook) -> bool {
        self.is_attached(hook) || !self.refusals(hook).is_empty()
    }

    pub(super) fn program_type(&self, hook: Hook) -> Option<ProgramType> {
        self.hook_forms.iter().find(|(h, _)| *h == hook).map(|(_, program_type)| *program_type)
    }

    /// The refused tries for a hook, whether it is attached or not.
    pub(super) fn tried(&self, hook: Hook) -> impl Iterator<Item = &Refusal> {
        self.refused
            .iter()
            .chain(&self.refused_first)
            .filter(move |(h, _)| *h == hook)
            .flat_map(|(_, refusals)| refusals)
    }

    /// Whether an attached program makes this hook needless.
    pub(super) fn makes_needless(&self, row: &Row) -> bool {
        self.substitute(row).is_some_and(|program| self.attached.iter().any(|it| body_of(it) == program))
    }

    /// The program that makes a hook needless. `sock_ops` on the probers' cgroups replaces the state changes of all sockets.
    pub(super) fn substitute(&self, row: &Row) -> Option<&'static str> {
        if row.hook == Hook::InetSockSetState { Some("sock_ops") } else { row.unless }
    }

    /// Whether other attached hooks together report the same.
    pub(super) fn is_covered(&self, row: &Row) -> bool {
        !row.covered_by.is_empty() && row.covered_by.iter().all(|hook| self.is_attached(*hook))
    }

    /// Whether a hook is attached with one of these program types.
    pub(super) fn has_form(&self, program_types: &[ProgramType]) -> bool {
        self.hook_forms.iter().any(|(_, program_type)| program_types.contains(program_type))
    }

    /// Whether something is attached, so that no privilege is missing in general.
    pub(super) fn has_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    pub(super) fn refusals(&self, hook: Hook) -> &[Refusal] {
        self.refused.iter().find(|(h, _)| *h == hook).map_or(&[], |(_, r)| r)
    }

    /// The functions of the hook are in a module that is not loaded. Once it is, tracer attaches the hook.
    pub(super) fn awaits_module(&self, row: &Row) -> bool {
        let When::ModuleLoaded(module) = row.when else { return false };
        // The last one shows whether only the function is missing.
        let last = self.refusals(row.hook).last();
        last.is_some_and(|last| last.is_missing_function() || last.is_lockdown()) && !is_loaded(module)
    }

    /// The attached and the missing hooks. Hooks that others cover are not missing, nor those that wait for a module.
    pub(super) fn report(&self) -> HookReport {
        let hooks = self
            .hook_forms
            .iter()
            .map(|(hook, program_type)| HookStatus {
                hook: hook.name().into(),
                program_type: program_type.name().into(),
            })
            .collect();
        let refused = self.refused.iter().filter_map(|(hook, _)| HOOKS.iter().find(|row| row.hook == *hook));
        let rows = refused.filter(|row| !self.is_covered(row));
        let (awaited, missing): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| self.awaits_module(row));
        let explain = |row: &Row| MissingHook {
            hook: row.hook.name().into(),
            reason: self.explain(self.refusals(row.hook)),
            lost: row.lost.into(),
        };
        let awaited = awaited.into_iter().map(|row| row.hook.name().into()).collect();
        HookReport { hooks, missing: missing.into_iter().map(explain).collect(), awaited }
    }

    /// The reasons in one text, one for each program type that was tried.
    pub(super) fn explain(&self, refusals: &[Refusal]) -> String {
        let mut reasons: Vec<String> = refusals.iter().map(|r| r.explain(self.has_attached())).collect();
        reasons.dedup();
        reasons.join("; ")
    }

    fn attach_row(&mut self, ebpf: &mut Ebpf, row: &Row) {
        if self.makes_needless(row) {
            return;
        }
        let mut refusals = Vec::new();
        for variant in row.variants {
            match self.attach_variant(ebpf, variant) {
                Ok(()) => {
                    self.hook_forms.push((row.hook, variant.program_type));
                    self.refused_first.push((row.hook, refusals));
                    return;
                }
                Err(refusal) => {
                    self.give_up_if_general(&refusal);
                    refusals.push(refusal);
                }
            }
        }
        self.refused.push((row.hook, refusals));
    }

    /// Loads the programs of a row without attaching them, to find out whether the kernel accepts them.
    fn load_row(&mut self, ebpf: &mut Ebpf, row: &Row) {
        let mut refused: Vec<Refusal> =
            row.variants.iter().filter_map(|variant| self.load(ebpf, variant).err()).collect();
        refused.extend(refused.is_empty().then(Refusal::without_net_admin).flatten());
        if !refused.is_empty() {
            self.refused.push((row.hook, refused));
        }
    }

    /// Notes that the program could not be attached for one prober. It may be attached for others.
    pub(super) fn note_no_cgroup(&mut self, hook: Hook, error: io::Error) {
        if self.refusals(hook).is_empty() {
            let refusal = Refusal::new(ProgramType::Cgroup, Stage::Attach, "cgroup2", &ProgramError::IOError(error));
            self.refused.push((hook, vec![refusal]));
        }
    }

    /// A hook that is not wanted is not missing.
    pub(super) fn forget_refusals(&mut self, hook: Hook) {
        self.refused.retain(|(h, _)| *h != hook);
    }

    /// Gives up a program type if the refusal holds for all its programs.
    fn give_up_if_general(&mut self, refusal: &Refusal) {
        if self.is_given_up(refusal.program_type) {
            return;
        }
        match refusal.program_type {
            ProgramType::Fentry if refusal.is_policy() || refusal.is_without_trampolines() => {
                self.given_up.push(refusal.clone())
            }
            ProgramType::Kprobe if refusal.stage == Stage::Attach && !refusal.is_missing_function() => {
                self.given_up.push(refusal.clone());
            }
            _ => {}
        }
    }

    fn attach_variant(&mut self, ebpf: &mut Ebpf, variant: &Variant) -> Result<(), Refusal> {
        if let Some(refusal) = self.given_up.iter().find(|r| r.program_type == variant.program_type) {
            return Err(refusal.clone());
        }
        // All first: if the kernel refuses one, none is attached beside those of the next program type.
        self.load(ebpf, variant)?;
        for (name, target) in variant.programs {
            let program = self.load_program(ebpf, variant.program_type, name, target)?;
            if !self.attached.contains(name) {
                let refuse = |error| Refusal::new(variant.program_type, Stage::Attach, target, &error);
                self.links.push((name, attach(program, target).map_err(refuse)?));
                self.attached.insert(name);
            }
        }
        Ok(())
    }

    fn load(&mut self, ebpf: &mut Ebpf, variant: &Variant) -> Result<(), Refusal> {
        variant
            .programs
            .iter()
            .try_for_each(|(name, target)| self.load_program(ebpf, variant.program_type, name, target).map(drop))
    }

    fn load_program<'a>(
        &mut self,
        ebpf: &'a mut Ebpf,
        program_type: ProgramType,
        name: &'static str,
        target: &'static str,
    ) -> Result<&'a mut Program, Refusal> {
        let refuse = |error: &ProgramError| Refusal::new(program_type, Stage::Load, target, error);
        let program = ebpf.program_mut(name).ok_or_else(|| refuse(&ProgramError::NotLoaded))?;
        if !self.loaded.contains(name) {
            load(program, target, || self.btf.get()).map_err(|e| refuse(&e))?;
            self.loaded.insert(name);
        }
        Ok(program)
    }
}

/// A trampoline is loaded at the start in any case: later there is no BTF.
fn is_loaded_ahead(row: &Row, first: &Variant) -> bool {
    match row.when {
        When::Start | When::Prober => true,
        When::OnDemand => first.program_type == ProgramType::Fentry,
        When::ModuleLoaded(module) => is_loaded(module),
        When::ProberAlone => false,
    }
}

/// Whether the module is loaded, or compiled into the kernel and has parameters.
fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// Returns `tcp_connect` for `fentry_tcp_connect`.
fn body_of(program: &str) -> &str {
    program.strip_prefix("fentry_").or_else(|| program.strip_prefix("kprobe_")).unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prober_without_a_cgroup_is_reported_once_although_others_have_one() {
        let mut walk = Walk { hook_forms: vec![(Hook::CgroupAnswer, ProgramType::Cgroup)], ..Walk::default() };
        assert!(walk.report().missing.is_empty());
        let first = "its cgroup /../x (as seen from here) is in no hierarchy that is mounted here";
        for reason in [first, "256 cgroups have the program already"] {
            walk.note_no_cgroup(Hook::CgroupAnswer, io::Error::other(reason));
        }
        let HookReport { hooks, missing, .. } = walk.report();
        assert_eq!((hooks.len(), missing.len()), (1, 1), "reported once");
        assert!(missing[0].reason.contains(first), "{}", missing[0].reason);
    }
}
