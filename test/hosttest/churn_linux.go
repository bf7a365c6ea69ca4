// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	_ "embed" // for the source of churn
	"os"
	"os/exec"
	"testing"
)

//go:embed testdata/churn.c
var churnSource []byte

// Churn is a program that starts processes. Parent is the path of the parent
// process's program. Child is the path of the program of the processes that the
// parent starts. The arguments are:
//
//	churn CHILD RATE COUNT BURN   start COUNT processes, RATE per second, each of which
//	                              uses BURN seconds of CPU time; then print the number
//	                              of started processes and the seconds, and wait
//	bomb                          start processes that do the same, without end
//	hot                           spin
//	threads COUNT                 start threads, each of which uses a two-thousandth of
//	                              a CPU; print a line when all threads are running
//	again OTHER COUNT             after a second, become the program OTHER, which becomes
//	                              this program again, COUNT times in total; each change
//	                              takes the kernel milliseconds; OTEL_SERVICE_NAME is
//	                              the path of the current program
//	into PROGRAM ARGUMENT...      after a line of input, run PROGRAM in new namespaces
type Churn struct{ Parent, Child string }

// CompileChurn compiles the program. It skips the test if there is no C compiler.
func CompileChurn(t testing.TB) Churn {
	t.Helper()
	program := func(name string) string {
		return Compiled(t, name, "churn", func(out string) {
			cc := Tool(t, "cc")
			source := out + ".c"
			if err := os.WriteFile(source, churnSource, 0o644); err != nil {
				t.Fatal(err)
			}
			text, err := exec.Command(cc, "-O1", "-static", "-pthread", "-fno-omit-frame-pointer", "-o", out, source).CombinedOutput()
			if err != nil {
				SkipUnprivileged(t, "compiling a static program: %v\n%s", err, text)
			}
		})
	}
	return Churn{Parent: program("churn"), Child: program("churn-child")}
}
