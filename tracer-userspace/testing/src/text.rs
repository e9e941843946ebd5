//! What is, or is not, in a text.

use std::fmt::Display;

/// Each of these is in the text.
#[track_caller]
pub fn assert_has(text: &impl Display, parts: &[&str]) {
    let text = text.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in: {text}"));
}

/// The text begins so.
#[track_caller]
pub fn assert_starts(text: &impl Display, part: &str) {
    let text = text.to_string();
    assert!(text.starts_with(part), "{part:?} does not begin: {text}");
}

/// The text ends so.
#[track_caller]
pub fn assert_ends(text: &impl Display, part: &str) {
    let text = text.to_string();
    assert!(text.ends_with(part), "{part:?} does not end: {text}");
}

/// None of these is in the text.
#[track_caller]
pub fn assert_lacks(text: &impl Display, parts: &[&str]) {
    let text = text.to_string();
    parts.iter().for_each(|part| assert!(!text.contains(part), "{part:?} is in: {text}"));
}
