//! The text below the flags in each command's help: notes for the first use, and examples.

pub(super) const TRACER: &str = "Exit codes:
  0  done
  1  a finding: --until-failure met a failure, a replay differs, a check of
     doctor or a row of selftest failed, the daemon is not alive or ready
  2  wrong usage, unreadable input, or output that could not be written
  3  this kernel or these privileges do not allow it
  101  a defect of tracer: a part of it panicked

`tracer COMMAND --help` lists the flags and examples of a command.
Every flag has a variable TRACER_<FLAG>, such as TRACER_DURATION=5m. The command
line wins over the variable.
TRACER_LOG=debug makes tracer log about itself on stderr.
On a cluster: `kubectl tracer`, which is this program under the name
kubectl-tracer.

Examples:
  tracer attach                          what fails on this node, until Ctrl-C
  tracer attach -n shop -p 'cart-*' --until-failure --duration 10m
  tracer record incident.ndjson          the same, and save what was seen
  tracer replay incident.ndjson -o json | jq -c '.verdict.cause // empty'
  tracer show tracer.ndjson -n shop      read records
  tracer report tracer.ndjson --output-file incident.html
  tracer explain connection_refused
  tracer doctor --problems               what is wrong here, and its fix";

pub(super) const ATTACH: &str = "Needs root, or CAP_BPF and CAP_PERFMON, and CAP_SYS_ADMIN on some kernels. Without CAP_SYS_PTRACE, probes may be reported as connections. Needs no configuration, and no cluster API unless --kubeconfig names one.

Examples:
  tracer attach --duration 5m
  tracer attach -n shop -p deploy/cart --pods pods.json
  tracer attach --until-failure --cause loopback_down";

pub(super) const RUN: &str =
    "Prints to stdout (JSON, but pretty on a terminal), or to --output-file. SIGHUP reopens that file after a rotation.
Opens no port unless --metrics-listen is given. `tracer health` asks over a unix socket.

Examples:
  tracer run --output-file /var/log/tracer.ndjson --output-max-size 64MiB
  tracer run --metrics-listen localhost:9464";

pub(super) const HEALTH: &str = "Asks over a unix socket, so that no network fault can hide a healthy daemon. Prints the daemon's report as one line of JSON. Exit code 0: alive (with --ready: ready); 1: not; 2: nothing answers.

Examples:
  tracer health --ready

  livenessProbe: {exec: {command: [tracer, health]}}
  readinessProbe: {exec: {command: [tracer, health, --ready]}}";

pub(super) const RECORD: &str = "Creates FILE with mode 0600, and never overwrites one: a recording names pods, addresses and processes of this node. It holds nothing that a pod sent or received.

Examples:
  tracer record incident.ndjson --duration 10m
  tracer record incident.ndjson --until-failure";

pub(super) const REPLAY: &str =
    "FILE may be compressed with gzip. Replays a damaged recording up to the damage. One line on stderr then says where it is, and the exit code is 2.

Examples:
  tracer replay incident.ndjson
  tracer replay incident.ndjson.gz
  tracer replay incident.ndjson -o json --compare expected.ndjson";

pub(super) const SHOW: &str = "FILE holds records (NDJSON) of attach, run or replay, or the log of tracer's pod; gzip is read, too. tracer's own messages in it are skipped, other lines are counted on stderr. Exit code 2: a file has no record or records of another schema version, or cannot be read to its end.

Examples:
  tracer show tracer.ndjson
  kubectl logs -n tracer -l app.kubernetes.io/name=tracer --prefix --tail=-1 |
    tracer show -n shop
  tracer show node-1.ndjson node-2.ndjson --cause loopback_down";

pub(super) const REPORT: &str = "The page needs no network and no scripts. It has the causes with their fixes, a timeline of each pod and node, and the evidence. FILE holds records of attach, run or replay, or the log of tracer's pod; gzip is read, too. Several files become one page, and may be of any size.
--output-file replaces an earlier page, and no other file. Exit code 2: some lines could not be read; the page has the others and says so.

Examples:
  tracer report tracer.ndjson* --output-file incident.html
  tracer replay incident.ndjson -o json | tracer report - > incident.html
  tracer report node-1.ndjson node-2.ndjson -n shop --output-file shop.html";

pub(super) const DOCTOR: &str =
    "Changes nothing. Without root much is unknown: tracer never calls ok what it cannot read.

Examples:
  tracer doctor
  tracer doctor --problems
  tracer doctor --check port_overlap --check base_policy --fail-on warn
  tracer doctor --check tracer_hooks
  tracer doctor -o json | jq 'select(.status != \"ok\")'";

pub(super) const SELFTEST: &str = "Run it after the installation. It needs root and one or two minutes, makes its own network namespaces, and changes nothing else. Each cause gets one row: passed with the hooks that proved it, failed, or why this machine cannot show it.

Examples:
  tracer selftest
  tracer selftest --cause connection_refused --cause loopback_down
  tracer selftest -o json | jq -r 'select(.status == \"fail\") | .check'";

pub(super) const SCHEMA: &str = "Examples:
  tracer schema > tracer.schema.json";

pub(super) const COMPLETIONS: &str = "Examples:
  tracer completions bash > /usr/share/bash-completion/completions/tracer
  tracer completions zsh > /usr/share/zsh/site-functions/_tracer
  tracer completions fish > /usr/share/fish/vendor_completions.d/tracer.fish";

pub(super) const MAN: &str = "Examples:
  tracer man > /usr/share/man/man1/tracer.1
  tracer man attach > /usr/share/man/man1/tracer-attach.1";

pub(super) const EXPLAIN: &str = "Examples:
  tracer explain
  tracer explain loopback_down
  tracer explain LOOPBACK_DOWN firewall-drop";

pub(super) const VERSION: &str = "Examples:
  tracer version";
