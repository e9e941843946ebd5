//! The table of hooks: the most expensive first, then the hooks that are not attached, and why.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Runs, Watched};
use tracer_bpf::ebpf::HookState;
use tracer_model::plural::counted;
use tracer_terminal::screen::{Screen, Style, safe};

pub(super) fn text(hooks: &[Watched], window: Duration, node_name: &str, screen: Screen) -> String {
    let mut out = String::new();
    rows(&mut out, hooks, window, screen);
    refusals(&mut out, hooks, screen);
    lost(&mut out, hooks, screen);
    totals(&mut out, hooks, window, node_name, screen);
    out
}

/// A line for each hook.
fn rows(out: &mut String, hooks: &[Watched], window: Duration, screen: Screen) {
    let mut sorted: Vec<&Watched> = hooks.iter().collect();
    sorted.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| seconds(b).total_cmp(&seconds(a))));
    let name = hooks.iter().map(|hook| hook.hook().name().len()).max().unwrap_or_default();
    let program_type = hooks.iter().map(|hook| program_type(hook).0.len()).max().unwrap_or_default();
    let columns = [name, program_type];
    let heads = ["runs", "ns/run", "cpu %", "events"].map(str::to_owned);
    line(out, columns, "hook", ("program type", Style::Strong), &heads, screen);
    for hook in sorted {
        line(out, columns, hook.hook().name(), self::program_type(hook), &numbers(hook, window), screen);
    }
}

/// Writes name and program type in columns of these widths, then the numbers; on a narrow screen these have their own line.
fn line(
    out: &mut String,
    [name, program_type]: [usize; 2],
    hook: &str,
    (word, style): (&str, Style),
    numbers: &[String; 4],
    screen: Screen,
) {
    let [runs, ns, cpu, events] = numbers;
    let numbers = format!("{runs:>9}  {ns:>7}  {cpu:>8}  {events:>8}");
    let (numbers, painted) = (numbers.trim_end(), screen.paint(style, word));
    let pad = program_type.saturating_sub(word.len());
    let _ = match (numbers.is_empty(), screen.is_narrow()) {
        (true, _) => writeln!(out, "{hook:<name$}  {painted}"),
        (false, true) => writeln!(out, "{hook:<name$}  {painted}\n{numbers}"),
        (false, false) => writeln!(out, "{hook:<name$}  {painted}{:pad$}  {numbers}", ""),
    };
}

/// Attached hooks come first, missing ones last.
const fn rank(hook: &Watched) -> u8 {
    match hook.status.hook_state {
        HookState::Attached(_) => 0,
        HookState::Missing => 2,
        HookState::Superseded(_) | HookState::Covered(_) | HookState::AwaitsModule => 1,
    }
}

fn seconds(hook: &Watched) -> f64 {
    hook.runs.map_or(0.0, |runs| runs.seconds)
}

/// The attached program type, or why there is none, in a word.
const fn program_type(hook: &Watched) -> (&'static str, Style) {
    match hook.status.hook_state {
        HookState::Attached(program_type) => (program_type.name(), Style::Good),
        HookState::Superseded(_) => ("not needed", Style::Dim),
        HookState::Covered(_) => ("covered", Style::Dim),
        HookState::AwaitsModule => ("no module", Style::Dim),
        HookState::Missing => ("missing", Style::Mild),
    }
}

/// Runs, nanoseconds per run, share of one CPU, events. Numbers that were not counted are empty.
fn numbers(hook: &Watched, window: Duration) -> [String; 4] {
    let runs = hook.runs;
    let attached = matches!(hook.status.hook_state, HookState::Attached(_));
    [
        runs.map(|runs| runs.count.to_string()),
        runs.and_then(Runs::ns_each).map(|ns| format!("{ns:.0}")),
        runs.map(|runs| format!("{:.4}", runs.share(window) * 100.0)),
        attached.then(|| hook.events.to_string()),
    ]
    .map(Option::unwrap_or_default)
}

/// Lists each reason of the kernel once, with the hooks that it concerns.
fn refusals(out: &mut String, hooks: &[Watched], screen: Screen) {
    let refused = hooks.iter().filter(|hook| !matches!(hook.status.hook_state, HookState::AwaitsModule));
    let tried = refused.flat_map(|hook| hook.status.tried.iter().map(move |tried| (tried, hook.hook().name())));
    let answers = grouped(tried);
    if !answers.is_empty() {
        screen.head(out, &screen.paint(Style::Strong, "tried first, and refused by this kernel"));
    }
    for (tried, names) in answers {
        screen.row(out, tried.program_type.name(), &format!("{}: {}", tried.reason, names.join(", ")));
    }
}

/// Lists what tracer cannot know without the missing hooks.
fn lost(out: &mut String, hooks: &[Watched], screen: Screen) {
    let missing = hooks.iter().filter(|hook| hook.status.hook_state == HookState::Missing);
    let lost = grouped(missing.map(|hook| (hook.status.row.lost, hook.hook().name())));
    if !lost.is_empty() {
        screen.head(out, &screen.paint(Style::Strong, "unknown on this kernel"));
    }
    for (what, names) in lost {
        screen.lines(out, "  ", "    ", &format!("{}: {what}", names.join(", ")));
    }
}

/// Groups names by their key, in the order of the first name of each key.
fn grouped<'a, T: PartialEq>(pairs: impl Iterator<Item = (T, &'a str)>) -> Vec<(T, Vec<&'a str>)> {
    let mut groups: Vec<(T, Vec<&str>)> = Vec::new();
    for (key, name) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, names)) => names.push(name),
            None => groups.push((key, vec![name])),
        }
    }
    groups
}

fn totals(out: &mut String, hooks: &[Watched], window: Duration, node_name: &str, screen: Screen) {
    let of = |rank_: u8| hooks.iter().filter(|hook| rank(hook) == rank_).count();
    let runs: Vec<Runs> = hooks.iter().filter_map(|hook| hook.runs).collect();
    let all = Runs { count: runs.iter().map(|it| it.count).sum(), seconds: runs.iter().map(|it| it.seconds).sum() };
    let cost = if runs.is_empty() {
        "runs not counted".to_owned()
    } else {
        format!("{}, {:.4} % of one CPU", counted(all.count, "run"), all.share(window) * 100.0)
    };
    let text = format!(
        "{}: {} hooks attached, {} missing, {} not needed; in {:.1} s {cost}",
        safe(node_name),
        of(0),
        of(2),
        of(1),
        window.as_secs_f64(),
    );
    screen.head(out, &screen.paint(Style::Strong, &text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_bpf::ebpf::hooks::{HOOKS, ProgramType};
    use tracer_bpf::ebpf::{HookStatus, Tried};

    fn hooks() -> Vec<Watched> {
        let tried = |program_type| Tried {
            program_type,
            reason: "refused by this kernel's policy".into(),
            needs: None,
            fix: None,
        };
        let status = |n: usize| match n {
            0 | 1 => (HookState::Attached(ProgramType::RawTracepoint), vec![]),
            _ => (HookState::Missing, vec![tried(ProgramType::Fentry)]),
        };
        let hook = |(n, row)| {
            let (hook_state, tried) = status(n);
            let runs = (n < 2).then(|| Runs { count: 10 * n as u64, seconds: 1e-6 * n as f64 });
            Watched { status: HookStatus { row, hook_state, tried }, events: 7, runs }
        };
        HOOKS.iter().take(4).enumerate().map(hook).collect()
    }

    fn page(columns: usize) -> String {
        text(&hooks(), Duration::from_secs(1), "n1", Screen { colour: false, columns: Some(columns) })
    }

    #[test]
    fn the_most_expensive_hook_comes_first_and_each_reason_once() {
        let page = page(120);
        let lines: Vec<_> = page.lines().collect();
        assert!(lines[1].starts_with("tcp_connect") && lines[1].ends_with("10      100    0.0001         7"), "{page}");
        assert!(lines[2].starts_with("inet_sock_set_state") && lines[3].ends_with("missing"), "{page}");
        assert_eq!(page.matches("refused by this kernel's policy: sys_exit_connect, tcp_retransmit_skb").count(), 1);
        assert!(
            page.ends_with("n1: 2 hooks attached, 2 missing, 0 not needed; in 1.0 s 10 runs, 0.0001 % of one CPU\n")
        );
    }

    #[test]
    fn the_table_fits_a_narrow_terminal() {
        let page = page(40);
        assert!(page.lines().all(|line| line.chars().count() <= 40), "{page}");
        assert!(!page.lines().any(|line| line.ends_with(' ')), "{page}");
    }
}
