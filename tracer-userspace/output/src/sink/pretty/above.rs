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
struct Shown {
    seq: u64,
    /// The number of the verdict that was printed completely.
    whole: u64,
    body: VerdictBody,
}

/// How a verdict relates to an earlier one on the screen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relation<'a> {
    /// The same attempt, without a contradiction.
    Amends(&'a VerdictBody),
    /// Another attempt of the same probe. The number is that of the verdict that was printed completely.
    Repeats(u64, &'a VerdictBody),
}

impl<'a> Relation<'a> {
    pub(super) const fn body(self) -> &'a VerdictBody {
        match self {
            Self::Amends(body) | Self::Repeats(_, body) => body,
        }
    }
}

impl Above {
    pub(super) fn relation(&self, body: &VerdictBody) -> Option<Relation<'_>> {
        let mut latest = self.0.iter().rev();
        match body.revises {
            Some(seq) => latest.find(|it| it.seq == seq && amends(body, &it.body)).map(|it| Relation::Amends(&it.body)),
            None => latest.find(|it| repeats(body, &it.body)).map(|it| Relation::Repeats(it.whole, &it.body)),
        }
    }

    pub(super) fn remember(&mut self, seq: u64, body: &VerdictBody) {
        let whole = match self.relation(body) {
            Some(Relation::Repeats(whole, _)) => whole,
            Some(Relation::Amends(_)) => {
                self.0.iter().find(|it| Some(it.seq) == body.revises).map_or(seq, |it| it.whole)
            }
            None => seq,
        };
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
