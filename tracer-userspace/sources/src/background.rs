//! What runs beside the pipeline: tasks on a thread with an event loop of its own. However long they take, no event waits.

use std::cell::OnceCell;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use tokio::runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

type Task = Box<dyn FnOnce() + Send>;

/// A thread that runs tasks. It begins with the first one, and ends once nobody holds this and the last task is over.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    tasks: OnceCell<UnboundedSender<Task>>,
}

impl Background {
    /// A thread of this name, which does not run yet.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, tasks: OnceCell::new() }
    }

    /// Runs what `begin` makes, on the thread. The receiver is disconnected when that is over.
    ///
    /// # Errors
    /// No event loop or no thread is to be had.
    pub fn run<F>(&self, begin: impl FnOnce() -> F + Send + 'static) -> io::Result<Receiver<()>>
    where
        F: Future<Output = ()> + 'static,
    {
        let (runs, running) = channel();
        let task = move || {
            spawn_local(async move {
                begin().await;
                drop(runs);
            });
        };
        let tasks = match self.tasks.get() {
            Some(tasks) => tasks,
            None => {
                let started = start(self.name)?;
                self.tasks.get_or_init(|| started)
            }
        };
        // A thread that is gone drops the task, and with it the sender.
        let _ = tasks.send(Box::new(task));
        Ok(running)
    }
}

fn start(name: &str) -> io::Result<UnboundedSender<Task>> {
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
        // A name that is still being resolved is not waited for.
        runtime.shutdown_background();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(tasks)
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
        let background = Background::new("shared");
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
    fn a_task_that_panics_is_over_and_the_others_are_not() {
        let background = Background::new("panics");
        let broken = background.run(|| async { assert!(std::hint::black_box(false), "on purpose") });
        let broken = broken.expect("a thread");
        assert_eq!(broken.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        let (tell, received) = channel();
        background.run(move || async move { _ = tell.send(()) }).expect("a thread");
        assert_eq!(received.recv_timeout(LONG), Ok(()));
    }
}
