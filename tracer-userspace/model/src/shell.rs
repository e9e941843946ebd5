//! Names in commands for a shell.

/// The name, if Kubernetes allows it (RFC 1123). An Event may contain any text.
pub fn word(name: Option<&str>) -> Option<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name.filter(|name| name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits))
}

/// A name of a rule or link if it is a plain word, otherwise a placeholder in capitals. The kernel allows nearly any
/// bytes in such names, and a process in a pod can choose its own.
pub fn plain<'a>(name: &'a str, instead: &'a str) -> &'a str {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '@' | '+');
    let is_plain = !name.starts_with('-') && !name.is_empty() && name.chars().all(fits);
    if is_plain { name } else { instead }
}

pub fn link(name: &str) -> &str {
    plain(name, "DEVICE")
}

/// kube-proxy's chains of nftables have slashes in their names.
pub fn chain(name: &str) -> &str {
    if plain(&name.replace('/', "-"), "").is_empty() { "CHAIN" } else { name }
}

/// The folder of a cgroup. A container that may make cgroups chooses their names.
pub fn cgroup(folder: &str) -> &str {
    let is_plain = |part: &str| part.is_empty() || plain(part, "") == part;
    if folder.starts_with('/') && folder.split('/').all(is_plain) { folder } else { "CGROUP" }
}

pub fn table(name: &str) -> &str {
    plain(name, "TABLE")
}

/// The link's name in the name of a setting, in which a slash stands for a dot.
pub fn link_setting(name: &str) -> String {
    link(name).replace('.', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_folder_of_a_cgroup_is_used_in_a_command() {
        let systemd = "/sys/fs/cgroup/kubepods.slice/kubepods-pod7d1c_0f52.slice/cri-containerd-9a.scope";
        assert_eq!(cgroup(systemd), systemd);
        for name in ["/sys/fs/cgroup/pod/$(reboot)", "/sys/fs/cgroup/a b", "/sys/fs/cgroup/-x", "relative"] {
            assert_eq!(cgroup(name), "CGROUP", "{name}");
        }
    }

    #[test]
    fn a_name_that_is_no_plain_word_becomes_a_placeholder() {
        assert_eq!(["eth0.100", "vxlan_sys_4789", "cali-1"].map(link), ["eth0.100", "vxlan_sys_4789", "cali-1"]);
        assert_eq!(["$(reboot)", "a;b", "-all", "a'b", ""].map(link), ["DEVICE"; 5]);
        assert_eq!([chain("KUBE-SVC-1"), chain("in$(id)"), table("f l")], ["KUBE-SVC-1", "CHAIN", "TABLE"]);
        assert_eq!([chain("service-A2B/web/tcp/http"), chain("-a/b")], ["service-A2B/web/tcp/http", "CHAIN"]);
        assert_eq!(link_setting("eth0.100"), "eth0/100");
    }
}
