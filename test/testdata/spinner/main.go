// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command spinner sorts, formats, allocates and recurses in
// two goroutines for one minute.
package main

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

var sink int

//go:noinline
func spin(n int) int {
	x := n
	for i := range n {
		x = x*1664525 + i
	}
	return x
}

//go:noinline
func recurse(depth int) int {
	if depth == 0 {
		return spin(20000)
	}
	return recurse(depth-1) + spin(100)
}

//go:noinline
func contained() int {
	counts := map[string]int{}
	for i := range 200 {
		counts[strings.Repeat(fmt.Sprint(i*7919%101), 3)] += i
	}
	keys := make([]string, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return spin(20)+len(keys[i]) < spin(20)+len(keys[j]) })
	return len(keys)
}

func work(until time.Time) {
	for i := 0; time.Now().Before(until); i++ {
		sink += recurse(i % 40)
		sink += contained()
	}
}

func main() {
	until := time.Now().Add(time.Minute)
	go work(until)
	work(until)
}
