//! The command as a whole.
