//! Names in commands that are to be pasted into a shell.

/// A name as Kubernetes allows them (RFC 1123). An Event may hold anything.
pub fn word(name: Option<&str>) -> Option<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name.filter(|name| name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits))
}

/// A name as whoever writes rules and links for others gives it. The kernel takes nearly any bytes, and who is in a pod names
/// its own: what is no plain word is identified by a word in capitals.
pub fn plain<'a>(name: &'a str, instead: &'a str) -> &'a str {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '@' | '+');
    let is_plain = !name.starts_with('-') && !name.is_empty() && name.chars().all(fits);
    if is_plain { name } else { instead }
}

pub fn link(name: &str) -> &str {
    plain(name, "DEVICE")
}

pub fn chain(name: &str) -> &str {
    plain(name, "CHAIN")
}

/// The folder of a cgroup. Who may make cgroups of its own in a container names them.
pub fn cgroup(folder: &str) -> &str {
    let is_plain = |part: &str| part.is_empty() || plain(part, "") == part;
    if folder.starts_with('/') && folder.split('/').all(is_plain) { folder } else { "CGROUP" }
}

pub fn table(name: &str) -> &str {
    plain(name, "TABLE")
}

/// The same in the name of a setting, in which a dot is written as a slash.
pub fn link_setting(name: &str) -> String {
    link(name).replace('.', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_folder_of_a_cgroup_is_pasted() {
        let systemd = "/sys/fs/cgroup/kubepods.slice/kubepods-pod7d1c_0f52.slice/cri-containerd-9a.scope";
        assert_eq!(cgroup(systemd), systemd);
        for name in ["/sys/fs/cgroup/pod/$(reboot)", "/sys/fs/cgroup/a b", "/sys/fs/cgroup/-x", "relative"] {
            assert_eq!(cgroup(name), "CGROUP", "{name}");
        }
    }

    #[test]
    fn a_links_name_is_no_command() {
        assert_eq!(["eth0.100", "vxlan_sys_4789", "cali-1"].map(link), ["eth0.100", "vxlan_sys_4789", "cali-1"]);
        assert_eq!(["$(reboot)", "a;b", "-all", "a'b", ""].map(link), ["DEVICE"; 5]);
        assert_eq!([chain("KUBE-SVC-1"), chain("in$(id)"), table("f l")], ["KUBE-SVC-1", "CHAIN", "TABLE"]);
        assert_eq!(link_setting("eth0.100"), "eth0/100");
    }
}
