//! Names in commands that are to be pasted into a shell.

/// A name as Kubernetes allows them (RFC 1123). An Event may hold anything.
pub(super) fn word(name: Option<&str>) -> Option<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name.filter(|name| name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits))
}

/// A link's name. The kernel allows all but blanks, `/` and `:` (`dev_valid_name`), and who is in a pod names its links: what
/// no network plugin writes stays a word in capitals.
pub(super) fn link(name: &str) -> &str {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let known = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits);
    if known { name } else { "DEVICE" }
}

/// The same in the name of a setting, in which a dot is written as a slash.
pub(super) fn link_setting(name: &str) -> String {
    link(name).replace('.', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_s_name_is_no_command() {
        assert_eq!(["eth0.100", "vxlan_sys_4789", "cali-1"].map(link), ["eth0.100", "vxlan_sys_4789", "cali-1"]);
        assert_eq!(["$(reboot)", "a;b", "-all", "a'b", ""].map(link), ["DEVICE"; 5]);
        assert_eq!(link_setting("eth0.100"), "eth0/100");
    }
}
