//! Budgets of the programs: instructions in the object, and instructions that a kernel's verifier processes.
//!
//! `budgets.txt` has a row for each program. Its columns are the object, and kernels by the beginning of their release. `-` is a
//! program that this kernel does not load. A larger number makes the start slower. Above a million the verifier refuses the
//! program.
//!
//! On a kernel without a column (7.2 is sid) the test prints that and skips. After an intended change, `TRACER_BLESS=1` writes the
//! measured numbers. In a virtual machine the table is only printed:
//! `cargo xtask vm 5.10 -- target/debug/deps/tracer_bpf-HASH ebpf::budgets --ignored --nocapture`, the file that `cargo test` names.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    io::Write as _,
    thread,
};

use aya::{
    Ebpf, EbpfLoader, Endianness, VerifierLogLevel,
    programs::{Program, ProgramError},
};
use aya_obj::Object;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{
    EbpfError, LoadOptions,
    hooks::HOOKS,
    prepare::{self, OBJECT, Reads},
    program::load,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ebpf/budgets.txt");
const COMMAND: &str =
    "TRACER_BLESS=1 cargo test -p tracer-bpf --lib ebpf::budgets -- --include-ignored --test-threads=1";
/// The second program of a hook, which `missed.rs` attaches.
const SECOND: (&str, &str) = ("inet_sock_set_state_again", "inet_sock_set_state");

type Column = BTreeMap<String, u32>;

/// The table, by the heads of its columns.
struct Table(Vec<(String, Column)>);

impl Table {
    fn read() -> Self {
        let text = fs::read_to_string(FILE).unwrap();
        let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(str::split_whitespace);
        let heads = lines.next().unwrap().skip(1);
        let mut columns: Vec<(String, Column)> = heads.map(|head| (head.to_owned(), Column::new())).collect();
        for mut words in lines {
            let program = words.next().unwrap();
            for ((head, column), word) in columns.iter_mut().zip(words) {
                if word != "-" {
                    let number = word.parse().unwrap_or_else(|_| panic!("{program}, {head}: {word} is no number"));
                    assert_eq!(column.insert(program.to_owned(), number), None, "{program} has two rows");
                }
            }
        }
        Self(columns)
    }

    fn budgets(&self, head: &str) -> Option<&Column> {
        self.0.iter().find(|(it, _)| it == head).map(|(_, column)| column)
    }

    /// The text of the table with the measured numbers in this column.
    fn with(mut self, head: &str, measured: &Column) -> String {
        match self.0.iter_mut().find(|(it, _)| it == head) {
            Some((_, column)) => column.clone_from(measured),
            None => self.0.push((head.to_owned(), measured.clone())),
        }
        let row = |first: &str, cells: Vec<String>| {
            let cells: String = cells.into_iter().map(|cell| format!("{cell:>9}")).collect();
            format!("{first:<26}{cells}\n")
        };
        let mut text = String::from(
            "# Instructions of each program in the object, and how many the verifier of a kernel works through: budgets.rs.\n",
        );
        text.push_str(&row("program", self.0.iter().map(|(head, _)| head.clone()).collect()));
        for (program, _) in programs() {
            let cell = |column: &Column| column.get(program).map_or_else(|| "-".to_owned(), u32::to_string);
            text.push_str(&row(program, self.0.iter().map(|(_, column)| cell(column)).collect()));
        }
        text
    }
}

/// All programs, and what each is attached to.
fn programs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_hooks = HOOKS.iter().flat_map(|row| row.variants).flat_map(|variant| variant.programs).copied();
    of_hooks.chain([SECOND])
}

/// Differences from the budget that are larger than those between compilers or builds of a kernel.
fn differences(budgets: &Column, measured: &Column) -> Vec<String> {
    let names: BTreeSet<&String> = budgets.keys().chain(measured.keys()).collect();
    let difference = |name: &&String| match (budgets.get(*name), measured.get(*name)) {
        (Some(budget), Some(now)) if *now > budget + budget / 10 => Some(format!("{name}: {now}, more than {budget}")),
        (Some(budget), Some(now)) if *now < budget - budget / 3 => Some(format!("{name}: {now}, far below {budget}")),
        (Some(budget), None) => Some(format!("{name}: {budget} in the table, and not there")),
        (None, Some(now)) => Some(format!("{name}: {now}, not in the table")),
        _ => None,
    };
    names.iter().filter_map(difference).collect()
}

fn compare(head: &str, measured: &Column) {
    assert!(!measured.is_empty(), "nothing was measured");
    let table = Table::read();
    let differences = table.budgets(head).map(|budgets| differences(budgets, measured));
    let text = table.with(head, measured);
    if std::env::var_os("TRACER_BLESS").is_some() {
        fs::write(FILE, text).unwrap();
        return;
    }
    println!("{text}");
    let Some(differences) = differences else {
        // Contributors have other kernels. Writes to stderr itself, because the test harness hides output of passed tests.
        let _ = writeln!(std::io::stderr(), "SKIPPED: kernel {head} has no column in {FILE}; to add one: {COMMAND}");
        return;
    };
    assert!(differences.is_empty(), "{head}:\n{}\nIf that is meant: {COMMAND}", differences.join("\n"));
}

/// Instructions of each program in the object, including the functions that it calls.
fn in_the_object() -> Column {
    let mut object = Object::parse(OBJECT).unwrap();
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections).unwrap();
    let length = |program: &aya_obj::Program| object.functions[&program.function_key()].instructions.len() as u32;
    object.programs.iter().map(|(name, program)| (name.clone(), length(program))).collect()
}

#[test]
fn no_program_is_larger_than_its_budget() {
    compare("object", &in_the_object());
}

#[test]
fn the_object_has_exactly_the_programs_of_the_hooks() {
    let of_hooks: BTreeSet<&str> = programs().map(|(name, _)| name).collect();
    let measured = in_the_object();
    let built: BTreeSet<&str> = measured.keys().map(String::as_str).collect();
    let differ: Vec<_> = of_hooks.symmetric_difference(&built).collect();
    assert!(differ.is_empty(), "only in hooks.rs, or only in tracer-ebpf: {differ:?}");
}

#[test]
fn larger_smaller_missing_and_new_numbers_are_found() {
    let column =
        |numbers: &[(&str, u32)]| numbers.iter().map(|(name, it)| ((*name).to_owned(), *it)).collect::<Column>();
    let budgets = column(&[("one", 1000), ("two", 10)]);
    let found = |measured: &[(&str, u32)]| differences(&budgets, &column(measured)).len();
    assert_eq!((found(&[("one", 1100), ("two", 11)]), found(&[("one", 667), ("two", 7)])), (0, 0));
    assert_eq!((found(&[("one", 1101), ("two", 10)]), found(&[("one", 666), ("two", 10)])), (1, 1));
    assert_eq!(found(&[("one", 1000)]), 1, "one that is gone");
    assert_eq!(found(&[("one", 1000), ("two", 10), ("three", 1)]), 1, "a new one");
}

/// `6.12` of `6.12.95+deb12-amd64`.
fn this_kernel() -> String {
    let name = nix::sys::utsname::uname().unwrap();
    name.release().to_str().unwrap().split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Loads every program as the loader does, also those that the loader would not choose on this kernel.
#[test]
#[ignore = "needs root"]
fn no_program_is_harder_to_verify_than_its_budget() {
    compare(&this_kernel(), &verified_all(Reads::Helper).expect("programs"));
}

/// The programs for locked-down kernels: the verifier accepts each one that it accepts with the helper.
#[test]
#[ignore = "needs root"]
fn programs_without_the_helper_are_accepted_as_well() {
    match verified_all(Reads::Typed) {
        Ok(typed) => {
            let usual = verified_all(Reads::Helper).expect("programs");
            assert_eq!(typed.keys().collect::<Vec<_>>(), usual.keys().collect::<Vec<_>>());
            println!("{} instructions, {} with the helper", typed.values().sum::<u32>(), usual.values().sum::<u32>());
        }
        Err(error) => _ = writeln!(std::io::stderr(), "SKIPPED: bpf_rdonly_cast is in kernels from 6.2 on: {error}"),
    }
}

fn verified_all(reads: Reads) -> Result<Column, EbpfError> {
    prepare::raise_memlock();
    let loader = thread::spawn(|| {
        let mut loader = EbpfLoader::new();
        loader.verifier_log_level(VerifierLogLevel::STATS);
        loader
    });
    let layout = prepare::read_layout(None, reads)?;
    let mut ebpf = prepare::load_object(loader, &layout, &LoadOptions::default(), false).unwrap();
    let functions = aya::Btf::parse(&layout.functions, Endianness::default()).unwrap();
    let measured =
        programs().filter_map(|(name, target)| Some((name.to_owned(), verified(&mut ebpf, name, target, &functions)?)));
    Ok(measured.collect())
}

/// Instructions that the verifier processed; `None` if this kernel lacks the target of the program.
fn verified(ebpf: &mut Ebpf, name: &str, target: &str, functions: &aya::Btf) -> Option<u32> {
    let program = ebpf.program_mut(name).unwrap();
    if let Err(error) = load(program, target, || Ok(functions)) {
        println!("{name}: {error}");
        return None;
    }
    let counted = program.info().unwrap().verified_instruction_count();
    counted.or_else(|| Some(counted_in_log(program, target, functions)))
}

fn unload(program: &mut Program) -> Result<(), ProgramError> {
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

/// Before 5.16 only the verifier's log has the number, and aya shows the log only of a refused program. So the test allows no more
/// file descriptors: the kernel then refuses the program after the verification.
fn counted_in_log(program: &mut Program, target: &str, functions: &aya::Btf) -> u32 {
    unload(program).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let refused = load(program, target, || Ok(functions));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let text = format!("{:?}", refused.unwrap_err());
    let count = text.split("processed ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("no count in {text}"))
}
