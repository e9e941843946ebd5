//! What ports speak: TLS, as a ClientHello or the answer to an HTTPS probe shows, plain HTTP or HTTP/2.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tracer_model::event::{Listen, Netns, TlsHello};
use tracer_model::recent::Recent;

/// Ports kept of each kind.
const MAX: usize = 4096;

/// What ports speak.
#[derive(Debug, Default)]
pub struct TlsPorts {
    /// The last ClientHello, by port, the listener's namespace if known, and address.
    hellos: Recent<(u16, Option<Netns>, IpAddr), u64, MAX>,
    answered: Recent<SocketAddr, Spoken, MAX>,
}

/// What a port speaks, as its answers to probes show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spoken {
    /// The last answer in TLS to an HTTPS probe.
    pub tls: Option<u64>,
    /// Its bytes were read. If not, any bytes to an HTTPS probe count as TLS until the kubelet outcome contradicts.
    read: bool,
    /// The last answer to an HTTPS probe was in another protocol: a ClientHello there shows nothing.
    pub plain: bool,
    /// A probe in plain HTTP has succeeded there. The port may speak TLS as well.
    pub http: bool,
    /// A probe in HTTP/2 without TLS (gRPC) has succeeded there.
    pub http2: bool,
}

impl TlsPorts {
    pub(super) fn observe_hello(&mut self, time: u64, hello: &TlsHello) {
        self.hellos.insert((hello.addr.port(), hello.netns, hello.addr.ip()), time);
    }

    /// An HTTPS probe got an answer in TLS; `read`: its bytes show that.
    pub fn observe_answer(&mut self, time: u64, dst: SocketAddr, read: bool) {
        self.note(dst, |it| {
            it.plain = false;
            if read || !it.read {
                (it.tls, it.read) = (Some(time), read);
            }
        });
    }

    /// An HTTPS probe got an answer in another protocol. A port may speak both: what was read in TLS stays.
    pub fn observe_plain(&mut self, dst: SocketAddr) {
        self.note(dst, |it| (it.tls, it.plain) = (it.tls.filter(|_| it.read), true));
    }

    /// An answer shows what the port speaks.
    pub fn note(&mut self, dst: SocketAddr, change: impl FnOnce(&mut Spoken)) {
        change(self.answered.or_default(dst));
    }

    pub fn spoken(&self, dst: SocketAddr) -> Spoken {
        self.answered.get(&dst).copied().unwrap_or_default()
    }

    /// No process listens on the port any more. The next one may speak another protocol. `is_there`: the listener's
    /// namespace is known to have the address.
    pub(super) fn forget(&mut self, listener: &Listen, is_there: impl Fn(IpAddr) -> bool) {
        let ended = listener.addr.ip().to_canonical();
        let served = |ip: IpAddr| (ended.is_unspecified() || ended == ip) && is_there(ip);
        let other = |netns: Option<Netns>| netns.is_some_and(|netns| netns != listener.netns);
        self.hellos.retain(|(port, netns, _), _| *port != listener.addr.port() || other(*netns));
        self.answered.retain(|dst, _| dst.port() != listener.addr.port() || !served(dst.ip()));
    }

    /// Another namespace has this number now.
    pub(super) fn forget_namespace(&mut self, netns: Netns) {
        self.hellos.retain(|(_, at, _), _| *at != Some(netns));
    }

    /// The last ClientHello at a listener: by its namespace, or by its address if one of the namespaces is not known. A
    /// loopback address does not count, as every namespace has it.
    pub fn hello(&self, netns: Option<Netns>, dst: SocketAddr) -> Option<u64> {
        let from = (dst.port(), None, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.hellos
            .range(from..)
            .take_while(|((port, ..), _)| *port == dst.port())
            .filter(|((_, at, ip), _)| match (at, netns) {
                (Some(at), Some(netns)) => *at == netns,
                _ => *ip == dst.ip() && !ip.is_loopback(),
            })
            .map(|(_, time)| *time)
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn hello(time: u64, netns: Option<Netns>, at: &str, ports: &mut TlsPorts) {
        ports.observe_hello(time, &TlsHello { netns, addr: address(at) });
    }

    fn end(netns: Netns, at: &str) -> Listen {
        Listen::new(netns, address(at), prober(), false)
    }

    #[test]
    fn a_listener_is_found_by_its_namespace_or_by_an_address_of_its_own() {
        let mut ports = TlsPorts::default();
        hello(1, Some(POD), "127.0.0.1:443", &mut ports);
        hello(2, Some(POD), "10.88.0.2:443", &mut ports);
        hello(3, None, "10.88.0.3:443", &mut ports);
        hello(4, Some(POD), "10.88.0.2:444", &mut ports);
        assert_eq!(ports.hello(Some(POD), address("10.88.0.9:443")), Some(2), "whatever its address");
        assert_eq!(ports.hello(Some(NODE), address("10.88.0.2:443")), None, "another namespace");
        assert_eq!(ports.hello(None, address("10.88.0.2:443")), Some(2));
        assert_eq!(ports.hello(Some(NODE), address("10.88.0.3:443")), Some(3));
        assert_eq!(ports.hello(None, address("127.0.0.1:443")), None, "every namespace has that");
    }

    #[test]
    fn the_end_of_a_listener_forgets_its_port() {
        let mut ports = TlsPorts::default();
        hello(1, Some(POD), "10.88.0.2:443", &mut ports);
        hello(1, Some(NODE), "10.88.0.1:443", &mut ports);
        hello(1, Some(POD), "10.88.0.2:444", &mut ports);
        ports.observe_answer(1, address("10.88.0.2:443"), true);
        ports.observe_answer(1, address("10.88.0.2:444"), true);
        ports.forget(&end(POD, "[::]:443"), |_| true);
        let hellos = [(POD, 443), (NODE, 443), (POD, 444)];
        let known = hellos.map(|(netns, port)| ports.hello(Some(netns), SocketAddr::from(([10, 88, 0, 9], port))));
        assert_eq!(known, [None, Some(1), Some(1)]);
        assert_eq!(["10.88.0.2:443", "10.88.0.2:444"].map(|at| ports.spoken(address(at)).tls), [None, Some(1)]);
    }

    #[test]
    fn the_last_answer_counts_until_the_listener_ends() {
        let (mut ports, at) = (TlsPorts::default(), address("10.88.0.2:443"));
        let known = |ports: &TlsPorts| (ports.spoken(at).plain, ports.spoken(at).tls);
        ports.observe_answer(1, at, false);
        ports.observe_plain(at);
        assert_eq!(known(&ports), (true, None));
        ports.observe_answer(2, at, true);
        assert_eq!(known(&ports), (false, Some(2)));
        ports.observe_answer(3, at, false);
        ports.observe_plain(at);
        assert_eq!(known(&ports), (true, Some(2)), "an answer that was read in TLS stays");
        ports.forget(&end(POD, "[::]:443"), |_| true);
        assert_eq!(known(&ports), (false, None));
    }
}
