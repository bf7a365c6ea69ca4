// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	_ "embed" // of the source
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/churn.c
var churnSource []byte

// Churn is a program that starts processes. It has two names: the name of the parent
// process, and the name of the processes that the parent starts. Its arguments are:
//
//	churn CHILD RATE COUNT BURN   start COUNT processes, RATE a second, that burn
//	                              BURN seconds of CPU time each; then print how
//	                              many it started in how many seconds, and wait
//	bomb                          start processes that do the same, without end
//	hot                           spin
//	threads COUNT                 start threads that use a two-thousandth of a CPU
//	                              each; print when all are there
//	again OTHER COUNT             live for a second, become the program OTHER, which
//	                              becomes this one again, COUNT times in all, which
//	                              takes the kernel milliseconds; OTEL_SERVICE_NAME is
//	                              the path of each
//	into PROGRAM ARGUMENT...      become that in other namespaces on a line of input
type Churn struct{ Parent, Child string }

// CompileChurn compiles the program. It skips the test without a C compiler.
func CompileChurn(t testing.TB) Churn {
	t.Helper()
	cc := Tool(t, "cc")
	dir := t.TempDir()
	c := Churn{Parent: filepath.Join(dir, "churn"), Child: filepath.Join(dir, "churn-child")}
	source := c.Parent + ".c"
	if err := os.WriteFile(source, churnSource, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{c.Parent, c.Child} {
		out, err := exec.Command(cc, "-O1", "-static", "-pthread", "-fno-omit-frame-pointer", "-o", name, source).CombinedOutput()
		if err != nil {
			SkipUnprivileged(t, "compiling a static program: %v\n%s", err, out)
		}
	}
	return c
}
