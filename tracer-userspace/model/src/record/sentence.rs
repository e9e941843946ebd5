//! The begin and end of sentences in records.

use super::{Body, FindingBody};

/// First words of sentences that get a capital letter. A name (of a process, link, setting, command) keeps its letters.
const FIRST_WORDS: &str = "\
    a above add allow an another answered boot cannot change closed connected connection connections container \
    correct each ephemeral established established, fewer find fix give have if in install it its large less let \
    link listeners make most name network no nobody none not nothing on one only paused perhaps plain pod probably \
    process remove reset routing rule run see segment segments set so something source start strict tables take that \
    the there this under use what when where while with without write";

/// Gives a text a capital letter, and removes the full stop of a single sentence.
fn finish(text: &mut String) {
    let mut words = text.split(' ');
    let starts = words.next().is_some_and(|first| FIRST_WORDS.split(' ').any(|word| word == first))
        && words.next() != Some("(pid");
    if starts && let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if text.ends_with('.') && !has_several(text) {
        text.pop();
    }
}

/// The same for a fix. Its last sentence of several gets a full stop. Other texts may quote some, so they keep their end.
fn finish_fix(text: &mut String) {
    finish(text);
    if has_several(text) && !text.ends_with(['.', '?']) {
        text.push('.');
    }
}

fn has_several(text: &str) -> bool {
    text.contains(". ") || text.contains("? ")
}

impl Body {
    /// Gives its texts a capital letter. Single sentences have no full stop.
    pub fn finish_sentences(&mut self) {
        match self {
            Self::Verdict(body) => {
                finish(&mut body.verdict.summary);
                finish_fix(&mut body.verdict.remediation.text);
                body.verdict.evidence.iter_mut().for_each(|it| finish(&mut it.text));
            }
            Self::Node(body) => finish(&mut body.summary),
            // The sentences of a finding are finished where it is made.
            Self::Start(_) | Self::Stop(_) | Self::Attempt(_) | Self::Loss(_) | Self::Finding(_) => {}
        }
    }
}

impl FindingBody {
    /// The finding with a capital letter at the begin of its texts.
    #[must_use]
    pub fn with_sentences(mut self) -> Self {
        let always = [&mut self.observed, &mut self.expected, &mut self.why];
        let fixes = self.remediation.iter_mut().chain(&mut self.persist).map(|fix| &mut fix.text);
        always.into_iter().for_each(finish);
        fixes.for_each(finish_fix);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(text: &str) -> String {
        let mut text = text.to_owned();
        finish(&mut text);
        text
    }

    #[test]
    fn names_keep_their_letters() {
        for (text, expected) in [
            ("nobody listens on 10.0.0.1:80", "Nobody listens on 10.0.0.1:80"),
            ("lo is down", "lo is down"),
            ("pod (pid 7) reset it", "pod (pid 7) reset it"),
            ("fd00::1 is on eth0", "fd00::1 is on eth0"),
            ("kubelet: no space", "kubelet: no space"),
            ("Add a route.", "Add a route"),
            ("Add a route. Then restart it.", "Add a route. Then restart it."),
            ("", ""),
        ] {
            assert_eq!(finished(text), expected);
        }
    }

    #[test]
    fn each_of_several_sentences_of_a_fix_has_a_full_stop() {
        for (text, expected) in [
            ("Add a route. Then restart it", "Add a route. Then restart it."),
            ("add a route.", "Add a route"),
            ("Is it up? Set it up", "Is it up? Set it up."),
        ] {
            let mut text = text.to_owned();
            finish_fix(&mut text);
            assert_eq!(text, expected);
        }
    }
}
