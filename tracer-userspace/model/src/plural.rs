//! Numbers of things in words.

/// `1 pod`, `2 pods`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", ending(n))
}

/// `1 packet was`, `2 packets were`.
pub fn were(n: u64, noun: &str) -> String {
    format!("{} {}", counted(n, noun), if n == 1 { "was" } else { "were" })
}

/// The plural ending of a noun.
pub const fn ending(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "pod")), ["0 pods", "1 pod", "2 pods"]);
        assert_eq!([0, 1, 2].map(|n| were(n, "packet")), ["0 packets were", "1 packet was", "2 packets were"]);
    }
}
