// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Command record records traces of scripted loads in cgroups.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "record: it needs Linux, where there are cgroups")
	os.Exit(1)
}
