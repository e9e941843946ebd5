//! Where a connect without a source port waits, beside others to the same destination.

/// How many connects may wait for one destination before any of them has its port. A power of two.
pub const PLACES: usize = 4;

/// The places of one destination. A trait, since the compiler may put a closure into a function of its own.
pub trait Places {
    /// Nobody waits there any more.
    fn is_free(&self, place: usize) -> bool;
}

/// The place of a connect: the first that is free from the thread's own on, or that one if none is.
#[inline(always)]
pub fn choose(thread: u32, places: &impl Places) -> usize {
    let first = thread as usize;
    for n in 0..PLACES {
        let place = (first + n) % PLACES;
        if places.is_free(place) {
            return place;
        }
    }
    first % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are taken.
    struct Taken([bool; PLACES]);

    impl Places for Taken {
        fn is_free(&self, place: usize) -> bool {
            !self.0[place]
        }
    }

    #[test]
    fn threads_begin_with_places_of_their_own() {
        for thread in [4, 5, 6, 7, u32::MAX] {
            assert_eq!(choose(thread, &Taken([false; PLACES])), thread as usize % PLACES);
        }
    }

    #[test]
    fn as_many_as_there_are_places_wait_together_whoever_they_are() {
        for threads in [[1, 2, 3, 4], [8, 8, 8, 8], [9, 13, 9, u32::MAX]] {
            let mut taken = Taken([false; PLACES]);
            for thread in threads {
                let place = choose(thread, &taken);
                assert!(taken.is_free(place), "{threads:?}: two in place {place}");
                taken.0[place] = true;
            }
            // One more takes the place that it begins with: of one connect the evidence is lost, not of all.
            assert_eq!(choose(6, &taken), 6 % PLACES);
        }
    }
}
