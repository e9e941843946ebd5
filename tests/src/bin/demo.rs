//! Runs some of the scenarios as pods of one node, and shows the records of tracer as people read them. The exit code
//! is 1 if a verdict has another cause than expected.

use std::cell::RefCell;
use std::fs;
use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::Value;
use tracer_model::record::{Body, Record};
use tracer_output::sink::pretty::Pretty;
use tracer_terminal::screen::{Screen, columns};
use tracer_testbed::helper::Programs;
use tracer_testbed::node::sweep::sweep;
use tracer_testbed::options::{Options, Scratch};
use tracer_testbed::pods;
use tracer_testbed::row::{Row, RowOutcome};
use tracer_testbed::runner::{Plan, run};
use tracer_testbed::scenario::{Node, Scenario, all, needs};
use tracer_testbed::watcher::Tracer;

#[derive(Parser)]
struct Args {
    /// The tracer; default: the one beside this program.
    #[arg(long)]
    tracer: Option<PathBuf>,
}

struct Case {
    scenario: &'static str,
    /// Its pods, in the order in which it makes them. Without one, it is about the pod in the node's own namespace.
    pods: &'static [&'static str],
    /// The fault as text.
    made: &'static str,
}

impl Case {
    /// The pod that is probed.
    fn pod(&self) -> &str {
        self.pods.first().unwrap_or(&"node-agent-9x2lq")
    }
}

const fn case(scenario: &'static str, pods: &'static [&'static str], made: &'static str) -> Case {
    Case { scenario, pods, made }
}

const CASES: &[Case] = &[
    case("healthy_http", &["web-7c9f6d5b8-4xk2p", "web-7c9f6d5b8-lm6qd"], "healthy"),
    case("connection_refused_other_address", &["api-6f4d9c7b5-zq8wl"], "listens on 127.0.0.1 only"),
    case("slow_response", &["reports-5d8b7f9c6-m2vtj"], "takes the request and never answers"),
    case("mid_stream_rst", &["legacy-proxy-0"], "resets after the request"),
    case("firewall_drop_pod_nft", &["payments-84c6bd9f7-h5ngr"], "a rule in the pod drops"),
    case("firewall_reject_pod_nft_reset", &["ledger-59b8c4d6f-tt7xc"], "a rule in the pod rejects"),
    case("tls_eof_noise", &["gateway-7b6f5c9d8-ck9sd"], "a TLS server with a tcpSocket probe"),
    case(
        "nodeport_collision",
        &["nginx-66b6c48dd5-p9wzn", "shop-5b9d7c6f84-x7kqv"],
        "healthy; the probe's source port is a NodePort of IPVS",
    ),
    case("loopback_down", &[], "hostNetwork; a CNI plugin sets the node's lo down"),
];

thread_local! {
    static PRETTY: RefCell<Pretty> = RefCell::default();
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    sweep();
    needs::prepare_machine();
    let options = Options::detect(Programs::beside()?);
    let _scratch = Scratch::new()?;
    let program = args.tracer.unwrap_or_else(|| options.programs.tracer());
    let tracer = Tracer { services: None, on_record: show, ..Tracer::new(&options, program)? };
    fs::write(&tracer.pods, named_pods(&options).to_string())?;
    println!("A node with these pods, in network namespaces of its own:\n");
    CASES.iter().for_each(|case| println!("  {:26} {}", case.pod(), case.made));
    println!("\n$ {} attach --pods {}\n", tracer.program.display(), tracer.pods.display());
    let rows = run(&Plan { options, tracer, record: None }, &scenarios()?, &mut |_| ());
    Ok(compare(&rows))
}

/// The scenarios, all on one node.
fn scenarios() -> Result<Vec<Scenario>> {
    let of = |case: &Case| all().into_iter().find(|it| it.name == case.scenario).context(case.scenario);
    CASES.iter().map(|case| Ok(Scenario { node: Node::Shared, ..of(case)? })).collect()
}

/// The PodList: the pods of the cases, each with one probe of its HTTP port, and the pod in the node's own namespace.
fn named_pods(options: &Options) -> Value {
    let mut list = pods::plan(options.probe_timeout);
    let mut names = CASES.iter().flat_map(|case| case.pods);
    let name = |item: &mut Value| match (item["spec"]["hostNetwork"] == true, names.next()) {
        (true, _) => true,
        (false, None) => false,
        (false, Some(name)) => {
            item["metadata"]["name"] = (*name).into();
            item["spec"]["containers"][0].as_object_mut().and_then(|app| app.remove("livenessProbe"));
            true
        }
    };
    if let Some(items) = list["items"].as_array_mut() {
        items.retain_mut(name);
    }
    list
}

/// Prints a record as `tracer attach` does, unless it is about the link of a pod: the end of a scenario removes it.
fn show(record: &Record) {
    let link = if let Body::Node(node) = &record.body { node.link.as_ref() } else { None };
    if link.is_some_and(|link| link.name != "lo") {
        return;
    }
    let screen = Screen { colour: stdout().is_terminal(), columns: columns(stdout()) };
    print!("{}", PRETTY.with_borrow_mut(|pretty| pretty.text(record, 0, screen)));
}

/// Prints each fault with its expected cause, and whether tracer named it.
fn compare(rows: &[Row]) -> ExitCode {
    println!("\n{:26} {:56} {:30} as named", "pod", "what was made", "cause");
    for row in rows {
        let case = CASES.iter().find(|case| case.scenario == row.scenario);
        let (pod, made) = case.map_or(("-", row.scenario.as_str()), |case| (case.pod(), case.made));
        let reason = row.reason.as_deref().unwrap_or_default();
        let named = match row.result {
            RowOutcome::Pass => "yes".to_owned(),
            RowOutcome::Fail => format!("NO: {reason}"),
            RowOutcome::Cannot => format!("not made here: {reason}"),
        };
        println!("{pod:26} {made:56} {:30} {named}", row.cause.unwrap_or("-"));
    }
    let failed = rows.iter().filter(|row| row.result == RowOutcome::Fail).count();
    println!("\n{} cases, {failed} not as named", rows.len());
    ExitCode::from(u8::from(failed > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_a_scenario() {
        assert_eq!(scenarios().map(|all| all.len()).ok(), Some(CASES.len()));
    }
}
