//! Memory that is needed once, or once in a while: large blocks, and the pages of programs.
//!
//! Most of the program runs once (the command line, the loader of the hooks, the sign-in at the cluster) or once in a while
//! (a look at a target, the checks of the node) and would stay resident for as long as the daemon does: of 7.7 MB, an attempt
//! that fails needs 1.5. What is needed again comes back from the page cache, 64 KiB at a time.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;
use std::sync::OnceLock;

/// glibc's first `M_MMAP_THRESHOLD` (mallopt(3)), in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 * 1024;

/// What the loader mapped, and never unmaps.
static CODE: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// To be called first, by who runs for long.
pub fn prepare() {
    return_large_blocks();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    CODE.get_or_init(|| unwritten(&smaps));
}

/// Large blocks go back to the kernel when they are freed, in whatever thread that is.
///
/// glibc raises its bound with each such block, up to 32 MiB, and so keeps what the start reads once (6 MB of the kernel's
/// types): a bound that was set stays. Other C libraries have none.
fn return_large_blocks() {
    // SAFETY: mallopt(3) takes two numbers; this bound may be set at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives back the pages of the program and of its libraries that nothing has written to. Without [`prepare`], and without
/// `smaps` (`CONFIG_PROC_PAGE_MONITOR`), nothing happens.
pub fn forget_code() {
    for pages in CODE.get().into_iter().flatten() {
        // SAFETY: a mapping of a file that stays for as long as the process, not writable and without a page of its own: what
        // is dropped here is read from the file again (madvise(2), MADV_DONTNEED), and was the file's all the time.
        let failed = unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), libc::MADV_DONTNEED) };
        if failed != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "pages of the program stay");
        }
    }
}

/// Mappings of a file that cannot be written to and have no pages but the file's own: the loader writes to some before it
/// protects them (`Documentation/filesystems/proc.rst`, `/proc/PID/smaps`).
fn unwritten(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some((pages, is_fixed)) = header(line) {
            current = is_fixed.then_some(pages);
        } else if line.starts_with("Anonymous:") {
            current = current.filter(|_| is_none(line));
        } else if line.starts_with("Swap:") && is_none(line) {
            found.extend(current.take());
        }
    }
    found
}

fn is_none(line: &str) -> bool {
    line.split_ascii_whitespace().skip(1).eq(["0", "kB"])
}

/// `5581c0a00000-5581c0c00000 r-xp 00200000 fe:01 1234   /usr/bin/tracer`: the range, and whether it is a file's and may not be
/// written. The ring's is none (`anon_inode:bpf-map`).
fn header(line: &str) -> Option<(Range<usize>, bool)> {
    let mut columns = line.split_ascii_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let at = |text| usize::from_str_radix(text, 16).ok();
    let may_write = columns.next()?.as_bytes().get(1) == Some(&b'w');
    let is_file = columns.nth(3).is_some_and(|name| name.starts_with('/'));
    Some((at(start)?..at(end)?, is_file && !may_write))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5581c0a00000-5581c0c00000 r--p 00000000 fe:01 1234                       /usr/bin/tracer
Rss:                1024 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
5581c0c00000-5581c1200000 r-xp 00200000 fe:01 1234                       /usr/bin/tracer
Anonymous:             0 kB
Swap:                  0 kB
5581c1200000-5581c1300000 r--p 00800000 fe:01 1234                       /usr/bin/tracer
Anonymous:          1020 kB
Swap:                  0 kB
5581c1300000-5581c1310000 rw-p 00900000 fe:01 1234                       /usr/bin/tracer
Anonymous:             0 kB
Swap:                  0 kB
7f00c0a00000-7f00c0c00000 r-xp 00000000 fe:01 99                         /usr/lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
7f00d0000000-7f00d0200000 r--s 00002000 00:0e 7                          anon_inode:bpf-map
Anonymous:             0 kB
Swap:                  0 kB
7f00e0000000-7f00e0200000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
Anonymous:             0 kB
Swap:                  0 kB
7ffe00000000-7ffe00021000 r--p 00000000 fe:01 98                         /usr/lib/swapped.so
Anonymous:             0 kB
Swap:                  8 kB
";

    #[test]
    fn only_what_the_file_still_has() {
        let files = [
            0x5581_c0a0_0000..0x5581_c0c0_0000,
            0x5581_c0c0_0000..0x5581_c120_0000,
            0x7f00_c0a0_0000..0x7f00_c0c0_0000,
        ];
        assert_eq!(unwritten(SMAPS), files);
        assert!(unwritten("garbage\n-\nAnonymous: 0 kB\nSwap: 0 kB\n").is_empty());
    }

    #[test]
    fn the_program_goes_on_without_them() {
        let resident = || {
            let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
            let mut is_of_file = false;
            let kilobytes = smaps.lines().filter_map(|line| {
                if let Some((_, is_fixed)) = header(line) {
                    is_of_file = is_fixed;
                }
                let rest = line.strip_prefix("Rss:").filter(|_| is_of_file)?;
                rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
            });
            kilobytes.sum::<u64>()
        };
        prepare();
        let before = resident();
        forget_code();
        let after = resident();
        assert!(after < before, "{before} kB of files before, {after} after");
    }
}
