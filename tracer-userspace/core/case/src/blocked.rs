//! How netfilter stopped an attempt, and which rules can have done it. A case keeps this after the first time.

use std::cell::OnceCell;

use crate::reject_answer::RejectAnswer;
use tracer_attempts::correlate::firewalls::Reading;
use tracer_model::event::{FirewallRule, Netns, PacketDrop};
use tracer_model::record::Evidence;

/// How netfilter stopped the attempt.
#[derive(Clone, Debug)]
pub struct Blocked<'a> {
    /// What shows that netfilter stopped it.
    pub evidence: Vec<Evidence>,
    /// The packet that it dropped, if that was seen.
    pub drop: Option<(u64, &'a PacketDrop)>,
    /// Where.
    pub netns: Option<Netns>,
    /// What it answered; absent if nothing.
    pub answer: Option<RejectAnswer>,
    /// Which rules can have done it, once they were read.
    pub blame: Option<Blame<'a>>,
}

/// Answers that several rules need. A case computes each once, because that goes through all rules of a namespace.
#[derive(Debug, Default)]
pub struct Blocks<'a> {
    /// With an answer.
    pub answered: OnceCell<Option<Blocked<'a>>>,
    /// Without one, as far as was seen.
    pub silent: OnceCell<Option<Blocked<'a>>>,
}

/// The rules that can have dropped a packet.
#[derive(Clone, Debug)]
pub struct Blame<'a> {
    /// In the order in which a packet reaches them.
    pub rules: Vec<&'a FirewallRule>,
    /// All rules that can have done it were read, after the drop.
    pub complete: bool,
    /// One of the rules did it, and nothing else of netfilter.
    pub by_rule: bool,
    /// The kernel hides the functions, and with them the hook: the rules are of any hook.
    pub nameless: bool,
    /// No packet of this kind gets past them.
    pub take_all: bool,
    /// Follows the sentence, if all rules were read and none fits.
    pub if_none: &'static str,
    /// Where they were read.
    pub reading: &'a Reading,
}
