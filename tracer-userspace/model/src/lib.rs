//! The plain data that the parts of tracer exchange: observations ([`event`]), queries to the node ([`query`]),
//! decisions of the core ([`decision`]), and records with the table of causes ([`record`]). Nothing here reads a clock,
//! a file or a socket. These types are the formats of recordings and records, so a change here changes a public format.

/// Displays variants by their names in records and recordings, which serde's attributes define.
macro_rules! display_as_serialized {
    ($($name:ident),*) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    )*};
}

pub mod decision;
pub mod event;
#[doc(hidden)]
pub mod fuzzing;
pub mod lines;
pub mod plural;
pub mod query;
pub mod recent;
pub mod record;
mod remediation;
pub mod shell;
