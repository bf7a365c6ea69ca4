// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// ways maps each mode of testdata/waits.c to the wait reason of its first thread.
var ways = map[string]string{
	"tcp_read": "network", "tcp_recv": "network", "tcp_write": "network", "tcp_connect": "network", "tcp_accept": "network",
	"udp_recv": "network", "unix_read": "network", "unix_write": "network", "unix_datagram": "network", "unix_connect": "network",
	"direct_read": "disk", "direct_write": "disk", "cached_read": "disk", "fsync": "disk", "page_fault": "disk",
	"tcp_recv_page_fault": "disk",
	"mutex":               "lock", "condition": "lock", "semaphore": "lock", "sysv_semaphore": "lock", "flock": "lock",
	"nanosleep": "sleep", "clock_nanosleep": "sleep",
	"pipe": "other", "eventfd": "other", "poll": "other", "select": "other", "epoll": "other", "child": "other", "signal": "other",
}

// wait is a sample of the off-CPU sampler.
type wait struct {
	row
	typ   string
	value int64
}

func (w wait) of(pid int) bool { return w.resource["process.pid"] == int64(pid) }

func (w wait) reason() string { s, _ := w.attrs["hotprofile.wait"].(string); return s }

// kernel returns the names of the kernel functions on the stack,
// starting with the innermost function.
func (w wait) kernel() string {
	var names []string
	for i, f := range w.functions {
		if w.types[i] == "kernel" {
			names = append(names, f)
		}
	}
	return strings.Join(names, " ")
}

// known reports whether the stack has kernel functions and all of them have names. A stack
// may have no kernel functions for reasons outside of the receiver. For example, if several
// programs sample the same switch, the kernel unwinds the stack only once, with the options
// of the first program.
func (w wait) known() bool { return w.kernel() != "" && !strings.Contains(w.kernel(), "?") }

func waitsIn(all []pprofile.Profiles) (out []wait) {
	for _, ps := range all {
		of := rows([]pprofile.Profiles{ps})
		i := 0
		for _, rp := range ps.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					typ := ps.Dictionary().StringTable().At(int(p.SampleType().TypeStrindex()))
					for _, s := range p.Samples().All() {
						w := wait{row: of[i], typ: typ}
						if s.Values().Len() > 0 {
							w.value = s.Values().At(0)
						}
						out = append(out, w)
						i++
					}
				}
			}
		}
	}
	return out
}

func needKernelNames(t *testing.T) {
	t.Helper()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil || strings.HasPrefix(string(symbols), "0000000000000000 ") {
		hosttest.SkipUnprivileged(t, "/proc/kallsyms shows no addresses: %v", err)
	}
}

// onDisk writes a file of 1 MiB to the disk and returns its path.
// Each program gets its own file.
func onDisk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	content := make([]byte, 1<<20)
	_, _ = rand.Read(content)
	_, err = f.Write(content)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	return path
}

func inMemory(t *testing.T, path string) bool {
	t.Helper()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &fs))
	return fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

// offCPUAlways enables off-CPU sampling of the given processes.
func offCPUAlways(pids ...int) func(*Config) {
	return func(c *Config) {
		for _, pid := range pids {
			c.Targets = append(c.Targets, TargetConfig{PID: pid})
		}
		waits := offcpu.DefaultConfig()
		waits.When, waits.MinDuration = sampler.WhenAlways, 0
		c.CPU.Enabled = false
		c.OffCPU = configoptional.Some(waits)
		c.ThreadAttributes = []string{"thread.id"}
		// Unwinding with frame pointers includes the kernel's frames, and
		// no copies of stacks can be lost.
		c.Unwind = UnwindFramePointer
	}
}

// TestSamplesHaveWhatProgramsWaitFor runs a program for each way to wait. Most of the
// off-CPU time of the program's first thread must have the expected wait reason.
// HOTPROFILE_UPDATE_GOLDEN=1 records the stacks for the tests of waitreason.
func TestSamplesHaveWhatProgramsWaitFor(t *testing.T) {
	needKernelNames(t)
	binary := program(t, "waits")
	pids := map[string]int{}
	for way, waits := range ways {
		path := onDisk(t)
		if waits == "disk" && inMemory(t, path) {
			t.Logf("%s is left out: temporary files are in memory", way)
			continue
		}
		cmd := exec.Command(binary, way, path)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			stdin.Close()
			_ = cmd.Wait()
		})
		pids[way] = cmd.Process.Pid
	}
	r := start(t, offCPUAlways(slices.Collect(maps.Values(pids))...))

	var missing []string
	var all []wait
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		all, missing = waitsIn(r.sink.AllProfiles()), nil
		for way, pid := range pids {
			total, right := sumOf(all, pid, ways[way])
			if right == 0 || right*2 < total {
				missing = append(missing, fmt.Sprintf("%s: %v of %v", way, right, total))
			}
		}
		if len(missing) == 0 {
			break
		}
	}
	require.Empty(t, missing)
	for _, w := range all {
		switch {
		case w.typ == "runqueue":
			require.Empty(t, w.reason(), "it waited for a CPU")
		case w.known(): // otherwise the names were not read yet, or there is no stack
			require.Contains(t, []string{"network", "disk", "lock", "sleep", "other"}, w.reason(), w.functions)
		}
	}
	r.stop()
	r.conforms()
	require.Empty(t, r.logs.FilterMessage("off-CPU sampling started").All()[0].ContextMap()["not_shown"])
	recordStacks(t, all, pids)
}

// sumOf returns the off-CPU time of a process's first thread and the part of this time
// that has the given wait reason. Waits without a stack are not included.
func sumOf(all []wait, pid int, reason string) (total, right time.Duration) {
	for _, w := range all {
		if w.typ != "off_cpu" || !w.of(pid) || w.attrs["thread.id"] != int64(pid) || w.functions[0] == "[no stack]" {
			continue
		}
		total += time.Duration(w.value)
		if w.reason() == reason {
			right += time.Duration(w.value)
		}
	}
	return total, right
}

func recordStacks(t *testing.T, all []wait, pids map[string]int) {
	t.Helper()
	var release unix.Utsname
	require.NoError(t, unix.Uname(&release))
	text := "# Stacks of testdata/waits.c of the receiver, on Linux " + unix.ByteSliceToString(release.Release[:]) + ":\n# the way, what it waits for, functions from the innermost on.\n"
	for _, way := range slices.Sorted(maps.Keys(pids)) {
		sums := map[string]int64{}
		for _, w := range all {
			if w.typ == "off_cpu" && w.of(pids[way]) && w.attrs["thread.id"] == int64(pids[way]) && w.reason() == ways[way] {
				sums[w.kernel()] += w.value
			}
		}
		stacks := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return int(sums[b] - sums[a]) })
		for _, stack := range stacks[:min(2, len(stacks))] {
			text += way + " " + ways[way] + " " + stack + "\n"
		}
	}
	t.Log(text)
	if os.Getenv("HOTPROFILE_UPDATE_GOLDEN") == "1" {
		require.NoError(t, os.WriteFile("internal/waitreason/testdata/stacks.txt", []byte(text), 0o644))
	}
}

// TestSamplesHaveWhatThreadsOfAGoProgramWaitFor checks the wait reasons of a Go
// program's threads. The threads block in functions of the runtime, because a blocked
// goroutine does not block its thread.
func TestSamplesHaveWhatThreadsOfAGoProgramWaitFor(t *testing.T) {
	needKernelNames(t)
	cmd := run(t, exec.Command(program(t, "gowaits")))
	r := start(t, offCPUAlways(cmd.Process.Pid))
	functions := map[string]string{"runtime.futex": "lock", "runtime.netpoll": "other", "runtime.usleep": "sleep"}
	r.until("each wait of the runtime", func([]row) bool {
		found := map[string]int{}
		for _, w := range waitsIn(r.sink.AllProfiles()) {
			for function, waits := range functions {
				if w.typ == "off_cpu" && slices.Contains(w.functions, function) && len(w.kernel()) > 0 {
					require.Equal(t, waits, w.reason(), w.functions)
					found[function]++
				}
			}
		}
		return len(found) == len(functions)
	})
}

// TestSamplesDoNotHaveWhatIsUnknownOfWaits checks that samples have no wait reason if
// kernel stacks or the names of kernel functions are missing. The log must contain the
// cause.
func TestSamplesDoNotHaveWhatIsUnknownOfWaits(t *testing.T) {
	needKernelNames(t)
	cmd := run(t, exec.Command(program(t, "gowaits")))
	hidden := rootWithoutNames(t)
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no kernel stacks": {func(c *Config) { c.KernelStacks = KernelStacksFalse }, "kernel_stacks is false"},
		"no names":         {func(c *Config) { c.RootPath = hidden }, "CAP_SYSLOG"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(cfg *Config) {
				offCPUAlways(cmd.Process.Pid)(cfg)
				c.change(cfg)
			})
			r.until("waits", func([]row) bool { return len(waitsIn(r.sink.AllProfiles())) > 20 })
			unknown := 0
			for _, w := range waitsIn(r.sink.AllProfiles()) {
				if w.known() {
					continue
				}
				require.Empty(t, w.reason(), w.functions)
				unknown++
			}
			if unknown == 0 {
				t.Log("another profiler samples these switches: see known")
			}
			notShown := r.logs.FilterMessage("off-CPU sampling started").All()[0].ContextMap()["not_shown"]
			require.Len(t, notShown, 1)
			require.Contains(t, notShown.([]any)[0], c.says)
		})
	}
}

// rootWithoutNames returns a directory that imitates the root directory. In its
// kallsyms, all addresses are zero.
func rootWithoutNames(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	link := func(from, to, except string) {
		entries, err := os.ReadDir(from)
		require.NoError(t, err)
		for _, e := range entries {
			target := filepath.Join(from, e.Name())
			if e.Name() == except {
				continue
			}
			if e.Type()&os.ModeSymlink != 0 {
				target, err = os.Readlink(target) // /proc/self links to a pid
				require.NoError(t, err)
			}
			require.NoError(t, os.Symlink(target, filepath.Join(to, e.Name())))
		}
	}
	link("/", root, "proc")
	proc := filepath.Join(root, "proc")
	require.NoError(t, os.Mkdir(proc, 0o755))
	link("/proc", proc, "kallsyms")
	require.NoError(t, os.WriteFile(filepath.Join(proc, "kallsyms"), []byte("0000000000000000 T schedule\n"), 0o644))
	return root
}
