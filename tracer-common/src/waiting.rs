//! Chooses the place of a connect without a source port, among others to the same destination.

/// How many connects may wait for one destination before any of them has its port. A power of two.
pub const PLACES: usize = 4;

/// The places of one destination. It is a trait, because the compiler may compile a closure as a separate function.
pub trait Places {
    /// Whether no connect waits at this place.
    fn is_free(&self, place: usize) -> bool;
}

/// Chooses the first free place, beginning with the place of the thread. If none is free, it is the place of the thread.
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

    /// The places that are taken.
    struct Taken([bool; PLACES]);

    impl Places for Taken {
        fn is_free(&self, place: usize) -> bool {
            !self.0[place]
        }
    }

    #[test]
    fn each_thread_begins_with_its_own_place() {
        for thread in [4, 5, 6, 7, u32::MAX] {
            assert_eq!(choose(thread, &Taken([false; PLACES])), thread as usize % PLACES);
        }
    }

    #[test]
    fn each_of_the_first_connects_gets_a_place() {
        for threads in [[1, 2, 3, 4], [8, 8, 8, 8], [9, 13, 9, u32::MAX]] {
            let mut taken = Taken([false; PLACES]);
            for thread in threads {
                let place = choose(thread, &taken);
                assert!(taken.is_free(place), "{threads:?}: two in place {place}");
                taken.0[place] = true;
            }
            // Another connect takes the place of its thread: only one connect loses its evidence.
            assert_eq!(choose(6, &taken), 6 % PLACES);
        }
    }
}
