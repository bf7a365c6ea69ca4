// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/programtest"
)

func TestMain(m *testing.M) {
	programtest.Main(m, map[string]func() int{"unprivileged": unprivileged, "sender": sender})
}

// unprivileged is a program that prints the rights of an unprivileged process. Each line
// has the form "name: outcome".
func unprivileged() int {
	report := func(name string, err error) { fmt.Printf("%s: %v\n", name, err) }
	r := Probe()
	report("own", r.Own)
	report("host", r.HostWide)
	report("kernel", r.Kernel)
	if _, err := Open(Options{HostWide: true}); err != nil {
		report("open host", err)
	}
	s, err := Open(Options{SampleRing: 256 << 20})
	report("open own", err)
	if err != nil {
		return 0
	}
	_, err = s.AttachProcess(1)
	report("attach init", err)
	_, err = s.AttachHost()
	report("attach host", err)
	attachment, err := s.AttachProcess(os.Getpid())
	report("attach own", err)
	if err != nil {
		return 0
	}
	go programtest.Spin()
	var rec Record
	for n := 0; n < 20; {
		if err := s.Wait(time.Second); err != nil {
			report("wait", err)
			return 1
		}
		for s.Read(&rec) {
			if rec.Type == TypeSample && rec.Attachment == attachment && len(rec.Sample.User) > 0 && len(rec.Sample.Kernel) == 0 {
				n++
			}
		}
	}
	fmt.Println("sampled: true")
	report("close", s.Close())
	return 0
}

// exposedBinary returns the path of a copy of the test binary. Every user
// may run the copy.
func exposedBinary(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(programtest.Binary(t))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "perfevent")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "helper")
	require.NoError(t, os.WriteFile(path, data, 0o755))
	return path
}
