//! What runs beside the pipeline: threads, and tasks on a thread with an event loop of its own. However long they take,
//! no event waits. A [`Supervisor`] knows of each that panics.

use std::cell::OnceCell;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

type Task = Box<dyn FnOnce() + Send>;

/// Starts the parts of a run, and reports each that panics. The run then ends.
#[derive(Clone, Debug)]
pub struct Supervisor(UnboundedSender<&'static str>);

impl Supervisor {
    /// The receiver gets the name of each part that panics.
    pub fn new() -> (Self, UnboundedReceiver<&'static str>) {
        let (panics, panicked) = unbounded_channel();
        (Self(panics), panicked)
    }

    /// Runs a part on a thread of this name.
    pub fn thread(&self, part: &'static str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let guard = self.guard(part);
        let run = move || {
            let _guard = guard;
            run();
        };
        thread::Builder::new().name(part.to_owned()).spawn(run).map(drop)
    }

    pub fn task<F: Future<Output = ()>>(&self, part: &'static str, task: F) -> impl Future<Output = ()> + use<F> {
        let guard = self.guard(part);
        async move {
            let _guard = guard;
            task.await;
        }
    }

    fn guard(&self, part: &'static str) -> Guard {
        Guard { part, panics: self.0.clone() }
    }
}

/// Reports a panic: it is dropped while the part unwinds.
struct Guard {
    part: &'static str,
    panics: UnboundedSender<&'static str>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            // The receiver is gone once the run has ended.
            let _ = self.panics.send(self.part);
        }
    }
}

/// A thread that runs tasks. It starts with the first task, and ends with the last one when all handles are dropped.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    supervisor: Supervisor,
    tasks: OnceCell<UnboundedSender<Task>>,
}

impl Background {
    /// A thread of this name, which does not run yet.
    pub fn new(name: &'static str, supervisor: &Supervisor) -> Self {
        Self { name, supervisor: supervisor.clone(), tasks: OnceCell::new() }
    }

    /// Runs the future that `begin` makes on the thread. The receiver is disconnected when it has ended.
    pub fn run<F>(&self, begin: impl FnOnce() -> F + Send + 'static) -> io::Result<Receiver<()>>
    where
        F: Future<Output = ()> + 'static,
    {
        let (runs, running) = channel();
        let (name, supervisor) = (self.name, self.supervisor.clone());
        let task = move || {
            let task = async move {
                begin().await;
                drop(runs);
            };
            spawn_local(supervisor.task(name, task));
        };
        let tasks = match self.tasks.get() {
            Some(tasks) => tasks,
            None => {
                let started = self.start()?;
                self.tasks.get_or_init(|| started)
            }
        };
        // A thread that is gone drops the task, and with it the sender.
        let _ = tasks.send(Box::new(task));
        Ok(running)
    }

    fn start(&self) -> io::Result<UnboundedSender<Task>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (tasks, mut to_run) = unbounded_channel::<Task>();
        let run = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                while let Some(task) = to_run.recv().await {
                    task();
                }
            });
            runtime.block_on(local);
            // Do not wait for a name that is still being resolved.
            runtime.shutdown_background();
        };
        self.supervisor.thread(self.name, run)?;
        Ok(tasks)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn tasks_share_a_thread_and_outlive_who_started_them() {
        let background = Background::new("shared", &Supervisor::new().0);
        let (end, ended) = oneshot::channel::<()>();
        let (tell, received) = channel();
        let telling = tell.clone();
        let first = background.run(move || async move {
            let _ = telling.send(thread::current().id());
            let _ = ended.await;
        });
        let first = first.expect("a thread");
        let second = background.run(move || async move { _ = tell.send(thread::current().id()) }).expect("a thread");
        assert_eq!(received.recv_timeout(LONG), received.recv_timeout(LONG));
        assert_eq!(second.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        drop(background);
        assert_eq!(first.recv_timeout(Duration::from_millis(10)), Err(RecvTimeoutError::Timeout), "it goes on");
        end.send(()).expect("it waits");
        assert_eq!(first.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_task_that_panics_is_reported_and_the_others_go_on() {
        let (supervisor, mut panicked) = Supervisor::new();
        let background = Background::new("panics", &supervisor);
        let broken = background.run(|| async { assert!(std::hint::black_box(false), "on purpose") });
        let broken = broken.expect("a thread");
        assert_eq!(broken.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        let (tell, received) = channel();
        background.run(move || async move { _ = tell.send(()) }).expect("a thread");
        assert_eq!(received.recv_timeout(LONG), Ok(()));
        assert_eq!(panicked.try_recv(), Ok("panics"));
        assert!(panicked.try_recv().is_err(), "what ends well is not reported");
    }
}
