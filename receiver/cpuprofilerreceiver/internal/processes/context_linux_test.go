// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// publishingVariable is the environment variable that makes
// TestPublisher publish a context.
const publishingVariable = "HOTPROFILE_TEST_PUBLISHES"

// publishContext publishes a context in the memory of this process, as SDKs do. If
// anonymous is true, it uses anonymous memory with a name. It returns an error if the
// kernel cannot name anonymous memory.
func publishContext(anonymous bool, message []byte) error {
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	if !anonymous {
		var err error
		if fd, err = unix.MemfdCreate("OTEL_CTX", unix.MFD_CLOEXEC); err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 4096); err != nil {
			return err
		}
		flags = unix.MAP_PRIVATE
	}
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	at := uintptr(unsafe.Pointer(&b[0]))
	copy(b[contextHeader:], message)
	copy(b, header(uint64(time.Now().UnixNano()), len(message), uint64(at)+contextHeader))
	if anonymous {
		name := append([]byte("OTEL_CTX"), 0)
		return unix.Prctl(unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME, at, 4096, uintptr(unsafe.Pointer(&name[0])))
	}
	return nil
}

// TestPublisher is executed by other tests as a separate
// process that publishes its context.
func TestPublisher(t *testing.T) {
	kind := os.Getenv(publishingVariable)
	if kind == "" {
		t.Skip("is run by other tests")
	}
	if err := publishContext(kind == "anonymous", message("service.name", kind)); err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("published")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// publisher starts a process that publishes its context, and
// returns the pid of the process.
func publisher(t *testing.T, kind string) int {
	cmd := exec.Command(os.Args[0], "-test.run=^TestPublisher$", "-test.v")
	cmd.Env = []string{"OTEL_SERVICE_NAME=environment", publishingVariable + "=" + kind}
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	pid := child(t, cmd)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch line := lines.Text(); {
		case line == "published":
			return pid
		case len(line) > 6 && line[:6] == "failed":
			t.Skip(line) // the kernel was built without CONFIG_ANON_VMA_NAME
		}
	}
	t.Fatal("the process has ended")
	return 0
}

func TestRealContext(t *testing.T) {
	for _, kind := range []string{"memfd", "anonymous"} {
		t.Run(kind, func(t *testing.T) {
			pid := publisher(t, kind)
			now := time.Now()
			table := NewTable(Config{Now: func() time.Time { return now }})
			require.Equal(t, "environment", attributes(t, table.Lookup(pid, 0).Resource)["service.name"])
			now = now.Add(contextDelay)
			table.NextBatch()
			require.Equal(t, kind, attributes(t, table.Lookup(pid, 0).Resource)["service.name"])
		})
	}
}

// BenchmarkContext measures the cost of a process's first sample in a batch,
// with and without a published context. For comparison, it also measures
// reading a single file of /proc.
func BenchmarkContext(b *testing.B) {
	pid := os.Getpid()
	now := time.Now()
	batch := func(b *testing.B, table *Table) {
		b.ReportAllocs()
		for b.Loop() {
			table.NextBatch()
			table.Lookup(pid, 0)
		}
	}
	fixed := func() *Table {
		table := NewTable(Config{Now: func() time.Time { return now }})
		table.Lookup(pid, 0)
		return table
	}
	b.Run("batch without a context", func(b *testing.B) { batch(b, fixed()) })
	require.NoError(b, publishContext(false, message("service.name", "published")))
	table := fixed()
	now = now.Add(contextDelay)
	b.Run("batch with a context", func(b *testing.B) { batch(b, table) })
	require.NotZero(b, table.last.context.address)
	b.Run("search", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table.searchContext(table.last)
		}
	})
	b.Run("baseline: one file", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := table.fs.stat(pid); err != nil {
				b.Fatal(err)
			}
		}
	})
}
