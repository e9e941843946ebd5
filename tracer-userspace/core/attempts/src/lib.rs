//! The first half of the pure core: observations joined into attempts, with what is known of the node ([`correlate`]), and
//! the names of their pods, probes and namespaces, with what came of them by what the probe wants ([`enrich`]). It lies
//! below `core/`, so that the bans of that crate's `clippy.toml` hold here, too.

pub mod correlate;
pub mod enrich;
