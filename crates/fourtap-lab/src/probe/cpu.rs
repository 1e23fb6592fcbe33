//! What this processor can do at most.
