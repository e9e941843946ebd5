//! Joins observations into attempts (skeleton).
