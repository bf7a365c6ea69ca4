// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Sorting, hashing, formatting, boxed closures and caught panics in two threads
// for a minute.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

#[inline(never)]
fn spin(n: u32) -> u32 {
    (0..n).fold(n, |x, i| black_box(x.wrapping_mul(1664525).wrapping_add(i)))
}

#[inline(never)]
fn recurse(depth: u32) -> u32 {
    let x = if depth > 0 { recurse(depth - 1) } else { spin(20000) };
    x.wrapping_add(spin(100))
}

#[inline(never)]
fn contained() -> usize {
    let mut counts: HashMap<String, u32> = HashMap::new();
    for i in 0..200u32 {
        *counts.entry(format!("{:?}", i * 7919 % 101)).or_default() += i;
    }
    let mut keys: Vec<_> = counts.into_iter().collect();
    keys.sort_by(|a, b| spin(20).cmp(&spin(20)).then_with(|| a.0.cmp(&b.0)));
    keys.len()
}

fn work(until: Instant) {
    let functions: Vec<Box<dyn Fn(u32) -> u32>> = vec![Box::new(recurse), Box::new(|x| spin(x * 100))];
    let mut i = 0;
    while Instant::now() < until {
        for f in &functions {
            black_box(f(i % 40));
        }
        black_box(contained());
        let _ = std::panic::catch_unwind(|| {
            if black_box(i) % 8 == 0 {
                std::panic::resume_unwind(Box::new(recurse(5)));
            }
        });
        i += 1;
    }
}

fn main() {
    let until = Instant::now() + Duration::from_secs(60);
    let other = std::thread::spawn(move || work(until));
    work(until);
    other.join().unwrap();
}
