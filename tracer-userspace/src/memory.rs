//! Memory that is needed once, or once in a while: large blocks, and the pages of our own program.
//!
//! Most of the program runs once (the command line, the loader of the hooks, the sign-in at the cluster) or once in five minutes
//! (the checks of the node) and would stay resident for as long as the daemon does. What is needed again comes back from the
//! page cache, 64 KiB at a time.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;

/// glibc's first `M_MMAP_THRESHOLD` (mallopt(3)), in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 * 1024;

/// Large blocks go back to the kernel when they are freed, in whatever thread that is.
///
/// glibc raises its bound with each such block, up to 32 MiB, and so keeps what the start reads once (6 MB of the kernel's
/// types): a bound that was set stays. Other C libraries have none.
pub fn return_large_blocks() {
    // SAFETY: mallopt(3) takes two numbers; this bound may be set at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives back the pages of the program that nothing has written to. Without `smaps` (`CONFIG_PROC_PAGE_MONITOR`) nothing
/// happens.
pub fn forget_code() {
    let (Ok(smaps), Ok(program)) = (fs::read_to_string("/proc/self/smaps"), fs::read_link("/proc/self/exe")) else {
        return;
    };
    for pages in unwritten(&smaps, &program.to_string_lossy()) {
        // SAFETY: a private mapping of a file, not writable and without a page of its own: what is dropped here is read
        // from the file again (madvise(2), MADV_DONTNEED). The program cannot be written while it runs (ETXTBSY).
        let failed = unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), libc::MADV_DONTNEED) };
        if failed != 0 {
            tracing::debug!(error = %std::io::Error::last_os_error(), "pages of the program stay");
        }
    }
}

/// Mappings of a file that cannot be written to and have no pages but the file's own: the loader writes to some before it
/// protects them (`Documentation/filesystems/proc.rst`, `/proc/PID/smaps`).
fn unwritten(smaps: &str, file: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some((pages, may_write, of)) = header(line) {
            current = (of == file && !may_write).then_some(pages);
        } else if line.split_ascii_whitespace().eq(["Anonymous:", "0", "kB"]) {
            found.extend(current.take());
        }
    }
    found
}

/// `5581c0a00000-5581c0c00000 r-xp 00200000 fe:01 1234   /usr/bin/tracer`: the range, whether it may be written, the file.
fn header(line: &str) -> Option<(Range<usize>, bool, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let at = |text| usize::from_str_radix(text, 16).ok();
    let file = rest.find('/').map_or("", |slash| &rest[slash..]);
    Some((at(start)?..at(end)?, rest.as_bytes().get(1) == Some(&b'w'), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5581c0a00000-5581c0c00000 r--p 00000000 fe:01 1234                       /usr/bin/tracer
Rss:                1024 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
5581c0c00000-5581c1200000 r-xp 00200000 fe:01 1234                       /usr/bin/tracer
Anonymous:             0 kB
5581c1200000-5581c1300000 r--p 00800000 fe:01 1234                       /usr/bin/tracer
Anonymous:          1020 kB
5581c1300000-5581c1310000 rw-p 00900000 fe:01 1234                       /usr/bin/tracer
Anonymous:             0 kB
7f00c0a00000-7f00c0c00000 r-xp 00000000 fe:01 99                         /usr/lib/libc.so.6
Anonymous:             0 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
Anonymous:             0 kB
";

    #[test]
    fn only_what_the_file_still_has() {
        let found = unwritten(SMAPS, "/usr/bin/tracer");
        assert_eq!(found, [0x5581_c0a0_0000..0x5581_c0c0_0000, 0x5581_c0c0_0000..0x5581_c120_0000]);
        assert!(unwritten(SMAPS, "/usr/bin/other").is_empty());
        assert!(unwritten("garbage\n-\nAnonymous: 0 kB\n", "").is_empty());
    }

    #[test]
    fn the_program_goes_on_without_them() {
        let resident = || {
            let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
            let program = fs::read_link("/proc/self/exe").expect("exe");
            let program = program.to_string_lossy().into_owned();
            let mut of_ours = false;
            let kilobytes = smaps.lines().filter_map(|line| {
                if let Some((_, may_write, of)) = header(line) {
                    of_ours = of == program && !may_write;
                }
                let rest = line.strip_prefix("Rss:").filter(|_| of_ours)?;
                rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
            });
            kilobytes.sum::<u64>()
        };
        let before = resident();
        forget_code();
        let after = resident();
        assert!(after < before, "{before} kB of the program before, {after} after");
    }
}
