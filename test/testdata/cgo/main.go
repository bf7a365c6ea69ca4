// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command cgo prints the address of a C function. Then it waits
// until its standard input is closed.
package main

/*
static int twice(int x) { return x * 2; }
int in_c(int x) { return twice(x) + 1; }
typedef int (*function)(int);
static function address(void) { return in_c; }
*/
import "C"

import (
	"fmt"
	"io"
	"os"
	"unsafe"
)

func main() {
	fmt.Printf("%x %d\n", uintptr(unsafe.Pointer(C.address())), C.in_c(1))
	io.Copy(io.Discard, os.Stdin)
}
