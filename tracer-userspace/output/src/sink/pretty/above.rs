//! The verdicts that are on the screen already. A probe that keeps failing gets the same verdict every few seconds. If a
//! verdict repeats or amends an earlier one, only its new part is printed.

use std::collections::VecDeque;

use tracer_model::recent::remember;
use tracer_model::record::{Verdict, VerdictBody};

/// Verdicts remembered. A reader does not look further up.
const REMEMBERED: usize = 64;

/// The last verdicts that were printed.
#[derive(Debug, Default)]
pub(super) struct Above(VecDeque<Shown>);

#[derive(Debug)]
pub(super) struct Shown {
    seq: u64,
    /// The number of the verdict that was printed completely.
    pub(super) whole: u64,
    pub(super) body: VerdictBody,
}

impl Above {
    /// The earlier verdict on the screen that this one amends: of the same attempt, without a contradiction. If it revises
    /// none, the one that it repeats: of another attempt of the same probe.
    pub(super) fn before(&self, body: &VerdictBody) -> Option<&Shown> {
        self.0.iter().rev().find(|it| match body.revises {
            Some(seq) => it.seq == seq && amends(body, &it.body),
            None => repeats(body, &it.body),
        })
    }

    pub(super) fn remember(&mut self, seq: u64, body: &VerdictBody) {
        let whole = self.before(body).map_or(seq, |before| before.whole);
        remember(REMEMBERED, &mut self.0, Shown { seq, whole, body: body.clone() });
    }
}

fn amends(body: &VerdictBody, above: &VerdictBody) -> bool {
    let taken_back = above.kubelet.is_some() && body.kubelet.is_none()
        || above.culprit.is_some() && body.culprit.is_none()
        || !above.verdict.also.iter().all(|cause| body.verdict.also.contains(cause));
    above.verdict.cause == body.verdict.cause && !taken_back
}

/// Whether hooks and words are the same. Only numbers may differ, such as a duration.
fn repeats(body: &VerdictBody, above: &VerdictBody) -> bool {
    let (now, then) = (&body.verdict, &above.verdict);
    let hooks = |verdict: &Verdict| verdict.evidence.iter().map(|it| it.hook.clone()).collect::<Vec<_>>();
    let same = now.cause == then.cause && now.confidence == then.confidence && now.also == then.also;
    let same = same && hooks(now) == hooks(then) && body.culprit.is_some() == above.culprit.is_some();
    let target = (&body.k8s, body.dst, body.subject) == (&above.k8s, above.dst, above.subject);
    same && target && probe(body) == probe(above) && worded(&now.summary).eq(worded(&then.summary))
}

fn probe(body: &VerdictBody) -> Option<impl PartialEq + use<>> {
    body.probe.as_ref().map(|probe| (probe.probe_type, probe.handler, probe.port, probe.path.clone()))
}

fn worded(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|it| !it.is_ascii_digit() && *it != '.')
}
