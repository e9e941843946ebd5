//! One program: how each kind is loaded, attached and, of a cgroup, taken off.

use std::fs::File;

use aya::{
    Btf, Ebpf,
    programs::{
        CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, FEntry, FExit, KProbe, Program, ProgramError, RawTracePoint,
        TracePoint, cgroup_skb::CgroupSkbLinkId,
    },
};

use super::cgroup;

/// Loads a program for what it is to be attached to.
pub(super) fn load<'a>(
    program: &mut Program,
    target: &str,
    btf: impl FnOnce() -> Result<&'a Btf, ProgramError>,
) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(p) => FEntry::load(p, target, btf()?),
        Program::FExit(p) => FExit::load(p, target, btf()?),
        Program::KProbe(p) => KProbe::load(p),
        Program::RawTracePoint(p) => RawTracePoint::load(p),
        Program::TracePoint(p) => TracePoint::load(p),
        Program::CgroupSkb(p) => CgroupSkb::load(p),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// A link, beside which others may attach what they like; without links (before 5.7) the mode would forbid that, but there
/// the ring buffer is missing, too.
pub(super) fn attach_to(program: &mut Program, folder: &File) -> Result<CgroupSkbLinkId, ProgramError> {
    let Program::CgroupSkb(program) = program else { return Err(ProgramError::UnexpectedProgramType) };
    program.attach(folder, CgroupSkbAttachType::Ingress, CgroupAttachMode::Single)
}

/// A program on a cgroup.
#[derive(Debug)]
pub(super) struct CgroupLink {
    pub(super) program: &'static str,
    pub(super) link: CgroupSkbLinkId,
}

/// Of a cgroup that is gone: the kernel has taken the program off.
pub(super) fn detach_from(ebpf: &mut Ebpf, link: CgroupLink) {
    if let Some(Program::CgroupSkb(program)) = ebpf.program_mut(link.program) {
        let _ = program.detach(link.link);
    }
}

/// Attaches a program to where it belongs.
pub(super) fn attach(program: &mut Program, target: &str) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(p) => p.attach().map(drop),
        Program::FExit(p) => p.attach().map(drop),
        Program::KProbe(p) => p.attach(target, 0).map(drop),
        Program::RawTracePoint(p) => p.attach(target).map(drop),
        Program::TracePoint(p) => p.attach("syscalls", target).map(drop),
        Program::CgroupSkb(_) => attach_to(program, &cgroup::root()?).map(drop),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}
