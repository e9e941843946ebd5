//! Who uses up ephemeral ports: counted here, no event for a connect.

use aya_ebpf::helpers::generated::bpf_get_current_cgroup_id;
use tracer_common::{
    ABSENT64,
    ports::{self, PortUse},
};

use crate::{
    actor,
    atomic::add,
    kernel::{Sock, Task},
    maps::{PORTS, global},
};

/// A process connects. Threads of it count at the same time; of the bits a lost one does no harm.
#[inline(always)]
pub fn connects(sk: Sock) {
    let tgid = actor::tgid();
    let known = PORTS.get_ptr_mut(tgid).or_else(|| first(sk, tgid));
    let (Some(usage), Some(to)) = (known, sk.destination()) else { return };
    unsafe {
        add(&raw mut (*usage).connects, 1);
        if to.itself {
            add(&raw mut (*usage).to_itself, 1);
        }
        let (word, bit) = ports::bit(to.hash);
        if (*usage).destinations[word] & bit == 0 {
            (*usage).destinations[word] |= bit;
        }
    }
}

/// Of a process that was not counted yet, or was taken meanwhile.
#[inline(always)]
fn first(sk: Sock, tgid: u32) -> Option<*mut PortUse> {
    let task = Task::current();
    let mut usage = PortUse {
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        cgroup_memory: task.memory_cgroup().unwrap_or(ABSENT64),
        netns: sk.net().inum(),
        ..PortUse::default()
    };
    actor::leader_comm(task, &mut usage.comm);
    // Another thread may have been first.
    const NO_EXIST: u64 = 1;
    let _ = PORTS.insert(tgid, usage, NO_EXIST);
    PORTS.get_ptr_mut(tgid)
}

/// A socket is closed by its own side first. A server's port stays its listener's: only an ephemeral one
/// is taken away from the next connect.
#[inline(always)]
pub fn closes(sk: Sock) {
    let port = u32::from(sk.num());
    if (global!(SETTINGS.port_first)..=global!(SETTINGS.port_last)).contains(&port)
        && let Some(usage) = PORTS.get_ptr_mut(actor::tgid())
    {
        unsafe { add(&raw mut (*usage).closes, 1) };
    }
}
