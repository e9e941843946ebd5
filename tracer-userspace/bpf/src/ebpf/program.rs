//! Loads, attaches and detaches one program of any program type.

use std::fs::File;

use aya::{
    Btf, Ebpf,
    programs::{
        CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock, CgroupSockAddr, FEntry, FExit, KProbe, Program,
        ProgramError, RawTracePoint, SockOps, TracePoint, cgroup_skb::CgroupSkbLinkId, sock_ops::SockOpsLinkId,
    },
};

use super::cgroup;

/// Loads a program for the target to which it will be attached.
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
        Program::CgroupSock(p) => CgroupSock::load(p),
        Program::CgroupSockAddr(p) => CgroupSockAddr::load(p),
        Program::SockOps(p) => SockOps::load(p),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// aya attaches with a link, so that other programs can be attached, too. Kernels before 5.7 have no links and would need a mode,
/// but these also lack the ring buffer.
const MODE: CgroupAttachMode = CgroupAttachMode::Single;

pub(super) fn attach_to(program: &mut Program, folder: &File) -> Result<CgroupLinkId, ProgramError> {
    match program {
        Program::CgroupSkb(program) => {
            program.attach(folder, CgroupSkbAttachType::Ingress, MODE).map(CgroupLinkId::Packets)
        }
        Program::SockOps(program) => program.attach(folder, MODE).map(CgroupLinkId::Sockets),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

#[derive(Debug)]
pub(super) struct CgroupLink {
    pub(super) program: &'static str,
    pub(super) link: CgroupLinkId,
}

#[derive(Debug)]
pub(super) enum CgroupLinkId {
    Packets(CgroupSkbLinkId),
    Sockets(SockOpsLinkId),
}

/// Drops the link of a cgroup that is gone. The kernel has detached the program already.
pub(super) fn detach_from(ebpf: &mut Ebpf, CgroupLink { program, link }: CgroupLink) {
    let _ = match (ebpf.program_mut(program), link) {
        (Some(Program::CgroupSkb(program)), CgroupLinkId::Packets(link)) => program.detach(link),
        (Some(Program::SockOps(program)), CgroupLinkId::Sockets(link)) => program.detach(link),
        _ => Ok(()),
    };
}

/// Detaches a program everywhere and unloads it.
pub(super) fn unload(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(it) => it.unload(),
        Program::FExit(it) => it.unload(),
        Program::KProbe(it) => it.unload(),
        Program::RawTracePoint(it) => it.unload(),
        Program::TracePoint(it) => it.unload(),
        Program::CgroupSkb(it) => it.unload(),
        Program::CgroupSock(it) => it.unload(),
        Program::CgroupSockAddr(it) => it.unload(),
        Program::SockOps(it) => it.unload(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

pub(super) fn attach(program: &mut Program, target: &str) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(p) => p.attach().map(drop),
        Program::FExit(p) => p.attach().map(drop),
        Program::KProbe(p) => p.attach(target, 0).map(drop),
        Program::RawTracePoint(p) => p.attach(target).map(drop),
        Program::TracePoint(p) => p.attach("syscalls", target).map(drop),
        Program::CgroupSkb(_) => attach_to(program, &cgroup::root()?).map(drop),
        Program::CgroupSock(p) => p.attach(cgroup::root()?, MODE).map(drop),
        Program::CgroupSockAddr(p) => p.attach(cgroup::root()?, MODE).map(drop),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

#[cfg(test)]
mod tests {
    use aya_obj::Object;
    use aya_obj::generated::bpf_insn;

    use super::super::hooks::{HOOKS, ProgramType};
    use super::super::prepare::OBJECT;

    const EXIT: u8 = 0x95;
    const CALL: u8 = 0x85;
    /// `r0 = IMM` and `w0 = IMM`.
    const MOVES: [u8; 2] = [0xb7, 0xb4];

    /// Where a jump goes.
    fn target((at, instruction): (usize, &bpf_insn)) -> Option<usize> {
        let is_jump = matches!(instruction.code & 7, 5 | 6) && ![EXIT, CALL].contains(&instruction.code);
        is_jump.then(|| at.strict_add_signed(isize::from(instruction.off)) + 1)
    }

    /// For a cgroup program, 1 lets the packet pass or gives no reply, as without a program. The instruction before each exit must set
    /// 1, and no jump may skip it.
    #[test]
    fn a_cgroup_program_always_returns_1() {
        let object = Object::parse(OBJECT).unwrap();
        let variants =
            HOOKS.iter().flat_map(|row| row.variants).filter(|variant| variant.program_type == ProgramType::Cgroup);
        let names: Vec<&str> = variants.flat_map(|variant| variant.programs).map(|(name, _)| *name).collect();
        let others = [
            "post_bind4",
            "post_bind6",
            "sock_release",
            "connect4",
            "connect6",
            "sock_ops",
            "cgroup_answer",
            "cgroup_skb",
        ];
        assert_eq!(names, others);
        for name in names {
            let instructions = &object.functions[&object.programs[name].function_key()].instructions;
            let exits: Vec<usize> = (0..instructions.len()).filter(|at| instructions[*at].code == EXIT).collect();
            assert!(!exits.is_empty());
            for exit in exits {
                let before = &instructions[exit - 1];
                assert!(MOVES.contains(&before.code) && before.dst_reg() == 0 && before.imm == 1, "{name}: {before:?}");
                assert!(!instructions.iter().enumerate().filter_map(target).any(|to| to == exit), "{name}");
            }
        }
    }
}
