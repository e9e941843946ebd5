//! How many network namespaces are looked at, of all and of one pod.

use std::collections::HashMap;

/// A pod has one, and a few more where it sets up networks itself.
pub(super) const MAX_OF_POD: usize = 64;

/// Room for namespaces. A process may make as many as it likes: those of one pod leave room for the others'.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    taken: usize,
    of_pods: HashMap<String, usize>,
    problem: Option<String>,
}

impl Room {
    pub(super) fn of(most: usize) -> Self {
        Self { most, taken: 0, of_pods: HashMap::new(), problem: None }
    }

    /// Whether there is room for one more that is found through a process of this pod, or of none.
    pub(super) fn take(&mut self, pod: Option<&str>) -> bool {
        let before = pod.and_then(|pod| self.of_pods.get(pod)).copied().unwrap_or(0);
        if self.taken == self.most {
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

    /// What is to be reported if some were left out.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}
