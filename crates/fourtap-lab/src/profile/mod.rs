//! Hardware counters through Nsight Compute.
