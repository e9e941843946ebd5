//! The first and the last few items of many.

use std::collections::VecDeque;

/// Keeps this many of the first and of the last items, and counts the others.
#[derive(Debug)]
pub(crate) struct Ends<T, const EACH: usize> {
    first: Vec<T>,
    last: VecDeque<T>,
    /// How many items there were.
    pub(crate) total: u64,
}

impl<T, const EACH: usize> Default for Ends<T, EACH> {
    fn default() -> Self {
        Self { first: Vec::new(), last: VecDeque::new(), total: 0 }
    }
}

impl<T, const EACH: usize> Ends<T, EACH> {
    pub(crate) fn push(&mut self, item: T) {
        self.total += 1;
        if self.first.len() < EACH {
            self.first.push(item);
            return;
        }
        if self.last.len() == EACH {
            self.last.pop_front();
        }
        self.last.push_back(item);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.last)
    }

    /// The newest kept item for which `is_it` is true.
    pub(crate) fn newest_mut(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.first.iter_mut().chain(&mut self.last).rev().find(|item| is_it(item))
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.total - (self.first.len() + self.last.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_kept_and_the_middle_is_counted() {
        let mut ends = Ends::<_, 2>::default();
        (0..7).for_each(|n| ends.push(n));
        assert_eq!(ends.iter().copied().collect::<Vec<_>>(), [0, 1, 5, 6]);
        assert_eq!((ends.total, ends.skipped(), ends.newest_mut(|n| n % 2 == 1).copied()), (7, 3, Some(5)));
    }
}
