// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Computes until its standard input is closed.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
class Basket {
  total(n) { let sum = 0; for (let i = 0; i < n; i++) sum += i % 7; return sum; }
}
const basket = new Basket();
let open = true;
process.stdin.on('end', () => { open = false; }).resume();
function work() {
  for (const until = Date.now() + 50; Date.now() < until;) { fib(22); basket.total(20000); }
  if (open) setImmediate(work);
}
console.log('ready');
work();
