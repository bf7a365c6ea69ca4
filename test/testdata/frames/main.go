// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command frames prints the runtime's information about the command's own code. Each line
// contains a return address, and the function, file, line and start line of the innermost
// function at this address. Then the command waits until its standard input is closed.
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
	if v := reflect.ValueOf(frame).FieldByName("startLine"); v.IsValid() { // exists since Go 1.20
		start = v.Int()
	}
	if frame.Function == "" {
		return // the runtime has no name for the first function in its table
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
			// A call cannot return to the first instruction of a function, so the runtime
			// does not look up the instruction before it.
			if f := runtime.FuncForPC(pc + 1); f != nil && f.Entry() != pc+1 {
				print(w, pc+1)
			}
		}
	}
	fmt.Fprintln(w, "end")
	w.Flush()
	io.Copy(io.Discard, os.Stdin)
}
