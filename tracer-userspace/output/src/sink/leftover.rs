//! Removes the empty output files of a command that failed.

use std::path::Path;

use tracer_terminal::error::Error;

/// Does the work. If that fails, removes those of the files that are new and empty.
pub fn leaving_none<T>(files: [Option<&Path>; 2], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let is_new = |path: &&Path| path.symlink_metadata().is_err();
    let new: Vec<&Path> = files.into_iter().flatten().filter(is_new).collect();
    work().inspect_err(|_| new.into_iter().for_each(remove_empty))
}

fn remove_empty(made: &Path) {
    if made.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() == 0) {
        let _ = std::fs::remove_file(made);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use tracer_testing::Scratch;

    #[test]
    fn only_new_and_empty_files_are_removed_and_only_after_a_failure() {
        let scratch = Scratch::new();
        let [old, empty, written] = ["old", "empty", "written"].map(|name| scratch.path(name));
        fs::write(&old, "").expect("a file");
        let fail = |made: &Path, text: &str| {
            let _ = leaving_none([Some(&old), Some(made)], || {
                fs::write(made, text).expect("a file");
                Err::<(), _>(Error::Kernel("no".into()))
            });
        };
        fail(&empty, "");
        fail(&written, "a record");
        assert_eq!([&old, &empty, &written].map(|path| path.exists()), [true, false, true]);
        let _ = leaving_none([Some(&empty), None], || fs::write(&empty, "").map_err(|_| Error::Kernel("?".into())));
        assert!(empty.exists(), "a command that succeeded keeps its file");
    }
}
