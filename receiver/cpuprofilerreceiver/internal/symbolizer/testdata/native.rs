// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Waits until its standard input is closed.
use std::io::{self, Read, Write};

mod shop {
    pub struct Basket<T> {
        pub items: Vec<T>,
    }
    pub trait Total {
        fn total(&self) -> u64;
    }
    impl<T: Copy + Into<u64>> Total for Basket<T> {
        #[inline(never)]
        fn total(&self) -> u64 {
            self.items.iter().map(|&i| i.into()).sum()
        }
    }
}

fn main() {
    use shop::Total;
    println!("ready");
    io::stdout().flush().unwrap();
    let mut rest = Vec::new();
    io::stdin().read_to_end(&mut rest).unwrap();
    println!("{}", shop::Basket { items: rest }.total());
}
