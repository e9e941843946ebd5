//! What ports speak: TLS, as a ClientHello or the answer to an HTTPS probe shows, plain HTTP or HTTP/2.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tracer_model::event::{Listen, Netns, TlsHello};
use tracer_model::recent::Recent;

/// Ports kept of each kind.
const MAX: usize = 4096;

/// When each port last spoke TLS.
#[derive(Debug, Default)]
pub struct TlsPorts {
    /// The last ClientHello, by port, the listener's namespace if known, and address.
    hellos: Recent<(u16, Option<Netns>, IpAddr), u64, MAX>,
    answers: Recent<SocketAddr, u64, MAX>,
    /// Ports that last answered a ClientHello with something else than TLS: a ClientHello there shows nothing.
    plain: Recent<SocketAddr, (), MAX>,
    /// Ports that answered a probe in plain HTTP with success. They may speak TLS as well.
    http: Recent<SocketAddr, (), MAX>,
    /// Ports that answered a probe in HTTP/2 without TLS (gRPC) with success.
    http2: Recent<SocketAddr, (), MAX>,
}

impl TlsPorts {
    pub(super) fn observe_hello(&mut self, time: u64, hello: &TlsHello) {
        self.hellos.insert((hello.addr.port(), hello.netns, hello.addr.ip()), time);
    }

    /// An HTTPS probe got an answer in TLS.
    pub fn observe_answer(&mut self, time: u64, dst: SocketAddr) {
        self.answers.insert(dst, time);
        self.plain.remove(&dst);
    }

    /// An HTTPS probe got an answer in another protocol.
    pub fn observe_plain(&mut self, dst: SocketAddr) {
        self.plain.insert(dst, ());
        self.answers.remove(&dst);
    }

    /// A probe in plain HTTP succeeded.
    pub fn observe_http(&mut self, dst: SocketAddr) {
        self.http.insert(dst, ());
    }

    /// A probe in HTTP/2 without TLS succeeded.
    pub fn observe_http2(&mut self, dst: SocketAddr) {
        self.http2.insert(dst, ());
    }

    /// A probe in HTTP/2 without TLS has succeeded there.
    pub fn speaks_http2(&self, dst: SocketAddr) -> bool {
        self.http2.get(&dst).is_some()
    }

    /// A probe in plain HTTP has succeeded there.
    pub fn speaks_http(&self, dst: SocketAddr) -> bool {
        self.http.get(&dst).is_some()
    }

    /// The last answer to an HTTPS probe was in another protocol.
    pub fn is_plain(&self, dst: SocketAddr) -> bool {
        self.plain.get(&dst).is_some()
    }

    /// No process listens on the port any more. The next one may speak another protocol.
    pub(super) fn forget(&mut self, listener: &Listen) {
        let other = |netns: Option<Netns>| netns.is_some_and(|netns| netns != listener.netns);
        self.hellos.retain(|(port, netns, _), _| *port != listener.addr.port() || other(*netns));
        self.answers.retain(|dst, _| dst.port() != listener.addr.port());
        self.plain.retain(|dst, ()| dst.port() != listener.addr.port());
        self.http.retain(|dst, ()| dst.port() != listener.addr.port());
        self.http2.retain(|dst, ()| dst.port() != listener.addr.port());
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

    /// The last answer to an HTTPS probe.
    pub fn answer(&self, dst: SocketAddr) -> Option<u64> {
        self.answers.get(&dst).copied()
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
        let actor = Actor { pid: 5, tid: 5, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None };
        Listen { netns, addr: address(at), actor, begins: false, bound: false }
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
        ports.observe_answer(1, address("10.88.0.2:443"));
        ports.observe_answer(1, address("10.88.0.2:444"));
        ports.forget(&end(POD, "[::]:443"));
        let hellos = [(POD, 443), (NODE, 443), (POD, 444)];
        let known = hellos.map(|(netns, port)| ports.hello(Some(netns), SocketAddr::from(([10, 88, 0, 9], port))));
        assert_eq!(known, [None, Some(1), Some(1)]);
        assert_eq!(["10.88.0.2:443", "10.88.0.2:444"].map(|at| ports.answer(address(at))), [None, Some(1)]);
    }

    #[test]
    fn the_last_answer_counts_until_the_listener_ends() {
        let (mut ports, at) = (TlsPorts::default(), address("10.88.0.2:443"));
        ports.observe_answer(1, at);
        ports.observe_plain(at);
        assert_eq!((ports.is_plain(at), ports.answer(at)), (true, None));
        ports.observe_answer(2, at);
        assert_eq!((ports.is_plain(at), ports.answer(at)), (false, Some(2)));
        ports.observe_plain(at);
        ports.forget(&end(POD, "[::]:443"));
        assert!(!ports.is_plain(at));
    }

    #[test]
    fn the_port_with_the_oldest_answer_is_dropped_first() {
        let mut ports = TlsPorts::default();
        let at = |number: usize| {
            let [high, low] = u16::try_from(number).expect("a number").to_be_bytes();
            SocketAddr::from(([10, 88, high, low], 443))
        };
        (1..=MAX).for_each(|number| ports.observe_answer(1, at(number)));
        ports.observe_answer(2, at(1));
        ports.observe_answer(3, at(0));
        assert_eq!([0, 1, 2, 3].map(|number| ports.answer(at(number))), [Some(3), Some(2), None, Some(1)]);
    }
}
