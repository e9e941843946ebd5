//! Lines for the tests of the modules, and tests of the whole page.

use proptest::prelude::*;

use super::*;

const TIME: &str = "2026-01-02T03:04:05.000000000Z";

/// A verdict on an attempt at the pod `shop/NAME`.
pub(super) fn verdict(seq: u64, cause: &str, pod: &str, revises: Option<u64>) -> String {
    let revises = revises.map(|seq| format!(r#","revises":{seq}"#)).unwrap_or_default();
    format!(
        r#"{{"schema":"tracer/1","type":"verdict","time":"{TIME}","time_boot_ns":1,"seq":{seq},"node_name":"n1","subject":"probe","severity":"error","verdict":{{"cause":"{cause}","outcome":"failure","confidence":"proven","summary":"why {pod}","remediation":{{"text":"fix it"}},"evidence":[{{"hook":"kfree_skb","time_boot_ns":1,"text":"seen","fields":{{}}}}],"also":[],"lost_events":0,"missing_hooks":[]}},"k8s":{{"namespace":"shop","pod_name":"{pod}"}}{revises}}}"#
    )
}

pub(super) fn attempt(seq: u64, pod: &str, outcome: &str) -> String {
    format!(
        r#"{{"schema":"tracer/1","type":"attempt","time":"{TIME}","time_boot_ns":1,"seq":{seq},"node_name":"n1","subject":"probe","outcome":"{outcome}","k8s":{{"namespace":"shop","pod_name":"{pod}"}},"dst":{{"addr":"10.0.0.1","port":80}},"process":{{"pid":1,"comm":"kubelet"}},"phases_ms":{{}}}}"#
    )
}

/// The same line at another time, seconds since 1970.
pub(super) fn at(line: &str, seconds: i64) -> String {
    line.replace(TIME, &jiff::Timestamp::from_second(seconds).unwrap().to_string())
}

/// The page of some bytes, and the problems that were reported.
fn page(bytes: &[u8]) -> (String, Vec<String>) {
    let (mut tally, mut faults) = (Tally::new(Filter::default()), Faults::default());
    let input = Input::new("in".into(), Box::new(std::io::Cursor::new(bytes.to_vec())));
    read(input, &mut tally, &mut faults).unwrap();
    let reported = std::mem::take(&mut faults.reported);
    (page::html(tally, &reported, &["in".into()]), reported)
}

#[test]
fn names_are_escaped_and_the_page_loads_nothing() {
    let evil = r#"<script>alert(1)</script>\" onload=\"x' <img src=//e/x>&lt;\u001b[31m"#;
    let (page, _) = page(verdict(1, "unexplained", evil, None).as_bytes());
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&quot;x"), "{page}");
    for never in ["<script", "<img", "onload=\"", "\u{1b}", "http:", "https:", "url(", "@import"] {
        assert!(!page.contains(never), "{never}");
    }
    assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-"));
}

#[test]
fn lines_that_cannot_be_read_are_named_and_the_others_count() {
    let good = verdict(1, "unexplained", "cart", None);
    let other = good.replace("tracer/1", "tracer/9");
    let cause = good.replace("unexplained", "no_such_cause");
    let second = verdict(2, "unexplained", "cart", None);
    let long = "x".repeat(3 << 20);
    let text = format!(
        "{good}\nnonsense\n{{\"a\":\n\n{{\"Timestamp\":1}}\n{other}\n{cause}\n{second}\n{long}\n{{\"schema\":\"tra"
    );
    let (page, reported) = page(text.as_bytes());
    let expected = [
        "in:2: not a record: not JSON: skipped",
        "in:3: not a record: EOF while parsing a value (column 5): skipped",
        "in:5: not a record of schema tracer/1: skipped",
        "in:6: a record of schema tracer/9: this tracer reads tracer/1: skipped",
        "in:7: not a record: unknown variant `no_such_cause`, expected one of",
        "in:9: a line of more than 1 MiB: skipped",
        "in:10: the last line is not whole",
    ];
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    for (reported, expected) in reported.iter().zip(expected) {
        assert!(reported.starts_with(expected) && reported.len() < 200, "{reported}");
    }
    assert!(page.contains("2 attempts failed") && page.contains("in:2: not a record"), "{page}");
}

#[test]
fn the_headline_says_how_many_failed_and_why() {
    let causes = ["loopback_down", "firewall_drop", "connection_refused", "mid_stream_rst", "unexplained"];
    let several = (1..).zip(causes).map(|(seq, cause)| verdict(seq, cause, "cart", None)).collect();
    let passed = attempt(1, "cart", "success");
    let unknown = passed.replace(r#""outcome":"success","#, "");
    for (lines, headline) in [
        (several, "; 2 by 2 other causes.</h1>"),
        (vec![passed], "<h1>No attempt failed. 1 passed.</h1>"),
        (vec![unknown], "<h1>No attempt failed.</h1>"),
    ] {
        let (page, reported) = page(lines.join("\n").as_bytes());
        assert!(reported.is_empty() && page.contains(headline), "{reported:?} {page}");
    }
}

/// Whoever is on call acts on what fails now. The restarts of an hour ago are over.
#[test]
fn the_headline_begins_with_what_is_broken_now() {
    let over = verdict(1, "loopback_down", "cart", None);
    let later = TIME.parse::<jiff::Timestamp>().unwrap().as_second() + 600;
    let now = at(&verdict(2, "connection_refused", "cart", None), later);
    let (page, _) = page([over, now].join("\n").as_bytes());
    let headline = "1 because nobody listens on that address and port; 1 because ";
    assert!(page.contains(headline) && page.contains(" (last at 03:04:05).</h1>"), "{page}");
}

/// The card of a cause without a failure is folded, because it needs no action.
#[test]
fn noise_comes_last_and_folded() {
    let noise = verdict(1, "tls_eof_noise", "db", None).replace("\"outcome\":\"failure\"", "\"outcome\":\"noise\"");
    let (page, _) = page([noise, verdict(2, "unexplained", "cart", None)].join("\n").as_bytes());
    let (failed, misleading) = page.split_once("<details class=\"more\"><summary>1 cause without a failure").unwrap();
    assert!(failed.contains("id=\"cause-A\"") && misleading.contains("id=\"cause-B\""), "{page}");
}

#[test]
fn a_filter_that_lets_nothing_through_says_why() {
    let mut tally = Tally::new(Filter { namespace: Some("nosuch".into()), ..Filter::default() });
    let line = verdict(1, "loopback_down", "cart", None);
    tally.push(line::read(line.as_bytes()).ok().unwrap(), line.as_bytes());
    let page = page::html(tally, &[], &["in".into()]);
    assert!(page.contains("<h1>0 of 1 failure shown: no pod matches `-n nosuch`.</h1>"), "{page}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        page(&bytes);
    }

    /// Records with a changed byte, a lost field, or a number of any size.
    #[test]
    fn no_damaged_record_makes_it_panic(place in 0_usize..900, byte in any::<u8>(), number in any::<u64>(), text in "\\PC{0,20}") {
        let name = text.replace(['"', '\\'], "");
        let lines = [
            verdict(number, "unexplained", &name, Some(number / 2)),
            format!(r#"{{"schema":"tracer/1","type":"loss","time":"{TIME}","time_boot_ns":{number},"seq":9,"node_name":"{name}","where":"{name}","count":{number},"from_boot_ns":{},"to_boot_ns":{number}}}"#, number / 3),
            format!(r#"{{"schema":"tracer/1","type":"node","time":"-009999-01-02T03:04:05Z","time_boot_ns":0,"seq":1,"node_name":"x","event":"{name}","summary":"{name}"}}"#),
            format!(r#"{{"schema":"tracer/1","type":"loss","time":"9999-12-30T22:00:00Z","time_boot_ns":0,"seq":9,"node_name":"{name}","where":"{name}","count":{number},"from_boot_ns":{number},"to_boot_ns":0}}"#),
            attempt(3, &name, "success"),
        ];
        let mut bytes = lines.join("\n").into_bytes();
        let place = place % bytes.len();
        bytes[place] = byte;
        let (page, _) = page(&bytes);
        prop_assert!(!page.contains("<script"));
    }
}
