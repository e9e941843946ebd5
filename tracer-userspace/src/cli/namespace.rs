//! Parses a namespace: a name, or `*`.

use tracer_sources::cluster::Namespace;

/// Accepts only names that the API allows (RFC 1123 labels), because the name becomes a part of an API path.
pub(super) fn namespace(text: &str) -> Result<Namespace, String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = text.len() <= 63
        && text.chars().all(|c| plain(c) || c == '-')
        && text.starts_with(plain)
        && text.ends_with(plain);
    match text {
        "*" => Ok(Namespace::All),
        name if is_label => Ok(Namespace::Named(name.to_owned())),
        _ => Err("write the name of a namespace, or `*` for all of them".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_of_namespaces_are_accepted() {
        assert_eq!(namespace("shop-1"), Ok(Namespace::Named("shop-1".into())));
        assert_eq!(namespace(" shop-1 "), Ok(Namespace::Named("shop-1".into())), "one of a list");
        assert_eq!(namespace("*"), Ok(Namespace::All));
        for wrong in ["", "-a", "a-", "A", "a/b", "a?b", "**", "..", &"a".repeat(64)] {
            assert!(namespace(wrong).is_err(), "{wrong}");
        }
    }
}
