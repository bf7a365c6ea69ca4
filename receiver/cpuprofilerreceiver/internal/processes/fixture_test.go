// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

const containerID = "4f1c0c6b8a2e9d7f3b5a1c2d4e6f80917263544a5b6c7d8e9f0a1b2c3d4e5f60"

// host is a fake host. It is a directory with a procfs and a cgroup tree.
type host struct {
	t    testing.TB
	root string
	tree *cgroup.Tree
}

// proc describes the files of a process. If a field is empty, its file does not exist.
type proc struct {
	name, exe, environ, cgroup, maps string
	ppid                             int
	ticks                            uint64
	threads                          int
	kernel, starting, ending         bool
	uid                              string
	tasks                            map[int]string
}

// newHost returns a host with a cgroup v2 tree. If v1 is true, the host also has the
// v1 hierarchies cpu and systemd.
func newHost(t testing.TB, v1 bool) *host {
	h := &host{t: t, root: t.TempDir()}
	if v1 {
		for _, dir := range []string{"cpu", "systemd", "unified"} {
			h.write("sys/fs/cgroup/"+dir+"/cgroup.procs", "")
		}
		h.write("sys/fs/cgroup/unified/cgroup.controllers", "")
	} else {
		h.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
		h.write("sys/fs/cgroup/cgroup.procs", "")
	}
	tree, err := cgroup.Open(h.root)
	require.NoError(t, err)
	h.tree = tree
	return h
}

func (h *host) write(path, content string) {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
}

// process writes the files of a process. It replaces any process with the same pid.
func (h *host) process(pid int, p proc) {
	h.t.Helper()
	h.exit(pid)
	dir := fmt.Sprintf("proc/%d/", pid)
	flags := 0x400100
	if p.kernel {
		flags |= 0x00200000
	}
	if p.ending {
		flags |= 0x4
	}
	code := 1
	if p.starting {
		code = 0
	}
	h.write(dir+"stat", fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 1 2 3 4 5 6 7 8 20 0 %d 0 %d 100 200 300 %d\n",
		pid, p.name, p.ppid, flags, max(p.threads, 1), p.ticks, code))
	h.write(dir+"environ", p.environ)
	h.write(dir+"maps", p.maps)
	if p.cgroup != "" {
		h.write(dir+"cgroup", p.cgroup)
	}
	if p.uid != "" {
		h.write(dir+"status", fmt.Sprintf("Name:\tx\nState:\tS (sleeping)\nPid:\t%d\nUid:\t", pid)+p.uid+"\nGid:\t0\t0\t0\t0\n")
	}
	for tid, name := range p.tasks {
		h.write(fmt.Sprintf("%stask/%d/comm", dir, tid), name+"\n")
	}
	if p.exe != "" {
		require.NoError(h.t, os.Symlink(p.exe, filepath.Join(h.root, dir, "exe")))
	}
}

func (h *host) exit(pid int) {
	require.NoError(h.t, os.RemoveAll(filepath.Join(h.root, fmt.Sprintf("proc/%d", pid))))
}

func (h *host) table(change func(*Config)) *Table {
	cfg := Config{Access: mappedfile.Access{Root: h.root}, Tree: h.tree}
	if change != nil {
		change(&cfg)
	}
	t := NewTable(cfg)
	t.boot = time.Unix(1700000000, 0).UTC()
	return t
}

func attributes(t testing.TB, r *samples.Resource) map[string]any {
	t.Helper()
	require.NotNil(t, r)
	m := map[string]any{}
	before := ""
	for _, a := range r.Attributes {
		require.Less(t, before, a.Key, "keys are not sorted, or one is there twice")
		require.NotEqual(t, "", a.Value, "empty value of %s", a.Key)
		m[a.Key] = a.Value
		before = a.Key
	}
	return m
}

func environ(variables ...string) string { return strings.Join(variables, "\x00") + "\x00" }
