// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

#include <stdio.h>

static __attribute__((noinline)) int hidden(int x) { return x * 3 + getchar(); }

__attribute__((noinline)) int exported(int x) { return hidden(x) + 1; }

int main(int argc, char **argv) {
  puts("ready");
  fflush(stdout);
  return exported(argc);
}
