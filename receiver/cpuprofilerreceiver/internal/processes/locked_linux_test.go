// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// holder maps a file. One thread reads the mapped page, and another thread creates more
// mappings. The file system fails the first read and does not answer the second read.
// While the kernel waits for the answer, it holds the lock of the process's memory. The
// other thread waits for the lock, and all later users of the lock wait behind it.
const holder = `
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile char *page;

static void *touch(void *unused) { return (void *)(long)*page; }

int main(int argc, char **argv) {
  page = mmap(0, 4096, PROT_READ, MAP_PRIVATE, open(argv[1], O_RDONLY), 0);
  puts("ready");
  fflush(stdout);
  getchar();
  pthread_t thread;
  pthread_create(&thread, 0, touch, 0);
  for (;;) {
    usleep(1000);
    munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
  }
}
`

func TestLockedMemoryCostsItsOwnProcess(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "holder")
	require.NoError(t, os.WriteFile(program+".c", []byte(holder), 0o600))
	out, err := exec.Command(hosttest.Tool(t, "gcc"), "-pthread", "-o", program, program+".c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	mount := hosttest.NewMount(t, map[string][]byte{"file": make([]byte, 4096)})

	locked := exec.Command(program, filepath.Join(mount.Dir, "file"))
	locked.Env = []string{"OTEL_SERVICE_NAME=locked"}
	stdin, err := locked.StdinPipe()
	require.NoError(t, err)
	stdout, err := locked.StdoutPipe()
	require.NoError(t, err)
	other := exec.Command("sleep", "3600")
	other.Env = []string{"OTEL_SERVICE_NAME=other"}
	pids := []int{child(t, locked), child(t, other)}
	t.Cleanup(mount.Go) // runs before the test waits for the processes
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	mount.StopAfterFailing(1)
	_, err = stdin.Write([]byte{'\n'})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return mount.Asked() > 0 }, time.Minute, time.Millisecond)

	var now atomic.Int64
	now.Store(int64(time.Hour))
	runner := stuckread.New(zap.NewNop(), nil, func() time.Time { return time.Unix(0, now.Load()) })
	service := func(table *Table, pid int) any { return attributes(t, table.Lookup(pid, 0).Resource)["service.name"] }
	// At first, the other thread may not be waiting for the lock yet.
	require.Eventually(t, func() bool {
		read := make(chan struct{})
		go func() {
			_, _ = procfs.ReadFile(procfs.At("").File(pids[0], "environ"), procfs.MaxEnviron)
			close(read)
		}()
		select {
		case <-read:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	}, time.Minute, time.Millisecond, "its environment can be read all the time")

	table := NewTable(Config{Access: mappedfile.Access{Runner: runner}})
	require.Nil(t, service(table, pids[0]))
	require.Equal(t, 1, runner.Stats().Stuck)
	require.Nil(t, service(table, pids[0]), "it is not asked again in this batch")
	require.Equal(t, "other", service(NewTable(Config{Access: mappedfile.Access{Runner: stuckread.New(zap.NewNop(), nil, nil)}}), pids[1]))
	now.Add(int64(time.Minute))
	table.NextBatch()
	require.Nil(t, service(table, pids[0]), "it is not asked again while it waits")
	require.Equal(t, 1, runner.Stats().Stuck)
	require.Equal(t, "other", service(table, pids[1]))

	mount.Go()
	require.Eventually(t, func() bool { return runner.Stats().Stuck == 0 }, time.Minute, time.Millisecond)
	now.Add(int64(time.Minute))
	table.NextBatch()
	require.Equal(t, "locked", service(table, pids[0]))
	require.NotEmpty(t, table.Lookup(pids[0], 0).Mapped())
}
