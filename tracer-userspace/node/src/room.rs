//! Limits how many network namespaces are read: of the whole node, and of one pod.

use std::collections::HashMap;

/// A pod has one namespace, and a few more if it sets up networks itself.
pub(super) const MAX_OF_POD: usize = 64;

/// The room left for namespaces. A pod can create any number, so each pod has its own limit and leaves room for the
/// others.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    taken: usize,
    is_exceeded: bool,
    of_pods: HashMap<String, usize>,
    problem: Option<String>,
}

impl Room {
    pub(super) fn of(most: usize) -> Self {
        Self { most, taken: 0, is_exceeded: false, of_pods: HashMap::new(), problem: None }
    }

    /// Takes room for a namespace that was found through a process of this pod, or of no pod; `false` if there is none
    /// left.
    pub(super) fn take(&mut self, pod: Option<&str>) -> bool {
        let before = pod.and_then(|pod| self.of_pods.get(pod)).copied().unwrap_or(0);
        if self.taken == self.most {
            self.is_exceeded = true;
            self.problem = Some(format!("more than {} network namespaces: the rest is left out", self.most));
        } else if before == MAX_OF_POD {
            let problem = || format!("more than {MAX_OF_POD} network namespaces made by one pod: the rest is left out");
            self.problem.get_or_insert_with(problem);
        } else {
            self.taken += 1;
            self.of_pods.extend(pod.map(|pod| (pod.to_owned(), before + 1)));
            return true;
        }
        false
    }

    /// Some were skipped because of the limit of the node.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// The problem to report if some were skipped.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}
