use super::*;
use crate::cli::{Parsed, parse};
use tracer_bpf::ebpf::ProberHooksWhen;
use tracer_sources::NamedLog;
use tracer_sources::cluster::{Access, Namespace};

pub(super) fn planned(args: &[&str]) -> Result<Plan, Error> {
    let args = std::iter::once("tracer").chain(args.iter().copied()).map(Into::into);
    match parse(args) {
        Parsed::Command(cli) => plan(*cli),
        Parsed::Wrong(text) => Err(Error::Usage(text)),
        Parsed::Text(text) => panic!("{text}"),
    }
}

fn live(args: &[&str]) -> Result<Box<LiveConfig>, String> {
    match planned(args) {
        Ok(Plan::Live(live)) => Ok(live),
        Ok(other) => unreachable!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn without_names_every_kubelet_is_a_prober() {
    let live = live(&["attach"]).unwrap();
    assert_eq!(live.load.probers, KNOWN_PROBERS);
    assert!(!live.daemon && live.record.is_none());
}

#[test]
fn tracer_chooses_the_hooks_unless_a_flag_does() {
    let load = |flags: &[&str]| {
        let load = live(&[&["record"], flags, &["file"]].concat()).unwrap().load;
        (load.prober_hooks, load.probers_are_named)
    };
    assert_eq!(load(&[]), (ProberHooksWhen::Auto, false));
    assert_eq!(load(&["--prober-hooks"]), (ProberHooksWhen::Always, false), "FILE is not its value");
    assert_eq!(load(&["--prober-hooks=never", "--prober", "kubelet"]), (ProberHooksWhen::Never, true));
    assert!(live(&["attach", "--prober-hooks=sometimes"]).unwrap_err().contains("auto, always, never"));
}

#[test]
fn an_empty_name_in_a_list_is_refused() {
    for args in [
        ["attach", "--cause", ""],
        ["attach", "--prober", "kubelet,,k3s"],
        ["doctor", "--check", ""],
        ["attach", "--namespace", ""],
        ["attach", "--pod", ""],
        ["attach", "--container", ""],
        ["attach", "--node-name", ""],
    ] {
        let error = planned(&args).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: an empty name", args[1])), "{error}");
    }
}

#[test]
fn the_path_of_a_prober_is_refused_with_its_name() {
    for path in ["/usr/bin/kubelet", "/bin/kubelet"] {
        let error = planned(&["attach", "--prober", path]).unwrap_err().to_string();
        assert_eq!(error, format!("--prober `{path}`: a path, not the name of a process; write `kubelet`"));
    }
}

#[test]
fn the_kubelet_log_is_a_file_or_the_journal() {
    let log = |value: &str| live(&["attach", "--kubelet-log", value]).map(|live| live.kubelet_log);
    let file = std::env::current_exe().unwrap();
    assert_eq!(log(file.to_str().unwrap()), Ok(Some(NamedLog::File(file.clone()))));
    assert_eq!(log("journal"), Ok(Some(NamedLog::Journal(None))));
    assert_eq!(log(""), Ok(None));
    assert!(log("./journal").unwrap_err().starts_with("--kubelet-log ./journal: No such file"));
    assert_eq!(log("/dev/null").unwrap_err(), "--kubelet-log /dev/null: not a plain file");
    let empty = log("journal:/proc/self").unwrap_err();
    assert!(empty.starts_with("--kubelet-log journal:/proc/self: no system.journal in it"), "{empty}");
}

#[test]
fn the_api_is_used_with_a_kubeconfig_for_what_files_do_not_have() {
    let cluster = |args: &[&str]| live(args).unwrap().cluster;
    let file = std::env::current_exe().unwrap().display().to_string();
    assert!(cluster(&["attach"]).is_none());
    let error = live(&["attach", "--api-events=shop"]).unwrap_err();
    assert!(error.starts_with("--api-events ") && error.ends_with("without --kubeconfig PATH"), "{error}");
    let used = cluster(&["attach", "--kubeconfig", &file, "--node-name", "n1"]).unwrap();
    assert_eq!(used.access, Access::Kubeconfig(file.clone().into()));
    assert!(used.pods && used.endpoints && used.node_name == "n1");
    let error = live(&["run", "--kubeconfig", &file, "--no-api"]).unwrap_err();
    assert_eq!(error, "--no-api and --kubeconfig exclude each other");
    let used = cluster(&["run", "--kubeconfig", &file, "--pods", &file]).unwrap();
    assert!(!used.pods && used.endpoints);
    assert!(cluster(&["run", "--kubeconfig", &file, "--pods", &file, "--services", &file]).is_none());
    let used = cluster(&["record", "x", "--kubeconfig", &file, "--services", &file]).unwrap();
    assert!(used.pods && !used.endpoints);
    let error = live(&["run", "--kubeconfig", "/none"]).unwrap_err();
    assert_eq!(error, "--kubeconfig /none: No such file or directory");
    assert!(planned(&["replay", "x", "--no-api"]).is_err());
}

#[test]
fn a_daemon_without_the_api_warns_and_runs() {
    let unavailable_source = |args: &[&str]| live(args).unwrap().unavailable_source;
    let file = std::env::current_exe().unwrap().display().to_string();
    let nowhere = "--api-events does nothing here: no pod's service account, and no --kubeconfig PATH";
    assert_eq!(unavailable_source(&["run", "--api-events=*"]).as_deref(), Some(nowhere));
    let switched_off = ["run", "--no-api", "--api-events=shop"];
    assert_eq!(unavailable_source(&switched_off).as_deref(), Some("--api-events does nothing beside --no-api"));
    assert_eq!(unavailable_source(&["run"]), None);
    assert_eq!(unavailable_source(&["run", "--api-events=*", "--kubeconfig", &file]), None);
}

#[test]
fn rotation_needs_a_file_and_a_size() {
    let file = ["run", "--output-file", "/x"];
    let rotation = live(&[&file[..], &["--output-max-size", "64MiB"]].concat()).unwrap().output.rotation;
    assert_eq!(rotation, Some(Rotation { max_bytes: 64 << 20, max_files: KEPT_FILES }));
    assert!(live(&["run", "--output-max-size", "64MiB"]).unwrap_err().contains("without --output-file"));
    assert!(live(&[&file[..], &["--output-max-files", "3"]].concat()).unwrap_err().contains("--output-max-size"));
    assert!(live(&[&file[..], &["--output-max-size", "64"]].concat()).is_err());
    assert!(live(&[&file[..], &["--output-max-size", "64MiB", "--output-max-files", "0"]].concat()).is_err());
}

#[test]
fn only_the_daemon_has_endpoints() {
    let serve = live(&["run", "--metrics-listen", "[::1]:9464"]).unwrap().serve.unwrap();
    assert_eq!(serve.metrics_listen, Some("[::1]:9464".parse().unwrap()));
    assert_eq!(serve.health_socket, Path::new(tracer_output::serve::HEALTH_SOCKET));
    assert!(live(&["attach"]).unwrap().serve.is_none());
    assert!(live(&["attach", "--metrics-listen", "[::1]:9464"]).is_err());
    assert!(live(&["run", "--metrics-listen", "localhost"]).unwrap_err().contains("localhost:9464"));
}

#[test]
fn json_can_be_named_ndjson_too() {
    for name in ["json", "ndjson"] {
        assert_eq!(live(&["attach", "-o", name]).unwrap().output.format, Format::Ndjson);
    }
}

#[test]
fn causes_are_found_in_either_case_and_with_hyphens() {
    let text = |args: &[&str]| match planned(args) {
        Ok(Plan::Text(text)) => text,
        other => panic!("{other:?}"),
    };
    let found = text(&["explain", "LOOPBACK_DOWN", "firewall-drop"]);
    assert!(["loopback_down", "firewall_drop"].iter().all(|cause| found.contains(cause)), "{found}");
    assert_eq!(found, text(&["explain", "loopback_down", "firewall_drop"]));
}

#[test]
fn events_are_read_of_named_namespaces_or_of_all() {
    let file = std::env::current_exe().unwrap().display().to_string();
    let events = |namespaces: &str| {
        let args = ["attach", "--kubeconfig", &file, "--pods", &file, "--api-events", namespaces];
        live(&args).map(|live| live.cluster.unwrap().events)
    };
    let named = |name: &str| Namespace::Named(name.to_owned());
    assert_eq!(events("shop,bank,shop").unwrap(), [named("shop"), named("bank")]);
    assert_eq!(events("shop,*").unwrap(), [Namespace::All]);
    assert!(events("Shop").unwrap_err().contains("the name of a namespace, or `*`"));
    assert!(planned(&["replay", "x", "--api-events", "shop"]).unwrap_err().to_string().starts_with("--api-events"));
}

#[test]
fn writing_to_the_api_needs_access_to_it() {
    let file = std::env::current_exe().unwrap().display().to_string();
    let written =
        |args: &[&str]| live(&[&["run", "--node-name", "n1"], args].concat()).map(|live| live.destinations.cluster);
    assert_eq!(written(&["--kubeconfig", &file]).unwrap(), None);
    let output = written(&["--kubeconfig", &file, "--pods", &file, "--api-condition"]).unwrap().unwrap();
    assert!(output.condition && !output.explain && output.node_name == "n1");
    assert!(written(&["--api-explain"]).unwrap_err().starts_with("--api-explain needs the cluster API"));
    assert!(written(&["--api-explain", "--no-api"]).is_err());
    assert!(planned(&["attach", "--api-explain"]).is_err());
}
