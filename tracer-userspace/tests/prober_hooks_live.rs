//! `--prober-hooks` on this kernel: tracer watches only the cgroups of probers. Needs root, and cgroup v2. No kubelet may run.
//!
//! Run with `cargo test -p tracer-userspace --test prober_hooks_live -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::{iter, time::Duration};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket};
use serde_json::Value;
use tracer_bpf::ebpf::{self, LoadOptions, ProberHooksWhen};
use tracer_common::{names::Hook, ports::PortUse};
use tracer_testbed::cgroup::{self, Cgroup};

use common::{Killed, Signal, printed, signal, soon, tracer};
use tracer_testing::TestFile;

const PROBER: &str = "trc-prober";
/// A name that tracer knows. No scenario uses it.
const KUBELET: &str = "kubelite";
/// The flags with which tracer watches the prober's cgroup.
const ALWAYS: &[&str] = &["--prober", PROBER, "--prober-hooks"];
/// A verdict comes within this time.
const QUIET: Duration = Duration::from_millis(500);

/// A cgroup that goes away with its test.
fn new_cgroup(name: &str) -> Cgroup {
    Cgroup::create(name).unwrap().expect("cgroup v2")
}

/// Sends segments of this connection over loopback, from port to port, until it is dropped. Their checksum is wrong, so the
/// kernel drops each.
struct Flood {
    ends: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(from: u16, to: u16) -> Self {
        let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).unwrap();
        // Addresses, ports, and a segment of 20 bytes with ACK.
        let mut segment = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
        segment.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
        segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0xba, 0xd0, 0, 0]);
        let to = SockaddrIn::new(127, 0, 0, 1, 0);
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let sender = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                sendto(socket.as_raw_fd(), &segment, &to, MsgFlags::empty()).unwrap();
            }
        });
        Self { ends, sender: Some(sender) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.sender.take().map(JoinHandle::join);
    }
}

/// A process that connects to each port that the test sends it.
struct Prober(Killed);

impl Prober {
    fn start(cgroup: &Cgroup) -> Self {
        Self::named(PROBER, cgroup.path())
    }

    fn named(name: &str, cgroup: &Path) -> Self {
        Self::run(&mut Command::new("bash"), name, cgroup)
    }

    fn run(bash: &mut Command, name: &str, cgroup: &Path) -> Self {
        let script = format!(
            "echo $$ > {}/cgroup.procs; printf {name} > /proc/$$/comm; echo; \
             while read -r port how; do ${{how:-true}} 3<>/dev/tcp/127.0.0.1/$port; done",
            cgroup.display()
        );
        bash.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Killed(bash.spawn().unwrap());
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child)
    }

    fn move_to(&self, cgroup: &Path) {
        fs::write(cgroup.join("cgroup.procs"), self.0.id().to_string()).unwrap();
    }

    fn connect(&mut self, port: u16) {
        writeln!(self.0.stdin.as_ref().unwrap(), "{port}").unwrap();
    }

    /// Connects and keeps the connection: the shell waits for its next line.
    fn connect_and_wait(&mut self, port: u16) {
        writeln!(self.0.stdin.as_ref().unwrap(), "{port} read").unwrap();
    }
}

struct Tracer {
    child: Killed,
    /// Its first record.
    start: Value,
    records: Receiver<Value>,
    stderr: TestFile,
}

impl Tracer {
    fn start(flags: &[&str]) -> Self {
        let stderr = TestFile::new("stderr", "");
        let mut command = tracer();
        command.args(["attach", "-o", "json"]).args(flags).env("TRACER_LOG", "warn,tracer::live=debug");
        command.stdout(Stdio::piped()).stderr(File::create(&stderr.path).unwrap());
        let mut child = Killed(command.spawn().unwrap());
        let records = printed(&mut child);
        Self { child, start: records.recv().unwrap(), records, stderr }
    }

    fn has(&self, hook: &str) -> bool {
        self.start["hooks"].as_array().unwrap().iter().any(|it| it["hook"] == hook)
    }

    /// Whether it watches the cgroups of probers, and not the whole node.
    fn watches_cgroups(&self) -> bool {
        self.has("sock_ops") && !self.has("inet_sock_set_state")
    }

    fn watches_the_node(&self) -> bool {
        self.has("inet_sock_set_state") && !self.has("sock_ops")
    }

    /// Lets the prober connect to a closed port until a verdict comes, and checks the verdict.
    ///
    /// It connects again only when tracer has been quiet: an emulated processor cannot follow hundreds of connects a
    /// second.
    fn expect_refusal(&self, prober: &mut Prober, port: u16) {
        let until_quiet = || self.records.recv_timeout(QUIET).ok();
        let verdict = soon("a verdict", || {
            prober.connect(port);
            iter::from_fn(until_quiet).find(|record| record["dst"]["port"] == port)
        });
        assert_eq!(verdict["verdict"]["cause"], "connection_refused", "{verdict}");
        assert_eq!(verdict["verdict"]["confidence"], "proven");
        assert_eq!(verdict["process"]["pid"], prober.0.id());
    }

    fn end(&self) -> Vec<Value> {
        signal(&self.child, Signal::SIGTERM);
        self.records.iter().collect()
    }

    fn warnings(&self) -> String {
        let log = fs::read_to_string(&self.stderr.path).unwrap();
        log.split_inclusive('\n').filter(|line| !line.contains(" DEBUG ") && !line.contains(" INFO ")).collect()
    }

    fn counts_ports(&self) -> bool {
        fs::read_to_string(&self.stderr.path).unwrap().contains("tracer counts who uses them")
    }

    /// Detaches the link as `bpftool link detach` does.
    fn detach_sock_ops(&self) {
        let pid = self.child.id();
        let mut files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
        let is_sock_ops = |text: String| text.contains("cgroup_id:") && text.contains("attach_type:\t3\n");
        let link = files.find(|file| fs::read_to_string(file.path()).is_ok_and(is_sock_ops)).unwrap();
        let number: i64 = link.file_name().to_str().unwrap().parse().unwrap();
        const BPF_LINK_DETACH: i32 = 34;
        // SAFETY: the only pointer is to `link`, which lives until the call returns.
        let done = unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            let link = libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) as u32;
            libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const link, size_of_val(&link))
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
#[ignore = "needs root"]
fn a_prober_is_followed_from_cgroup_to_cgroup_and_to_the_root() {
    let (first, second) = (new_cgroup("first"), new_cgroup("second"));
    let mut prober = Prober::start(&first);
    let tracer = Tracer::start(ALWAYS);
    assert!(tracer.watches_cgroups(), "{}", tracer.start);
    tracer.expect_refusal(&mut prober, 9);
    prober.move_to(second.path());
    tracer.expect_refusal(&mut prober, 11);
    drop(prober);
    let mut restarted = Prober::start(&first);
    tracer.expect_refusal(&mut restarted, 13);
    assert_eq!(tracer.warnings(), "");
    restarted.move_to(&cgroup::root().unwrap());
    tracer.expect_refusal(&mut restarted, 15);
    let warned = tracer.warnings();
    assert!(warned.contains("sock_ops") && warned.contains("in the root of the cgroups"), "{warned}");
}

#[test]
#[ignore = "needs root"]
fn a_detached_program_is_attached_again_and_other_tracers_keep_theirs() {
    let cgroup = new_cgroup("detached");
    let mut prober = Prober::start(&cgroup);
    let (tracer, other) = (Tracer::start(ALWAYS), Tracer::start(ALWAYS));
    for tracer in [&tracer, &other] {
        assert!(tracer.has("sock_ops"), "{}", tracer.start);
        tracer.expect_refusal(&mut prober, 9);
    }
    tracer.detach_sock_ops();
    tracer.expect_refusal(&mut prober, 11);
    let warned = tracer.warnings();
    assert!(warned.contains("sock_ops") && warned.contains("somebody detached it"), "{warned}");
    other.expect_refusal(&mut prober, 13);
    assert_eq!(other.warnings(), "");
}

/// Attaches a program that clears the flags of a socket, also those of other programs, when the kernel calls it with this
/// operation. It goes away with the cgroup.
fn clear_flags_at(operation: u32, cgroup: &Cgroup) {
    const BPF_PROG_LOAD: i32 = 5;
    const BPF_PROG_ATTACH: i32 = 8;
    const BPF_PROG_TYPE_SOCK_OPS: u32 = 13;
    const BPF_CGROUP_SOCK_OPS: u32 = 3;
    const BPF_F_ALLOW_MULTI: u32 = 2;
    let instructions = [
        instruction(0x61, 0x12, 0, 0),         // r2 = ctx->op
        instruction(0x55, 0x02, 2, operation), // if r2 != operation goto r0
        instruction(0xb7, 0x02, 0, 0),         // r2 = 0
        instruction(0x85, 0, 0, 59),           // bpf_sock_ops_cb_flags_set(ctx, r2)
        instruction(0xb7, 0x00, 0, 1),         // r0 = 1
        instruction(0x95, 0, 0, 0),            // return r0
    ];
    let numbers = [BPF_PROG_TYPE_SOCK_OPS, instructions.len() as u32].map(u32::to_ne_bytes);
    let pointers = [instructions.as_ptr() as u64, c"GPL".as_ptr() as u64].map(u64::to_ne_bytes);
    let program = bpf(BPF_PROG_LOAD, &[numbers.concat(), pointers.concat()].concat());
    // SAFETY: the kernel has just opened it for this process.
    let program = unsafe { OwnedFd::from_raw_fd(program as i32) };
    let cgroup = File::open(cgroup.path()).unwrap();
    let files = [cgroup.as_raw_fd(), program.as_raw_fd()].map(i32::cast_unsigned);
    let link = [files, [BPF_CGROUP_SOCK_OPS, BPF_F_ALLOW_MULTI]].concat();
    bpf(BPF_PROG_ATTACH, &link.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>());
}

fn instruction(code: u8, registers: u8, offset: u16, constant: u32) -> u64 {
    u64::from(code) | u64::from(registers) << 8 | u64::from(offset) << 16 | u64::from(constant) << 32
}

fn bpf(command: i32, attributes: &[u8]) -> i64 {
    // SAFETY: the kernel reads the attributes, and what they point to, before the call returns.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), attributes.len()) };
    assert!(done >= 0, "{}", std::io::Error::last_os_error());
    done
}

#[test]
#[ignore = "needs root"]
fn a_program_that_clears_the_flags_of_others_hides_no_state() {
    const TCP_CONNECT_CB: u32 = 3;
    const ACTIVE_ESTABLISHED_CB: u32 = 4;
    let cgroup = new_cgroup("cleared");
    let mut prober = Prober::start(&cgroup);
    // The kernel runs the programs of a cgroup in the order in which they were attached.
    clear_flags_at(ACTIVE_ESTABLISHED_CB, &cgroup);
    let tracer = Tracer::start(ALWAYS);
    assert!(tracer.watches_cgroups(), "{}", tracer.start);
    clear_flags_at(TCP_CONNECT_CB, &cgroup);
    tracer.expect_refusal(&mut prober, 9);
    // It closes this connection at once.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    prober.connect(server.local_addr().unwrap().port());
    tracer.expect_refusal(&mut prober, 11);
    let stop = tracer.end().pop().unwrap();
    assert_eq!(stop["open_attempts"], 0, "{stop}");
}

#[test]
#[ignore = "needs root"]
fn without_a_prober_the_whole_node_is_watched() {
    let cgroup = new_cgroup("late");
    let tracer = Tracer::start(ALWAYS);
    assert!(tracer.watches_the_node(), "{}", tracer.start);
    let missing = tracer.start["missing_hooks"].as_array().unwrap();
    let reason = missing.iter().find(|it| it["hook"] == "sock_ops").unwrap()["reason"].as_str().unwrap();
    assert!(reason.contains("no prober runs yet"), "{reason}");
    let mut prober = Prober::start(&cgroup);
    tracer.expect_refusal(&mut prober, 9);
}

#[test]
#[ignore = "needs root"]
fn tracer_chooses_the_cgroup_of_a_kubelet() {
    let (first, second) = (new_cgroup("own"), new_cgroup("another"));
    let mut kubelet = Prober::named(KUBELET, first.path());
    let tracer = Tracer::start(&[]);
    assert!(tracer.watches_cgroups(), "{}", tracer.start);
    let choice = &tracer.start["prober_hooks"];
    assert_eq!(choice["used"], true);
    assert!(choice["reason"].as_str().unwrap().contains(first.path().to_str().unwrap()), "{choice}");
    tracer.expect_refusal(&mut kubelet, 9);
    let mut another = Prober::named(KUBELET, second.path());
    tracer.expect_refusal(&mut another, 11);
    tracer.expect_refusal(&mut kubelet, 13);
    assert!(!tracer.warnings().contains("sock_ops"));
}

#[test]
#[ignore = "needs root"]
fn others_in_the_cgroup_of_a_kubelet_are_not_watched() {
    let cgroup = new_cgroup("shared");
    let mut runtime = Prober::start(&cgroup);
    let mut kubelet = Prober::named(KUBELET, cgroup.path());
    let tracer = Tracer::start(&[]);
    assert!(tracer.has("sock_ops"), "{}", tracer.start);
    let first = soon("a verdict", || {
        runtime.connect(11);
        kubelet.connect(9);
        iter::from_fn(|| tracer.records.recv_timeout(QUIET).ok()).find(|record| record["verdict"].is_object())
    });
    assert_eq!(first["process"]["pid"], kubelet.0.id(), "{first}");
}

/// Any process may call itself a kubelet as often as it likes.
#[test]
#[ignore = "needs root"]
fn a_flood_of_new_names_leaves_the_verdicts_of_others() {
    let (own, flooded, late) = (new_cgroup("named"), new_cgroup("flooded"), new_cgroup("late"));
    let mut kubelet = Prober::named(KUBELET, own.path());
    let tracer = Tracer::start(&[]);
    assert!(tracer.watches_cgroups(), "{}", tracer.start);
    let script = format!(
        "echo $$ > {}/cgroup.procs; while :; do printf {KUBELET} > /proc/$$/comm; done",
        flooded.path().display()
    );
    let _flood = Killed(Command::new("bash").args(["-c", &script]).spawn().unwrap());
    let is_loss = |record: &Value| record["type"] == "loss";
    let loss = soon("a loss", || tracer.records.recv_timeout(QUIET).ok().filter(is_loss));
    assert_eq!(loss["where"], "prober", "{loss}");
    tracer.expect_refusal(&mut kubelet, 9);
    let mut another = Prober::named(KUBELET, late.path());
    tracer.expect_refusal(&mut another, 11);
    let lost = tracer.end().into_iter().filter(is_loss);
    assert!(lost.clone().all(|it| it["where"] == "prober"), "{:?}", lost.collect::<Vec<_>>());
}

/// Whoever can send segments to a probe's socket can make the kernel drop any number of them.
#[test]
#[ignore = "needs root"]
fn a_flood_in_one_connection_leaves_the_verdicts_on_others() {
    let cgroup = new_cgroup("segments");
    let (mut flooded, mut other) = (Prober::start(&cgroup), Prober::start(&cgroup));
    // The events of the flood would fill the ring.
    let tracer = Tracer::start(&["--prober", PROBER, "--ring-kib", "64"]);
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    flooded.connect_and_wait(server.local_addr().unwrap().port());
    let (_accepted, client) = server.accept().unwrap();
    let _flood = Flood::start(server.local_addr().unwrap().port(), client.port());
    let is_loss = |record: &Value| record["type"] == "loss";
    let loss = soon("a loss", || tracer.records.recv_timeout(QUIET).ok().filter(is_loss));
    assert_eq!(loss["where"], "connection", "{loss}");
    tracer.expect_refusal(&mut other, 9);
    assert!(tracer.end().iter().all(|it| it["where"] != "ring"));
}

#[test]
#[ignore = "needs root"]
fn a_flood_of_links_that_are_set_down_leaves_the_verdicts() {
    let cgroup = new_cgroup("links");
    let mut prober = Prober::start(&cgroup);
    let tracer = Tracer::start(&["--prober", PROBER]);
    let script = r"exec ip -batch <(yes $'link set lo up\nlink set lo down')";
    let _flood = Killed(Command::new("unshare").args(["--net", "bash", "-c", script]).spawn().unwrap());
    let is_loss = |record: &Value| record["type"] == "loss" && record["where"] == "link";
    soon("a loss", || tracer.records.recv_timeout(QUIET).ok().filter(is_loss));
    tracer.expect_refusal(&mut prober, 9);
}

#[test]
#[ignore = "needs root"]
fn tracer_keeps_the_default_hooks_for_a_kubelet_in_the_root_cgroup() {
    let mut kubelet = Prober::named(KUBELET, &cgroup::root().unwrap());
    let tracer = Tracer::start(&[]);
    let start = &tracer.start;
    assert!(tracer.watches_the_node(), "{start}");
    assert!(!start["missing_hooks"].to_string().contains("sock_ops"), "it is not missing: {start}");
    let choice = &start["prober_hooks"];
    assert_eq!(choice["used"], false);
    assert!(choice["reason"].as_str().unwrap().contains("in the root"), "{choice}");
    tracer.expect_refusal(&mut kubelet, 9);
    assert!(!tracer.warnings().contains("sock_ops"));
}

/// Connects this often, and lets the client close first: each connection leaves a port in TIME_WAIT.
fn use_ports(count: u64) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    for _ in 0..count {
        let client = TcpStream::connect(address).unwrap();
        let accepted = server.accept().unwrap();
        drop((client, accepted));
    }
}

/// More than a hundredth of the ports.
const MANY: u64 = 700;

#[test]
#[ignore = "needs root"]
fn the_users_of_source_ports_are_counted_while_many_ports_are_in_use() {
    let cgroup = new_cgroup("ports");
    let _prober = Prober::start(&cgroup);
    use_ports(MANY);
    let tracer = Tracer::start(ALWAYS);
    assert!(tracer.has("sock_ops"));
    soon("the programs that count", || tracer.counts_ports().then_some(()));
    use_ports(MANY);
    let used = tracer.end().into_iter().find(|record| record["event"] == "port_pressure").unwrap();
    let users = used["ports"]["users"].as_array().unwrap();
    let own = users.iter().find(|user| user["pid"] == std::process::id()).unwrap();
    assert_eq!((own["connects"].as_u64(), own["time_wait_left"].as_u64()), (Some(MANY), Some(MANY)), "{own}");
}

#[test]
#[ignore = "needs root"]
fn nobody_pays_for_counted_ports_while_the_prober_has_enough() {
    let cgroup = new_cgroup("enough");
    let _prober = Prober::run(Command::new("unshare").args(["--net", "bash"]), PROBER, cgroup.path());
    // Of another network namespace.
    use_ports(MANY);
    let tracer = Tracer::start(ALWAYS);
    assert!(tracer.has("sock_ops"));
    use_ports(MANY);
    assert!(tracer.end().iter().all(|record| record["event"] != "port_pressure"));
    assert!(!tracer.counts_ports());
}

#[test]
#[ignore = "needs root"]
fn the_counting_of_ports_stops_and_starts_again() {
    let cgroup = new_cgroup("again");
    let mut prober = Prober::start(&cgroup);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let probers = vec![PROBER.to_owned()];
    let options = LoadOptions { probers, prober_hooks: ProberHooksWhen::Always, ..LoadOptions::default() };
    let mut loaded = ebpf::load(&options).unwrap();
    for _ in 0..2 {
        assert!(!loaded.is_attached(Hook::PortUse) && loaded.count_ports(true));
        prober.connect(9);
        let connects = |(pid, usage): (u32, PortUse)| (pid == prober.0.id()).then_some(usage.connects);
        assert_eq!(soon("a connect", || loaded.port_use(true).into_iter().find_map(connects)), 1);
        loaded.count_ports(false);
    }
}
