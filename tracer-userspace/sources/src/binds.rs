//! Whether the process that has bound a port listens there, where no hook reports `listen(2)`.
//!
//! Until this is known, the core takes the port for one that may have a listener.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;

use tracer_model::event::{Listen, ObservationKind};
use tracer_node::clock::thread_cpu_ns;
use tracer_node::listening::is_listening;
use tracer_node::namespaces::Namespaces;

/// When to look, milliseconds after the bind. Nearly all servers listen before the first look.
const AFTER_MS: [u64; 7] = [0, 5, 20, 100, 500, 2_000, 10_000];
/// How many sockets wait for each look. A new one drops the oldest.
const MAX: usize = 256;

/// The longest pause after the looks at one time.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Sockets that have bound a port, by the number of looks so far. Each queue has the order of their time.
type Waiting = [VecDeque<(Instant, Listen)>; AFTER_MS.len()];

/// Takes sockets that have just bound a port, and reports whether they listen. After a look comes a pause of so many
/// times its length.
pub(super) fn check(bound: Receiver<Listen>, tx: &Sender<ObservationKind>, pauses: u32) {
    let (mut waiting, mut namespaces) = (Waiting::default(), Namespaces::default());
    loop {
        let first = match next(&bound, &waiting) {
            Ok(socket) => Some(socket),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let used = thread_cpu_ns();
        first.into_iter().chain(bound.try_iter()).for_each(|socket| begin(&mut waiting, Instant::now(), socket));
        for socket in look(&mut waiting, Instant::now(), |socket| is_listening(socket, &mut namespaces)) {
            if tx.blocking_send(ObservationKind::Listen(socket)).is_err() {
                return;
            }
        }
        // A pod can bind ports all the time, and have any number of open files to look through. Others wait, too.
        let pause = Duration::from_nanos(thread_cpu_ns().saturating_sub(used)) * pauses;
        std::thread::sleep(pause.min(LONGEST_PAUSE));
    }
}

/// Waits for the next socket, or until a look is due.
fn next(bound: &Receiver<Listen>, waiting: &Waiting) -> Result<Listen, RecvTimeoutError> {
    let due = waiting.iter().zip(AFTER_MS).filter_map(|(queue, after)| Some(queue.front()?.0 + ms(after))).min();
    bound.recv_timeout(due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now())))
}

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A process that binds an address again and again waits once.
fn begin(waiting: &mut Waiting, at: Instant, socket: Listen) {
    let key = |it: &Listen| (it.netns, it.addr, it.actor.pid);
    waiting.iter_mut().for_each(|queue| queue.retain(|(_, it)| key(it) != key(&socket)));
    put(&mut waiting[0], at, socket);
}

fn put(queue: &mut VecDeque<(Instant, Listen)>, at: Instant, socket: Listen) {
    if queue.len() == MAX {
        queue.pop_front();
    }
    queue.push_back((at, socket));
}

/// Looks at the sockets that are due. Returns those that listen, and at the first look also those that do not. What could
/// not be read stays open.
fn look(waiting: &mut Waiting, now: Instant, mut listens: impl FnMut(&Listen) -> Option<bool>) -> Vec<Listen> {
    let mut news = Vec::new();
    for (looks, after) in AFTER_MS.into_iter().enumerate() {
        while let Some((at, socket)) = waiting[looks].pop_front_if(|(at, _)| *at + ms(after) <= now) {
            let seen = listens(&socket);
            let begins = seen == Some(true);
            if begins || (looks == 0 && seen.is_some()) {
                news.push(Listen { begins, bound: !begins, ..socket.clone() });
            }
            if let Some(later) = waiting.get_mut(looks + 1).filter(|_| !begins) {
                put(later, at, socket);
            }
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::{Actor, Netns};

    fn socket(port: u16) -> Listen {
        let actor = Actor { pid: 5, tid: 5, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None };
        Listen { bound: true, ..Listen::new(Netns(1), ([127, 0, 0, 1], port).into(), actor, true) }
    }

    #[test]
    fn a_server_may_listen_late_or_never() {
        let (mut waiting, began) = (Waiting::default(), Instant::now());
        (1..=4).for_each(|port| put(&mut waiting[0], began, socket(port)));
        let mut news = |at: u64, listening: &[u16]| {
            let found = look(&mut waiting, began + ms(at), |socket| {
                let port = socket.addr.port();
                (port < 4).then(|| listening.contains(&port))
            });
            found.iter().map(|it| (it.addr.port(), it.begins, it.bound)).collect::<Vec<_>>()
        };
        assert_eq!(news(0, &[1]), [(1, true, false), (2, false, true), (3, false, true)]);
        assert_eq!(news(80, &[]), []);
        assert_eq!(news(100, &[1, 2]), [(2, true, false)], "late");
        assert_eq!(news(10_000, &[]), []);
        assert_eq!(news(20_000, &[3]), [], "after the last look");
    }

    #[test]
    fn a_socket_that_binds_again_waits_once() {
        let (mut waiting, at) = (Waiting::default(), Instant::now());
        for port in [1, 2, 1] {
            begin(&mut waiting, at, socket(port));
            look(&mut waiting, at, |_| Some(false));
        }
        assert_eq!(waiting.each_ref().map(VecDeque::len), [0, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_flood_drops_the_oldest() {
        let mut queue = VecDeque::new();
        (0..=MAX as u16).for_each(|port| put(&mut queue, Instant::now(), socket(port)));
        assert_eq!((queue.len(), queue[0].1.addr.port()), (MAX, 1));
    }
}
