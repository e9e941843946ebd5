//! Counts how often each text came, in bounded memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Texts that are counted: more than a node has pods.
const MAX: usize = 512;

/// How often each text came.
#[derive(Debug, Default)]
pub(super) struct TextCounts<K = String> {
    counts: BTreeMap<K, u64>,
    /// There was no room for some texts.
    overflowed: bool,
}

impl<K: Ord> TextCounts<K> {
    pub(super) fn add(&mut self, text: K, count: u64) {
        if self.counts.len() < MAX || self.counts.contains_key(&text) {
            let sum = self.counts.entry(text).or_default();
            *sum = sum.saturating_add(count);
        } else {
            self.overflowed = true;
        }
    }

    /// The most frequent texts with their counts, and how many more there are, in words.
    pub(super) fn top(&self, most: usize) -> (Vec<(&K, u64)>, Option<String>) {
        let mut all: Vec<_> = self.counts.iter().map(|(text, n)| (text, *n)).collect();
        all.sort_by_key(|(_, n)| Reverse(*n));
        let more = all.len().saturating_sub(most);
        all.truncate(most);
        let more = match (more, self.overflowed) {
            (0, false) => None,
            (more, false) => Some(format!("{more} more")),
            (more, true) => Some(format!("more than {more} more")),
        };
        (all, more)
    }
}

impl TextCounts {
    pub(super) fn remove(&mut self, text: &str) {
        if let Some(n) = self.counts.get_mut(text) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.counts.remove(text);
            }
        }
    }

    /// `a (3), b (1), and 2 more`; the numbers only where there are several.
    pub(super) fn list(&self, most: usize) -> String {
        let (top, more) = self.top(most);
        let several = top.len() > 1;
        let reported = |(text, n): &(&String, u64)| if several { format!("{text} ({n})") } else { (*text).clone() };
        let more = more.map(|more| format!("and {more}"));
        top.iter().map(reported).chain(more).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_come_first() {
        let mut tally: TextCounts = TextCounts::default();
        for text in ["a", "b", "b", "c", "d"] {
            tally.add(text.into(), 1);
        }
        assert_eq!(tally.list(2), "b (2), a (1), and 2 more");
        for text in ["a", "c", "d", "nobody"] {
            tally.remove(text);
        }
        assert_eq!(tally.list(2), "b");
    }

    #[test]
    fn at_the_limit_the_list_says_that_there_are_more() {
        let mut tally: TextCounts = TextCounts::default();
        for n in 0..=MAX {
            tally.add(n.to_string(), 1);
        }
        assert_eq!(tally.counts.len(), MAX);
        assert!(tally.list(1).ends_with(&format!("and more than {} more", MAX - 1)));
    }
}
