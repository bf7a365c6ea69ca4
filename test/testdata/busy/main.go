// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command busy uses a quarter of a CPU, or a whole CPU if it has an argument. The tests look
// for the names of its functions.
package main

import (
	"os"
	"time"
)

//go:noinline
func outer(n int) (sum int) {
	for i := range n {
		sum += inlined(i)
	}
	return sum
}

// inlined is inlined into outer by the compiler.
func inlined(i int) int {
	x := i
	for range 64 {
		x = x*1103515245 + 12345
	}
	return x
}

func main() {
	sum := 0
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		sum += outer(100_000) // takes 6 ms
		if len(os.Args) == 1 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if sum == 42 {
		os.Exit(1)
	}
}
