//! The C ABI: its header, its functions called as C calls them, and programs in C and C++ that use it.

mod bad_calls;
mod bad_numbers;
mod calls;
mod cuda;
mod dense_calls;
mod empty_calls;
mod header;
mod programs;
mod random_calls;
mod tensors;
