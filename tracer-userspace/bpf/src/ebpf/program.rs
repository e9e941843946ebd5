//! Loads, attaches and detaches one program of any program type.

use std::any::Any;
use std::fs::File;

use aya::{
    Btf,
    programs::{
        CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock, CgroupSockAddr, FEntry, FExit, KProbe, Program,
        ProgramError, RawTracePoint, SockOps, TracePoint,
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

/// An attached program. Dropping it detaches the program.
pub(super) type Link = Box<dyn Any + Send>;

fn owned<L: Send + 'static>(link: Result<L, ProgramError>) -> Result<Link, ProgramError> {
    link.map(|link| Box::new(link) as Link)
}

/// Attaches a program to what it was loaded for; a program of a cgroup, to the root.
pub(super) fn attach(program: &mut Program, target: &str) -> Result<Link, ProgramError> {
    match program {
        Program::FEntry(p) => p.attach().and_then(|id| owned(p.take_link(id))),
        Program::FExit(p) => p.attach().and_then(|id| owned(p.take_link(id))),
        Program::KProbe(p) => p.attach(target, 0).and_then(|id| owned(p.take_link(id))),
        Program::RawTracePoint(p) => p.attach(target).and_then(|id| owned(p.take_link(id))),
        Program::TracePoint(p) => p.attach("syscalls", target).and_then(|id| owned(p.take_link(id))),
        _ => attach_to(program, &cgroup::root()?),
    }
}

pub(super) fn attach_to(program: &mut Program, folder: &File) -> Result<Link, ProgramError> {
    match program {
        Program::CgroupSkb(p) => {
            p.attach(folder, CgroupSkbAttachType::Ingress, MODE).and_then(|id| owned(p.take_link(id)))
        }
        Program::CgroupSock(p) => p.attach(folder, MODE).and_then(|id| owned(p.take_link(id))),
        Program::CgroupSockAddr(p) => p.attach(folder, MODE).and_then(|id| owned(p.take_link(id))),
        Program::SockOps(p) => p.attach(folder, MODE).and_then(|id| owned(p.take_link(id))),
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
        assert_eq!(names.len(), 9, "{names:?}");
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
