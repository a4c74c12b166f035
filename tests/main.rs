//! The one integration binary: the whole of Hark, driven from outside.

mod cli;
