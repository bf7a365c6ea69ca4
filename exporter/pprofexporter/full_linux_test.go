// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// onDisk runs the rest of a test in a child process that has its own mount namespace and
// its own disk of 1 MiB. In the child, onDisk returns the directory of the disk. In the
// parent, onDisk returns "", and the test must return.
func onDisk(t *testing.T) string {
	t.Helper()
	const variable = "HOTPROFILE_TEST_DISK"
	if dir := os.Getenv(variable); dir != "" {
		require.NoError(t, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
		require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
		return dir
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if os.Geteuid() != 0 && err != nil {
		hosttest.SkipUnprivileged(t, "a mount namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return ""
}

// incompressible returns a string of n bytes that gzip compresses only to about 4/5 of
// its size.
func incompressible(n int) string {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(' ' + r.IntN(95))
	}
	return string(b)
}

func TestFullDiskLosesTheOldestFilesAndNotTheNewest(t *testing.T) {
	dir := onDisk(t)
	if dir == "" {
		return
	}
	h := started(t, func(c *Config) { c.Directory = dir })
	const stranger = "precious.pb.gz"
	require.NoError(t, os.WriteFile(filepath.Join(dir, stranger), make([]byte, 200<<10), 0o600))
	const files = 20
	for i := range files {
		in := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", fmt.Sprint("t", i), fmt.Sprintf("2026-05-28T20:26:%02dZ", i)), Hot: 1}
		for j := range 32 { // texts are truncated to 8 KiB
			in.Profile[fmt.Sprint("hotprofile.x", j)] = incompressible(8000 + 100*i + j)
		}
		h.send(in)
	}
	require.NoError(t, h.shutdown(context.Background()))
	require.EqualValues(t, files, h.counted("pprof.samples", "written"))
	require.Zero(t, h.counted("pprof.samples", "failed"))
	have := h.files()
	require.Contains(t, have, stranger)
	require.GreaterOrEqual(t, len(have), 3, "%v", have)
	removed := files - (len(have) - 1)
	require.EqualValues(t, removed, h.counted("pprof.files.removed", ""))
	for i, name := range have[:len(have)-1] {
		require.Equal(t, fmt.Sprintf("checkout_a_20260528T2026%02dZ_cpu_cpu.pb.gz", removed+i), name, "the oldest is removed first")
		h.read(name)
	}
	lines := h.logs.FilterMessage("disk full, oldest files removed").All()
	require.NotEmpty(t, lines)
	require.Contains(t, lines[0].ContextMap()["error"], "no space left on device")
}

// TestFullDiskWithoutFilesOfOursIsAFailure covers a disk that other programs have filled.
// The exporter must not remove files of other programs.
func TestFullDiskWithoutFilesOfOursIsAFailure(t *testing.T) {
	dir := onDisk(t)
	if dir == "" {
		return
	}
	h := started(t, func(c *Config) { c.Directory = dir })
	stranger := filepath.Join(dir, "precious.pb.gz")
	f, err := os.Create(stranger)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	before, err := os.Stat(stranger)
	require.NoError(t, err)

	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3})
	err = h.shutdown(context.Background())
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.EqualValues(t, 3, h.counted("pprof.samples", "failed"))
	require.Equal(t, []string{filepath.Base(stranger)}, h.files(), "no part of a file is left")
	after, err := os.Stat(stranger)
	require.NoError(t, err)
	require.Equal(t, before.Size(), after.Size())

	// The exporter starts, and it writes files again once there is room.
	full := started(t, func(c *Config) { c.Directory = dir })
	require.NoError(t, os.Truncate(stranger, 0))
	full.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3})
	require.NoError(t, full.shutdown(context.Background()))
	require.EqualValues(t, 3, full.counted("pprof.samples", "written"))
}
