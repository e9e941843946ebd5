//! Addresses that tests write as text.

use std::fmt::Debug;
use std::str::FromStr;

/// The address, with or without a port.
#[track_caller]
pub fn address<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("an address")
}
