//! The known name that is nearest to an unknown one.

/// The known name that contains the typed one, else the one with the fewest typing errors, if they are few. Known names are
/// in lower case with `_`; the typed name may have upper case and `-`.
pub fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let typed = typed.to_lowercase().replace('-', "_");
    let errors = |name: &str| strsim::damerau_levenshtein(name, &typed);
    let part = known.clone().find(|name| typed.len() > 2 && name.contains(&typed));
    part.or_else(|| known.min_by_key(|name| errors(name)).filter(|name| errors(name) * 2 <= name.len()))
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_part_or_few_errors_find_the_name() {
        let known = ["port_overlap", "conntrack", "loopback_up"];
        let nearest = |typed| nearest(typed, known.into_iter());
        assert_eq!(nearest("contrack"), Some("conntrack"));
        assert_eq!(nearest("Port-Overlap"), Some("port_overlap"));
        assert_eq!(nearest("overlap"), Some("port_overlap"));
        assert_eq!((nearest("xyz"), nearest("lo")), (None, None));
    }
}
