//! Follows one kind of object: one streaming list where the server has it, else a list and then a watch. A failure is
//! logged once and retried after a pause. Meanwhile the known objects stay known.

use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kube::core::WatchEvent;
use kube::core::watch::Bookmark;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use super::board::Board;
use super::failure::{ApiRequest, Failure};
use super::known::Known;
use super::objects::{Watched, garbage, list_of};
use super::pace::{Pace, part, random};
use super::request::{Scope, open, whole};
use tracer_model::lines::Lines;

/// The longest line of a watch. etcd's limit for an object is 1.5 MiB, and its JSON is longer.
const OBJECT_MAX: usize = 8 << 20;
/// The server ends a watch after one to two times so many seconds, as with client-go.
const WATCH_S: u32 = 300;
/// The bookmark that ends the list of a streaming list has this annotation.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

pub(super) struct ResourceFollower<W: Watched> {
    client: Client,
    scope: Scope,
    pace: Pace,
    board: Board,
    known: Known<W>,
    /// Whether a list comes first, then a watch from its position. Else the watch begins with all objects (Kubernetes
    /// from 1.27 on, if the feature gate `WatchList` is on).
    lists: bool,
    /// Where the next watch begins. If absent, all objects must be read again.
    position: Option<String>,
    /// Whether the last session began with a list.
    listed: bool,
    /// The position that the server no longer knows: its cache may be read if it is not older.
    forgotten: Option<String>,
    /// Whether to bypass the server's cache: it gave a position that it did not know itself.
    consistent: bool,
    /// Failures in a row.
    failures: u32,
    /// Whether the last answer was unreadable: an open connection is no success yet.
    garbled: bool,
    /// Whether an unreadable object was already logged.
    reported_skipped: bool,
}

impl<W: Watched> ResourceFollower<W> {
    pub(super) fn new(client: Client, scope: Scope, pace: Pace, board: Board) -> Self {
        Self {
            client,
            scope,
            pace,
            board,
            known: Known::default(),
            lists: W::FROM_NOW,
            position: None,
            listed: false,
            forgotten: None,
            consistent: false,
            failures: 0,
            garbled: false,
            reported_skipped: false,
        }
    }

    /// Never ends by itself.
    pub(super) async fn run(mut self) {
        loop {
            let began = Instant::now();
            let end = self.session().await;
            if began.elapsed() >= self.pace.stable {
                self.failures = 0;
            }
            let wait = self.judge(end, began.elapsed());
            tokio::time::sleep(wait).await;
        }
    }

    /// Reacts to the end of a session, and returns the wait before the next one.
    fn judge(&mut self, end: Result<(), Failure>, lasted: Duration) -> Duration {
        match end {
            Ok(()) if lasted >= self.pace.stable => {
                if std::mem::take(&mut self.garbled) {
                    self.board.watching();
                }
                return part(self.pace.rewatch);
            }
            // A server that ends every watch at once must not be asked in a busy loop.
            Ok(()) => {}
            Err(Failure::NotStreaming) => {
                self.lists = true;
                return Duration::ZERO;
            }
            Err(Failure::Gone) => {
                self.forgotten = self.position.take().filter(|_| !self.listed);
                self.consistent = true;
            }
            Err(ref failure) => {
                self.garbled = matches!(failure, Failure::Garbage(_));
                self.board.failed(failure);
            }
        }
        self.failures = self.failures.saturating_add(1);
        self.pace.after(self.failures, end.err().and_then(|failure| failure.after()))
    }

    async fn session(&mut self) -> Result<(), Failure> {
        self.listed = self.position.is_none() && self.lists;
        if self.listed {
            self.list().await?;
        }
        self.watch().await
    }

    async fn list(&mut self) -> Result<(), Failure> {
        let asked = self.asked("list", false);
        let query = self.list_query();
        let body = self.open(asked, query).await?;
        let list = whole(body, self.pace.answer).await?;
        let (position, objects) = list_of::<W>(&list)?;
        let mut fresh = Known::default();
        for object in objects {
            match object {
                Ok(object) => _ = fresh.put(object, &self.scope.node),
                Err(error) => self.skip(&error),
            }
        }
        self.position = Some(position);
        self.replace(fresh);
        Ok(())
    }

    /// Watches until the server ends the watch.
    async fn watch(&mut self) -> Result<(), Failure> {
        let streaming = self.position.is_none();
        let asked = self.asked("watch", streaming);
        let body = self.open(asked, self.watch_query()).await?;
        if !streaming && !self.garbled {
            self.board.watching();
        }
        let mut watch = Watch { body, fresh: streaming.then(Known::default), asked, reported: None };
        let end = self.read(&mut watch).await;
        if watch.reported.is_some() {
            self.publish();
        }
        end
    }

    async fn read(&mut self, watch: &mut Watch<W>) -> Result<(), Failure> {
        let (mut lines, mut last_piece) = (Lines::new(OBJECT_MAX), Instant::now());
        loop {
            let silence = if watch.fresh.is_some() { self.pace.sync } else { self.pace.silence };
            let silent = last_piece + silence;
            let due = watch.reported.unwrap_or(silent).min(silent);
            match timeout_at(due, watch.body.frame()).await {
                Ok(None) => return end_of(lines.end(), watch.fresh.is_some()),
                Ok(Some(Err(error))) if watch.fresh.is_some() => return Err(Failure::of_client(&error)),
                // Load balancers and restarts cut connections. It is an outage only if the next request fails.
                Ok(Some(Err(_))) => return Ok(()),
                Ok(Some(Ok(frame))) => {
                    last_piece = Instant::now();
                    let chunk = frame.into_data().unwrap_or_default();
                    lines.feed(&chunk, |line| self.take(line.ok_or_else(too_long)?, watch))?;
                    if watch.reported.is_some_and(|due| last_piece >= due) {
                        watch.reported = None;
                        self.publish();
                    }
                }
                Err(_) if watch.reported.take().is_some() => self.publish(),
                Err(_) if watch.fresh.is_some() => return Err(Failure::NotStreaming),
                // The connection may be dead: begin another watch at the same position.
                Err(_) => return Ok(()),
            }
        }
    }

    fn take(&mut self, line: &[u8], watch: &mut Watch<W>) -> Result<(), Failure> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(line) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => self.take_object(object, true, watch),
            Ok(WatchEvent::Deleted(object)) => self.take_object(object, false, watch),
            Ok(WatchEvent::Bookmark(mark)) => self.take_mark(mark, watch),
            Ok(WatchEvent::Error(status)) => return Err(Failure::of_event(*status, watch.asked)),
            // A field has another type, or this program does not know the type of event.
            Err(error) if error.is_data() => {
                self.skip(&error);
                return Ok(());
            }
            Err(error) => return Err(garbage(error)),
        }
        if watch.fresh.is_none() && std::mem::take(&mut self.garbled) {
            self.board.watching();
        }
        Ok(())
    }

    /// Logs an unreadable object. All other objects are still used.
    fn skip(&mut self, error: &serde_json::Error) {
        if !std::mem::replace(&mut self.reported_skipped, true) {
            tracing::warn!("cluster API: tracer skips one of the {}, because it cannot be read: {error}", W::RESOURCE);
        }
    }

    fn take_object(&mut self, object: W, is_there: bool, watch: &mut Watch<W>) {
        let version = object.metadata().resource_version.clone();
        let known = watch.fresh.as_mut().unwrap_or(&mut self.known);
        let changed = if is_there { known.put(object, &self.scope.node) } else { known.remove(&object) };
        if watch.fresh.is_none() {
            self.position = version.or_else(|| self.position.take());
            if changed {
                watch.reported.get_or_insert(Instant::now() + self.pace.debounce);
            }
        }
    }

    fn take_mark(&mut self, mark: Bookmark, watch: &mut Watch<W>) {
        if mark.metadata.annotations.get(END_OF_LIST).is_some_and(|it| it == "true")
            && let Some(fresh) = watch.fresh.take()
        {
            self.replace(fresh);
        }
        if watch.fresh.is_none() {
            self.position = Some(mark.metadata.resource_version);
        }
    }

    /// Replaces all known objects.
    fn replace(&mut self, fresh: Known<W>) {
        self.known = fresh;
        self.consistent = false;
        self.publish();
        self.board.watching();
    }

    fn publish(&self) {
        self.board.publish::<W>(self.known.all());
    }

    fn asked(&self, verb: &'static str, streaming: bool) -> ApiRequest {
        ApiRequest { verb, resource: W::RESOURCE, group: "", streaming }
    }

    /// Asks for the server's cache (`0`) at first: lists from etcd for 15,000 nodes would read every pod for each node.
    /// After a restart of the server all of them ask again at once. One try with a forgotten position reads its cache, too.
    fn list_query(&mut self) -> String {
        let forgotten = self.forgotten.take();
        match self.consistent {
            // Only the position is wanted, so ask for one object: that costs the server least.
            _ if W::FROM_NOW => "limit=1".into(),
            true => self.scope.selected::<W>(forgotten.map(|at| format!("resourceVersion={at}")).unwrap_or_default()),
            false => self.scope.selected::<W>("resourceVersion=0".into()),
        }
    }

    fn watch_query(&self) -> String {
        let seconds = WATCH_S + random() % WATCH_S;
        let from = match &self.position {
            Some(position) => format!("resourceVersion={position}"),
            None if self.consistent => "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
            None => "resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
        };
        let query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&{from}");
        self.scope.selected::<W>(query)
    }

    async fn open(&self, asked: ApiRequest, query: String) -> Result<Body, Failure> {
        let path = self.scope.path(W::RESOURCE);
        open(&self.client, &format!("{path}?{query}"), asked, self.pace.answer).await
    }
}

struct Watch<W: Watched> {
    body: Body,
    /// The objects of a streaming list that is not complete yet.
    fresh: Option<Known<W>>,
    asked: ApiRequest,
    /// When to report the changes.
    reported: Option<Instant>,
}

/// The end of an answer, after this part of a line. A proxy may have answered in the server's place, and not with JSON.
fn end_of(rest: Option<&[u8]>, is_list: bool) -> Result<(), Failure> {
    match rest.filter(|rest| !rest.trim_ascii_start().starts_with(b"{")).map(serde_json::from_slice::<IgnoredAny>) {
        Some(Err(error)) => Err(garbage(error)),
        _ if is_list => Err(Failure::Cut),
        _ => Ok(()),
    }
}

fn too_long() -> Failure {
    Failure::Garbage(format!("an object of more than {OBJECT_MAX} bytes"))
}
