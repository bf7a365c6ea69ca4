// Three functions use 60, 30 and 10 percent of the CPU time. Their loops run so long that V8
// replaces the code of a running loop.
'use strict';

let sink = 0;

function sixty() {
  let x = 1;
  for (let i = 0; i < 1200000; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
  }
  sink += x;
}

function thirty() {
  let x = 2;
  for (let i = 0; i < 600000; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
  }
  sink += x;
}

function ten() {
  let x = 3;
  for (let i = 0; i < 200000; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
  }
  sink += x;
}

function main() {
  for (;;) {
    sixty();
    thirty();
    ten();
  }
}

main();
