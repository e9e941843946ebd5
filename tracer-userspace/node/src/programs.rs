//! Reads the BPF programs of a network device: XDP, tcx and filters. Names are in the filters, and behind bpf(2).

use std::ffi::c_uint;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libc::RTM_GETTFILTER;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::enter::in_netns;
use super::links::{by_index, xdp_programs};
use super::namespaces::{Namespaces, SLOW_AGE};
use super::netlink::{Netlink, attribute, consistent, number, text};
use tracer_model::event::{DeviceProgram, DevicePrograms, MOST_PROGRAMS, Netns, ProgramPlace};

// `struct tcmsg` (family, index, handle, parent, info) and the attributes of a filter, include/uapi/linux.
const TCMSG: usize = 20;
pub const TCA_KIND: u16 = 1;
pub const TCA_OPTIONS: u16 = 2;
pub const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
/// The parents of the filters that `tc` calls ingress and egress.
pub const INGRESS: u32 = 0xffff_fff2;
pub const EGRESS: u32 = 0xffff_fff3;

// `enum bpf_cmd` and `enum bpf_attach_type`, include/uapi/linux/bpf.h. tcx: kernel 6.6.
const BPF_PROG_GET_FD_BY_ID: c_uint = 13;
const BPF_OBJ_GET_INFO_BY_FD: c_uint = 15;
const BPF_PROG_QUERY: c_uint = 16;
pub const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

type Program = (u32, Option<String>);

/// The programs of a device; `None`: its namespace cannot be entered, it is gone, or a reading failed.
pub fn read(netns: Netns, ifindex: u32, namespaces: &mut Namespaces) -> Option<DevicePrograms> {
    let path = namespaces.path_within(netns, SLOW_AGE)?;
    let programs = in_netns(&path, || find(ifindex)).ok()?.ok()?;
    Some(DevicePrograms { netns, ifindex, programs })
}

/// In the order in which they run. What this kernel lacks, and names that these privileges do not show, are left out.
fn find(ifindex: u32) -> io::Result<Vec<DeviceProgram>> {
    let unnamed = |ids: Vec<u32>| ids.into_iter().map(|id| (id, None));
    let at_tc = |parent, tcx| -> io::Result<_> {
        Ok(unnamed(if_known(attached(ifindex, tcx))?).chain(consistent(|| filters(ifindex, parent))?))
    };
    let all = unnamed(xdp_programs(ifindex)?).map(|it| (ProgramPlace::Xdp, it));
    let all = all.chain(at_tc(INGRESS, BPF_TCX_INGRESS)?.map(|it| (ProgramPlace::TcIngress, it)));
    let all = all.chain(at_tc(EGRESS, BPF_TCX_EGRESS)?.map(|it| (ProgramPlace::TcEgress, it)));
    let own_name = |id| name_of(id).ok().filter(|name| !name.is_empty());
    let named = |(place, (id, name)): (_, Program)| DeviceProgram { place, id, name: name.or_else(|| own_name(id)) };
    let found = all.take(MOST_PROGRAMS).map(named).collect();
    // The kernel lists no filters of a device that is gone, and calls that no error.
    by_index(ifindex)?;
    Ok(found)
}

/// EINVAL: this kernel has no tcx. ENOENT: the device has no program of it (`tcx_prog_query`, kernel/bpf/tcx.c).
fn if_known(found: io::Result<Vec<u32>>) -> io::Result<Vec<u32>> {
    match found {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(Vec::new()),
        found => found,
    }
}

/// The programs of filters. The AWS network policy agent names the filter only, not the program.
fn filters(ifindex: u32, parent: u32) -> io::Result<Vec<Program>> {
    let mut found = Vec::new();
    each_filter(ifindex, parent, |message| found.extend(parse_filter(message)))?;
    Ok(found)
}

pub(super) fn each_filter(ifindex: u32, parent: u32, each: impl FnMut(&[u8])) -> io::Result<()> {
    let request = [0, ifindex, 0, parent, 0].map(u32::to_ne_bytes).concat();
    Netlink::open(NETLINK_ROUTE)?.dump(RTM_GETTFILTER, &request, each)
}

/// `None` for a filter of another kind, and for one of classic BPF.
fn parse_filter(message: &[u8]) -> Option<Program> {
    let attributes = message.get(TCMSG..)?;
    attribute(attributes, TCA_KIND).filter(|kind| text(kind) == "bpf")?;
    let options = attribute(attributes, TCA_OPTIONS)?;
    Some((number(options, TCA_BPF_ID)?, attribute(options, TCA_BPF_NAME).map(text)))
}

/// The programs attached by tcx to a device of the calling thread's namespace. It needs CAP_NET_ADMIN.
pub fn attached(ifindex: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    /// Device, attach type, two kinds of flags, address of the ids, their number, padding. Then three addresses that are
    /// not used, and a revision, which the kernel writes whatever the size of the attributes (`bpf_mprog_query`).
    #[repr(C)]
    struct Query([u32; 4], u64, [u32; 2], [u64; 4]);
    let mut ids = [0; MOST_PROGRAMS];
    let mut query = Query([ifindex, attach_type, 0, 0], ids.as_mut_ptr() as u64, [MOST_PROGRAMS as u32, 0], [0; 4]);
    // SAFETY: the kernel writes at most this number of ids, which outlive the call, and the revision in `query`.
    match unsafe { bpf(BPF_PROG_QUERY, &mut query) } {
        // More programs than there was room for.
        Err(error) if error.raw_os_error() != Some(libc::ENOSPC) => Err(error),
        _ => Ok(ids.into_iter().filter(|id| *id != 0).collect()),
    }
}

/// The name of a program; empty: it has none. It needs CAP_SYS_ADMIN.
fn name_of(id: u32) -> io::Result<String> {
    /// `struct bpf_prog_info` up to the name. Zeros before it ask for no instructions and no maps.
    #[repr(C)]
    struct Info([u64; 8], [u8; 16]);
    /// Descriptor, length and address.
    #[repr(C)]
    struct Query(i32, u32, u64);
    // SAFETY: the attributes have no addresses. The kernel has just made the descriptor for us.
    let program = unsafe { OwnedFd::from_raw_fd(bpf(BPF_PROG_GET_FD_BY_ID, &mut [id, 0, 0])?) };
    let mut info = Info([0; 8], [0; 16]);
    let mut query = Query(program.as_raw_fd(), size_of::<Info>() as u32, &raw mut info as u64);
    // SAFETY: the kernel writes at most this length to `info`, which outlives the call.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut query) }?;
    Ok(text(&info.1))
}

/// Calls bpf(2).
///
/// # Safety
/// The attributes have no padding. What the command does at addresses among them is allowed.
pub unsafe fn bpf<T>(command: c_uint, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>() as c_uint;
    // SAFETY: the kernel reads and writes `size` bytes of the attributes; the caller answers for addresses in them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{push, push_text};
    use super::*;

    #[test]
    fn a_device_that_is_gone_has_no_empty_reading() {
        assert!(find(1).expect("lo").is_empty());
        assert_eq!(find(0x7fff_0000).expect_err("no such device").raw_os_error(), Some(libc::ENODEV));
    }

    /// In options of flower, number 11 is the mask of an address.
    #[test]
    fn only_filters_of_bpf_have_a_program() {
        let parsed = |kind| {
            let (mut message, mut options) = (vec![0; TCMSG], Vec::new());
            push_text(&mut options, TCA_BPF_NAME, "handle_ingress");
            push(&mut options, TCA_BPF_ID, &41_u32.to_ne_bytes());
            push_text(&mut message, TCA_KIND, kind);
            push(&mut message, TCA_OPTIONS, &options);
            parse_filter(&message)
        };
        assert_eq!(parsed("bpf"), Some((41, Some("handle_ingress".to_owned()))));
        assert_eq!(parsed("flower"), None);
    }
}
