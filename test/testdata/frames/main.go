// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command frames prints what the runtime knows about its own code, then waits for its
// standard input to close. A line has a return address, then the function, file, line and
// start line of the innermost function there.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"strings"
)

type shape[T any] struct{ side T }

//go:noinline
func stack(out func(pcs []uintptr)) {
	var pcs [64]uintptr
	out(pcs[:runtime.Callers(1, pcs[:])])
}

func inlinedOnce(out func([]uintptr)) { stack(out) }

func inlinedTwice(out func([]uintptr)) { inlinedOnce(out) }

func (s *shape[T]) generic(out func([]uintptr)) {
	func() { inlinedTwice(out) }()
}

//go:noinline
func caller(out func([]uintptr)) {
	(&shape[string]{}).generic(out)
}

func print(w io.Writer, pc uintptr) {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	start := int64(0)
	if v := reflect.ValueOf(frame).FieldByName("startLine"); v.IsValid() { // Go 1.20
		start = v.Int()
	}
	if frame.Function == "" {
		return // the runtime has no name for the first function of its table
	}
	if frame.File == "?" {
		frame.File = ""
	}
	fmt.Fprintf(w, "%x\t%s\t%s\t%d\t%d\n", pc, frame.Function, frame.File, frame.Line, start)
}

func main() {
	w := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(w, "stack")
	caller(func(pcs []uintptr) {
		for _, pc := range pcs {
			print(w, pc)
		}
	})
	fmt.Fprintln(w, "text")
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		panic(err)
	}
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	for _, m := range strings.Split(string(maps), "\n") {
		if !strings.Contains(m, " r-xp ") || !strings.HasSuffix(m, exe) {
			continue
		}
		var start, limit uintptr
		fmt.Sscanf(m, "%x-%x", &start, &limit)
		for pc := start; pc < limit; pc += 29 {
			// The runtime does not step back from a function's first
			// instruction, which a call cannot return to in its own function.
			if f := runtime.FuncForPC(pc + 1); f != nil && f.Entry() != pc+1 {
				print(w, pc+1)
			}
		}
	}
	fmt.Fprintln(w, "end")
	w.Flush()
	io.Copy(io.Discard, os.Stdin)
}
