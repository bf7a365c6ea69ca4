// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "soak: sampling and cgroups need Linux")
	os.Exit(1)
}
