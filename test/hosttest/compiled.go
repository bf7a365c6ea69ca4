// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// programs contains the programs that Compiled has compiled, by key.
var programs sync.Map

type program struct {
	mu      sync.Mutex // held while the program is compiled
	content []byte     // nil if the program is not compiled
}

// Compiled returns the path of a program. The function compile writes the program to a
// path. A process calls compile only once for each key. Each call of Compiled returns a new
// copy, so that tests may change it. The file has the given name.
func Compiled(t testing.TB, name, key string, compile func(out string)) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	known, _ := programs.LoadOrStore(key, &program{})
	p := known.(*program)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.content == nil {
		compile(out)
		content, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		p.content = content
		return out
	}
	// A file cannot be executed while a forked child has inherited its open descriptor.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(out, p.content, 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}
