// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// remote contains the mappings of two programs. The first program runs from a mounted
// file system, and the second program does not.
type remote struct {
	*hosttest.Mount
	s              *Symbolizer
	program, other string
	m, otherM      *samples.Mapping
	// at contains the addresses of functions. The addresses are looked up in
	// advance, because no command may be started while the file system does not
	// respond. A new process first closes the files that it has inherited, and
	// would wait for the file system.
	at map[*samples.Mapping]map[string]uint64
}

func newRemote(t *testing.T) *remote {
	t.Helper()
	r := &remote{other: build(t, nil, "gcc", "-O1", "-no-pie", "-o", "OUT", "testdata/native.c")}
	content, err := os.ReadFile(r.other)
	require.NoError(t, err)
	r.Mount = hosttest.NewMount(t, map[string][]byte{"program": content})
	r.program = filepath.Join(r.Dir, "program")
	// The programs must end while the file system still responds.
	for _, p := range []struct {
		path string
		m    **samples.Mapping
	}{{r.program, &r.m}, {r.other, &r.otherM}} {
		// A shell starts the program from the mount. The test process contains the server of
		// the file system, and may be blocked completely while it starts another process. It
		// must therefore not start the program itself.
		running := startCommand(t, exec.Command("sh", "-c", "exec "+p.path))
		require.Equal(t, "ready", running.line(t))
		*p.m = mappingOf(t, mappings(t, running.pid), p.path)
	}
	r.at = make(map[*samples.Mapping]map[string]uint64)
	for _, m := range []*samples.Mapping{r.m, r.otherM} {
		r.at[m] = make(map[string]uint64)
		for _, function := range []string{"exported", "hidden", "main"} {
			r.at[m][function] = addressOf(t, r.other, m, function)
		}
	}
	t.Cleanup(r.Go)
	r.s = New(Config{Access: mappedfile.Access{Runner: stuckread.New(zap.NewNop(), nil, nil)}})
	t.Cleanup(r.s.Close)
	return r
}

// resolve resolves a function. If a file does not respond, resolve starts again, in the
// same way as the exporter does.
func (r *remote) resolve(t *testing.T, m *samples.Mapping, function string) []samples.Line {
	t.Helper()
	l := leaf(m, r.at[m][function])
	for range 3 {
		if r.s.Take(func() { r.s.Resolve(0, l) }) == nil {
			break
		}
	}
	return l.Lines
}

// forget evicts the program's file from the page cache.
func (r *remote) forget(t *testing.T) {
	t.Helper()
	// os.Open is not used, because it adds the file to the runtime's poller with a system
	// call that may wait for the file system. This would be a deadlock. The garbage
	// collector would wait for the system call, and the server of the file system, which is
	// in this process, would wait for the garbage collector.
	fd, err := unix.Open(r.program, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
	require.NoError(t, unix.Close(fd))
}

func named(function string) []samples.Line { return []samples.Line{{Function: function}} }

// TestFileThatStopsToAnswerCostsItsOwnNames checks that only the names of one file are
// missing if reads of the file block.
func TestFileThatStopsToAnswerCostsItsOwnNames(t *testing.T) {
	r := newRemote(t)
	require.Equal(t, named("exported"), r.resolve(t, r.m, "exported"))
	require.Equal(t, named("exported"), r.resolve(t, r.otherM, "exported"))
	r.forget(t)
	r.Stop()
	require.Empty(t, r.resolve(t, r.m, "hidden"))
	require.NotZero(t, r.Asked())
	require.Equal(t, 1, r.s.cfg.Runner.Stats().Stuck)
	require.Empty(t, r.resolve(t, r.m, "main"), "it is not asked again")
	require.Equal(t, 1, r.s.cfg.Runner.Stats().Stuck)
	require.Equal(t, named("hidden"), r.resolve(t, r.otherM, "hidden"))

	r.Go()
	eventually(t, "it answers again", func() bool { return r.s.cfg.Runner.Stats().Stuck == 0 })
	require.Equal(t, named("exported"), r.resolve(t, r.m, "exported"), "what is known needs no reading")
}

func TestFileThatDoesNotOpenCostsItsOwnNames(t *testing.T) {
	r := newRemote(t)
	r.forget(t)
	r.Stop()
	r.s.Track(r.m)
	eventually(t, "it does not answer", func() bool { return r.s.cfg.Runner.Stats().Stuck == 1 })
	r.s.Track(r.otherM)
	eventually(t, "the other file is open", func() bool { return r.s.Counters().Objects == 1 })
	require.Empty(t, r.resolve(t, r.m, "exported"))
	require.Equal(t, named("exported"), r.resolve(t, r.otherM, "exported"))

	r.Go()
	eventually(t, "it is open too", func() bool { return r.s.Counters().Objects == 2 })
	require.Equal(t, named("exported"), r.resolve(t, r.otherM, "exported"))
}

func TestClosingDoesNotWaitForAFileThatDoesNotAnswer(t *testing.T) {
	r := newRemote(t)
	require.Equal(t, named("exported"), r.resolve(t, r.m, "exported"))
	require.Equal(t, named("exported"), r.resolve(t, r.otherM, "exported"))
	r.Stop()
	closed := make(chan struct{})
	go func() {
		r.s.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
	require.Equal(t, 1, r.s.cfg.Runner.Stats().Stuck)
	require.Zero(t, r.s.Counters().Objects)
	r.Go()
	eventually(t, "it was closed", func() bool { return r.s.cfg.Runner.Stats().Stuck == 0 })
}
