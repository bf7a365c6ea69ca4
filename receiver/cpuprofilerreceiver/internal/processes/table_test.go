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
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestResource(t *testing.T) {
	for name, c := range map[string]struct {
		v1   bool
		proc proc
		want map[string]any
	}{
		"in a Docker container, whose systemd unit is not the service": {
			proc: proc{
				name: "java", exe: "/opt/jdk/bin/java", ticks: 150,
				cgroup: "0::/system.slice/docker-" + containerID + ".scope\n",
			},
			want: map[string]any{
				"container.id":            containerID,
				"process.creation.time":   "2023-11-14T22:13:21.5Z",
				"process.executable.name": "java",
				"process.executable.path": "/opt/jdk/bin/java",
				"process.linux.cgroup":    "/system.slice/docker-" + containerID + ".scope",
			},
		},
		"in a pod, with a name from its environment": {
			proc: proc{
				name: "python3", exe: "/usr/bin/python3.12 (deleted)", ticks: 100,
				cgroup: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-" + containerID + ".scope\n",
				environ: environ("PATH=/bin", "OTEL_SERVICE_NAME=cart",
					"OTEL_RESOURCE_ATTRIBUTES=service.namespace=shop,service.version=1%2E0,service.instance.id=7,deployment.environment.name=prod"),
			},
			want: map[string]any{
				"container.id":                containerID,
				"deployment.environment.name": "prod",
				"k8s.pod.uid":                 "0a1b2c3d-1111-2222-3333-444455556666",
				"process.creation.time":       "2023-11-14T22:13:21Z",
				"process.executable.name":     "python3.12",
				"process.executable.path":     "/usr/bin/python3.12",
				"process.linux.cgroup":        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-" + containerID + ".scope",
				"service.instance.id":         "7",
				"service.name":                "cart",
				"service.namespace":           "shop",
				"service.version":             "1.0",
			},
		},
		"a systemd service": {
			proc: proc{name: "nginx", exe: "/usr/sbin/nginx", ticks: 100, cgroup: "0::/system.slice/nginx.service\n"},
			want: map[string]any{
				"process.creation.time":   "2023-11-14T22:13:21Z",
				"process.executable.name": "nginx",
				"process.executable.path": "/usr/sbin/nginx",
				"process.linux.cgroup":    "/system.slice/nginx.service",
				"service.name":            "nginx",
			},
		},
		"a systemd service of a v1 host": {
			v1:   true,
			proc: proc{name: "nginx", exe: "/usr/sbin/nginx", ticks: 100, cgroup: "2:cpu,cpuacct:/system.slice\n1:name=systemd:/system.slice/nginx.service\n0::/\n"},
			want: map[string]any{
				"process.creation.time":   "2023-11-14T22:13:21Z",
				"process.executable.name": "nginx",
				"process.executable.path": "/usr/sbin/nginx",
				"process.linux.cgroup":    "/system.slice",
				"service.name":            "nginx",
			},
		},
		"in the root cgroup": {
			proc: proc{name: "sh", exe: "/bin/sh", ticks: 100, cgroup: "0::/\n"},
			want: map[string]any{
				"process.creation.time":   "2023-11-14T22:13:21Z",
				"process.executable.name": "sh",
				"process.executable.path": "/bin/sh",
			},
		},
		"a kernel thread": {
			proc: proc{name: "kworker/3:1H-kblockd", kernel: true, ticks: 100, cgroup: "0::/\n"},
			want: map[string]any{
				"process.creation.time":   "2023-11-14T22:13:21Z",
				"process.executable.name": "kworker",
			},
		},
		"whose executable is hidden": {
			proc: proc{name: "a/b", ticks: 100},
			want: map[string]any{
				"process.creation.time":   "2023-11-14T22:13:21Z",
				"process.executable.name": "a/b",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.v1)
			h.process(4711, c.proc)
			table := h.table(func(cfg *Config) { cfg.HostName, cfg.HostID = "node-1", "abc" })
			p := table.Lookup(4711, 0)
			c.want["process.pid"] = int64(4711)
			c.want["host.name"], c.want["host.id"] = "node-1", "abc"
			require.Equal(t, c.want, attributes(t, p.Resource))
			require.Equal(t, 4711, p.Resource.PID)
			if c.want["process.linux.cgroup"] != nil {
				require.Equal(t, c.want["process.linux.cgroup"], p.Cgroup)
			}
			require.Same(t, p.Resource, table.Lookup(4711, 0).Resource, "a resource is made once")
		})
	}
}

// shop adds a process in a container. The tests add its child processes.
func shop(h *host) {
	h.process(100, proc{
		name: "shop", exe: "/bin/shop", ticks: 1000, maps: "1000-5000 r-xp 00000000 08:01 7 /bin/shop\n",
		cgroup: "0::/docker/" + containerID + "\n", environ: environ("OTEL_SERVICE_NAME=shop"),
	})
}

func TestEndedChildInheritsFromItsParent(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	table := h.table(nil)
	table.Fork(101, 100, 101, 100)
	table.Exit(101, 101)
	p := table.Lookup(101, 0)
	require.Equal(t, map[string]any{
		"container.id":            containerID,
		"process.executable.name": "shop",
		"process.executable.path": "/bin/shop",
		"process.linux.cgroup":    "/docker/" + containerID,
		"process.pid":             int64(101),
		"service.name":            "shop",
	}, attributes(t, p.Resource))
	stack := p.Stack(&perfevent.Sample{User: []uint64{0x1234}}, false)
	require.Equal(t, "/bin/shop", stack.Locations[0].Mapping.Path)
	require.Equal(t, "shop", table.ThreadName(101, 101))
}

func TestForkAndExecOfAnEndedProcess(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	var tracked []string
	table := h.table(func(cfg *Config) {
		cfg.Track = func(m *samples.Mapping) { tracked = append(tracked, m.Path) }
	})
	table.Fork(101, 100, 101, 100)
	table.Exec(101, []byte("thumbs"))
	table.Mmap(101, &perfevent.Mmap{Address: 0x400000, Length: 0x1000, Inode: 9, Prot: 5, Filename: []byte("/usr/bin/thumbs")})
	table.Mmap(101, &perfevent.Mmap{Address: 0x800000, Length: 0x1000, Inode: 10, Prot: 5, Filename: []byte("/lib/ld.so")})
	table.Exit(101, 101)
	require.False(t, table.Settle())
	p := table.Lookup(101, 0)
	require.Equal(t, map[string]any{
		"container.id":            containerID,
		"process.executable.name": "thumbs",
		"process.executable.path": "/usr/bin/thumbs",
		"process.linux.cgroup":    "/docker/" + containerID,
		"process.pid":             int64(101),
		"service.name":            "shop", // the environment is inherited unless the process changes it
	}, attributes(t, p.Resource))
	stack := p.Stack(&perfevent.Sample{User: []uint64{0x800010, 0x400020, 0x1234}}, false)
	require.Equal(t, "/lib/ld.so", stack.Locations[0].Mapping.Path)
	require.Equal(t, "/usr/bin/thumbs", stack.Locations[1].Mapping.Path)
	require.Nil(t, stack.Locations[2].Mapping, "what the parent has mapped is not there after an exec")
	require.Equal(t, []string{"/usr/bin/thumbs", "/lib/ld.so"}, tracked)
	require.Equal(t, "thumbs", table.ThreadName(101, 101))
}

func TestSettleReadsStartedPrograms(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	now := time.Unix(1, 0)
	table := h.table(func(cfg *Config) { cfg.Now = func() time.Time { now = now.Add(2 * time.Millisecond); return now } })
	table.Fork(101, 100, 101, 100)
	table.Exec(101, []byte("job"))
	h.process(101, proc{name: "job", exe: "/bin/job", ppid: 100, ticks: 2000, cgroup: "0::/jobs\n", starting: true})
	require.True(t, table.Settle(), "it has no environment yet")
	h.process(101, proc{name: "job", exe: "/bin/job", ppid: 100, ticks: 2000, cgroup: "0::/jobs\n", environ: environ("OTEL_SERVICE_NAME=job")})
	require.False(t, table.Settle())
	h.exit(101)
	table.Exit(101, 101)
	require.Equal(t, map[string]any{
		"process.creation.time":   "2023-11-14T22:13:40Z",
		"process.executable.name": "job",
		"process.executable.path": "/bin/job",
		"process.linux.cgroup":    "/jobs",
		"process.pid":             int64(101),
		"service.name":            "job",
	}, attributes(t, table.Lookup(101, 0).Resource))
}

func TestEnvironmentOfAStartingProgramIsReadLater(t *testing.T) {
	h := newHost(t, false)
	job := proc{name: "job", exe: "/bin/job", starting: true, ticks: 1, maps: "1000-2000 r-xp 00000000 08:01 7 /bin/job\n"}
	h.process(101, job)
	table := h.table(nil)
	require.NotContains(t, attributes(t, table.Lookup(101, 0).Resource), "service.name")
	job.environ = environ("OTEL_SERVICE_NAME=job")
	h.process(101, job)
	table.NextBatch()
	require.Equal(t, "job", attributes(t, table.Lookup(101, 0).Resource)["service.name"])
}

func TestSettleEndsForAProgramWithoutEnvironment(t *testing.T) {
	h := newHost(t, false)
	h.process(101, proc{name: "job", exe: "/bin/job"})
	table := h.table(nil)
	table.Exec(101, []byte("job"))
	require.False(t, table.Settle(), "it has started, with an empty environment")
	require.Nil(t, table.Lookup(101, 0).Resource.Starting)
}

// TestSamplesOfAStartingProgramGetItsResource samples a program while it is starting. The
// sample must get the resource that the process has after the start.
func TestSamplesOfAStartingProgramGetItsResource(t *testing.T) {
	job := proc{name: "job", exe: "/bin/job", starting: true, ticks: 1, cgroup: "0::/jobs\n", maps: "1000-2000 r-xp 00000000 08:01 7 /bin/job\n"}
	for name, c := range map[string]struct {
		then func(*host, *Table, func(time.Duration))
		// final is the service name in the end. leftOut is the number of
		// programs that exceeded the limit.
		final   any
		leftOut uint64
	}{
		"soon": {then: func(h *host, table *Table, _ func(time.Duration)) {
			h.write("proc/101/environ", environ("OTEL_SERVICE_NAME=job"))
		}, final: "job"},
		"after long": {then: func(h *host, table *Table, pass func(time.Duration)) {
			again, reads := true, 0
			for range int(5 * time.Second / (2 * time.Millisecond)) {
				pass(2 * time.Millisecond)
				was := table.started[0].next
				again = table.Settle()
				if table.started[0].next != was {
					reads++
				}
			}
			require.False(t, again, "no call is soon enough")
			require.Less(t, reads, 70, "it is read more and more seldom")
			h.write("proc/101/environ", environ("OTEL_SERVICE_NAME=job"))
		}, final: "job"},
		"without an environment": {then: func(h *host, table *Table, _ func(time.Duration)) {
			started := job
			started.starting = false
			h.process(101, started)
			h.write("proc/101/cmdline", "job\x00")
		}, final: nil},
		"never": {then: func(h *host, table *Table, pass func(time.Duration)) {
			pass(startLimit)
		}, final: "sh", leftOut: 1},
		"ended": {then: func(h *host, table *Table, _ func(time.Duration)) {
			table.Exit(101, 101)
		}, final: "sh"},
		"ended, and is a zombie": {then: func(h *host, table *Table, _ func(time.Duration)) {
			zombie := job
			zombie.ending = true
			h.process(101, zombie)
		}, final: "sh"},
		"another program": {then: func(h *host, table *Table, _ func(time.Duration)) {
			table.Exec(101, []byte("other"))
		}, final: "sh"},
		"another program, whose record is late": {then: func(h *host, table *Table, _ func(time.Duration)) {
			h.process(101, proc{name: "other", exe: "/bin/other", ticks: 1, environ: environ("OTEL_SERVICE_NAME=other")})
		}, final: "sh"},
		"another process": {then: func(h *host, table *Table, _ func(time.Duration)) {
			h.process(101, proc{name: "other", exe: "/bin/other", ticks: 2})
			table.NextBatch()
			table.Lookup(101, 0)
		}, final: "sh"},
		"forgotten": {then: func(h *host, table *Table, _ func(time.Duration)) {
			table.processes.Remove(101)
		}, final: "sh"},
		"sampling ends": {then: func(h *host, table *Table, _ func(time.Duration)) {
			table.GiveUp()
		}, final: "sh"},
		"records are lost, then sampling ends": {then: func(h *host, table *Table, pass func(time.Duration)) {
			pass(startLimit)
			table.Settle() // the table gives up the program here
			table.AfterLoss()
			table.Lookup(101, 0)
			table.GiveUp()
		}, final: "sh", leftOut: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, false)
			h.process(101, proc{name: "sh", exe: "/bin/sh", ticks: 1, cgroup: "0::/jobs\n", environ: environ("OTEL_SERVICE_NAME=sh")})
			now := time.Unix(1, 0)
			table := h.table(func(cfg *Config) { cfg.Now = func() time.Time { return now } })
			table.Lookup(101, 0)
			table.Exec(101, []byte("job"))
			h.process(101, job)
			given := table.Lookup(101, 0).Resource
			require.True(t, table.Settle())
			require.Same(t, given, table.Lookup(101, 0).Resource)
			require.Nil(t, given.Final())

			c.then(h, table, func(d time.Duration) { now = now.Add(d) })
			now = now.Add(time.Second)
			table.Settle()
			require.NotNil(t, given.Final())
			require.Nil(t, given.Final().Starting)
			a := attributes(t, given.Final())
			require.Equal(t, c.final, a["service.name"])
			require.Equal(t, "/bin/job", a["process.executable.path"])
			require.Equal(t, "/jobs", a["process.linux.cgroup"])
			require.Equal(t, c.leftOut, table.Stats().StartsLeftOut)
		})
	}
}

func TestStartsThatAreNotReportedAreBounded(t *testing.T) {
	h := newHost(t, false)
	table := h.table(func(cfg *Config) { cfg.Limits.Starts = 1 })
	for pid := 101; pid <= 102; pid++ {
		h.process(pid, proc{name: "job", exe: "/bin/job", starting: true})
	}
	require.NotNil(t, table.Lookup(101, 0).Resource.Starting)
	require.Nil(t, table.Lookup(102, 0).Resource.Starting, "nobody would settle it")
	require.EqualValues(t, 1, table.Stats().StartsLeftOut)
	table.GiveUp()
	require.False(t, table.Settle())
}

func TestExecMakesANewResource(t *testing.T) {
	h := newHost(t, false)
	h.process(101, proc{name: "sh", exe: "/bin/sh", ticks: 1, maps: "1000-2000 r-xp 00000000 08:01 7 /bin/sh\n", environ: environ("A=1")})
	table := h.table(nil)
	before := table.Lookup(101, 0)
	sh, shStack := before.Resource, before.Stack(&perfevent.Sample{User: []uint64{0x1000}}, false)
	table.Exec(101, []byte("job"))
	h.process(101, proc{name: "job", exe: "/bin/job", ticks: 1, environ: environ("OTEL_SERVICE_NAME=job")})
	job := table.Lookup(101, 0)
	require.NotSame(t, sh, job.Resource)
	require.Equal(t, "/bin/sh", attributes(t, sh)["process.executable.path"])
	require.Equal(t, "/bin/job", attributes(t, job.Resource)["process.executable.path"])
	require.Equal(t, "job", attributes(t, job.Resource)["service.name"])
	require.NotSame(t, shStack, job.Stack(&perfevent.Sample{User: []uint64{0x1000}}, false))
	require.Equal(t, "/bin/sh", shStack.Locations[0].Mapping.Path, "what a batch holds does not change")
}

func TestStartsBeyondTheBoundAreKnownByRecordsAlone(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	table := h.table(func(cfg *Config) { cfg.Limits.Starts = 1 })
	for pid := 101; pid <= 102; pid++ {
		table.Fork(pid, 100, pid, 100)
		table.Exec(pid, []byte("job"))
		h.process(pid, proc{name: "job", exe: "/bin/job", cgroup: "0::/jobs\n", environ: environ("A=1")})
	}
	table.Settle()
	h.exit(101)
	h.exit(102)
	require.Equal(t, "/jobs", table.Lookup(101, 0).Cgroup)
	require.Equal(t, "/docker/"+containerID, table.Lookup(102, 0).Cgroup)
	require.EqualValues(t, 1, table.Stats().StartsLeftOut)

	table.NextBatch()
	table.Exec(103, []byte("job"))
	require.EqualValues(t, 1, table.Stats().StartsLeftOut, "each batch has its own bound")
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	for name, reported := range map[string]bool{"reported by records": true, "noticed": false} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, false)
			h.process(101, proc{name: "old", exe: "/bin/old", ticks: 10, maps: "1000-2000 r-xp 00000000 08:01 7 /bin/old\n"})
			table := h.table(nil)
			old := table.Lookup(101, 0).Resource
			table.ThreadName(101, 101)
			h.process(101, proc{name: "new", exe: "/bin/new", ticks: 20, maps: "1000-2000 r-xp 00000000 08:01 8 /bin/new\n"})
			if reported {
				table.Exit(101, 101)
				table.Fork(101, 1, 101, 1)
			} else {
				table.NextBatch()
			}
			p := table.Lookup(101, 0)
			require.NotSame(t, old, p.Resource)
			require.Equal(t, "/bin/new", attributes(t, p.Resource)["process.executable.path"])
			require.Equal(t, "/bin/new", p.Stack(&perfevent.Sample{User: []uint64{0x1000}}, false).Locations[0].Mapping.Path)
			require.Equal(t, "new", table.ThreadName(101, 101))
		})
	}
}

func TestMoveToAnotherCgroupIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		next bool
		id   uint64
	}{
		"by the sample's cgroup, at once": {id: 2},
		"with the next batch":             {next: true, id: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, false)
			p := proc{name: "a", exe: "/bin/a", ticks: 1, cgroup: "0::/one\n"}
			h.process(101, p)
			table := h.table(nil)
			one := table.Lookup(101, 1).Resource
			p.cgroup = "0::/two\n"
			h.process(101, p)
			require.Same(t, one, table.Lookup(101, 1).Resource)
			if c.next {
				table.NextBatch()
			}
			got := table.Lookup(101, c.id)
			require.Equal(t, "/two", got.Cgroup)
			require.Equal(t, "/two", attributes(t, got.Resource)["process.linux.cgroup"])
			require.Equal(t, "/one", attributes(t, one)["process.linux.cgroup"])
		})
	}
}

func TestChildrenFollowTheirParentsMove(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	table := h.table(nil)
	table.Fork(101, 100, 101, 100)
	h.process(100, proc{name: "shop", exe: "/bin/shop", ticks: 1000, cgroup: "0::/elsewhere\n"})
	table.NextBatch()
	table.Fork(102, 100, 102, 100)
	require.Equal(t, "/docker/"+containerID, table.Lookup(101, 0).Cgroup)
	require.Equal(t, "/elsewhere", table.Lookup(102, 0).Cgroup)
}

func TestEndedProcessStaysKnownForOneBatch(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	table := h.table(nil)
	resource := table.Lookup(100, 0).Resource
	h.exit(100)
	table.Exit(100, 100)
	table.NextBatch()
	require.Same(t, resource, table.Lookup(100, 0).Resource)
	table.NextBatch()
	require.Zero(t, table.Stats().Processes)
	require.Zero(t, table.Stats().StackBytes)
}

func TestProcessOutlivesItsMainThread(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "a", exe: "/bin/a", ticks: 1, threads: 3, maps: "1000-2000 r-xp 00000000 08:01 7 /bin/a\n"})
	table := h.table(nil)
	resource := table.Lookup(100, 0).Resource
	// These are the files of a process whose main thread is a zombie.
	h.process(100, proc{name: "a", ticks: 1, threads: 3})
	table.Exit(100, 100)
	for range 5 {
		table.NextBatch()
		table.AfterLoss()
		p := table.Lookup(100, 0)
		require.Same(t, resource, p.Resource)
		require.Equal(t, "/bin/a", p.Stack(&perfevent.Sample{User: []uint64{0x1000}}, false).Locations[0].Mapping.Path)
	}
}

func TestTableIsBounded(t *testing.T) {
	h := newHost(t, false)
	shop(h)
	table := h.table(func(cfg *Config) { cfg.Limits.Processes = 10 })
	for pid := 1000; pid < 2000; pid++ {
		table.Fork(pid, 100, pid, 100)
		table.Comm(pid, pid+1, []byte("worker"))
		table.Exit(pid, pid)
	}
	s := table.Stats()
	require.Equal(t, 10, s.Processes)
	require.EqualValues(t, 1001-10, s.Evicted)
	require.LessOrEqual(t, s.ThreadNames, 10)
	require.LessOrEqual(t, len(table.ended), 10)
	require.NotNil(t, table.Lookup(1000, 0), "one that was forgotten is looked at again")
}

func TestThreadNames(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "main", exe: "/bin/a", ticks: 1, threads: 3, tasks: map[int]string{100: "main", 102: "gc"}})
	table := h.table(nil)
	table.Lookup(100, 0)
	require.Equal(t, "main", table.ThreadName(100, 100))
	require.Equal(t, "gc", table.ThreadName(100, 102))
	require.Empty(t, table.ThreadName(100, 103), "a thread that is gone")
	require.Empty(t, table.ThreadName(999, 999), "a process that is not known")

	table.Fork(100, 100, 104, 102)
	require.Equal(t, "gc", table.ThreadName(100, 104), "a new thread has its creator's name")
	table.Comm(100, 104, []byte("worker\xff"))
	require.Equal(t, "worker\uFFFD", table.ThreadName(100, 104))
	table.Comm(100, 100, []byte("renamed"))
	require.Equal(t, "renamed", table.ThreadName(100, 100))
	table.Fork(100, 100, 105, 100)
	require.Equal(t, "renamed", table.ThreadName(100, 105))

	table.Exit(100, 104)
	require.Equal(t, "worker\uFFFD", table.ThreadName(100, 104), "a sample may be read late")
	table.NextBatch()
	table.NextBatch()
	require.Empty(t, table.ThreadName(100, 104))

	table.Comm(100, 102, []byte("lost"))
	table.AfterLoss()
	require.Equal(t, "gc", table.ThreadName(100, 102), "after a loss names are read again")
}

func TestThreadNamesAreBounded(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "main", exe: "/bin/a", ticks: 1})
	table := h.table(func(cfg *Config) { cfg.Limits.ThreadNames = 10 })
	table.Lookup(100, 0)
	for tid := 101; tid < 201; tid++ {
		table.Comm(100, tid, fmt.Appendf(nil, "t%d", tid))
		require.LessOrEqual(t, table.Stats().ThreadNames, 10)
	}
	require.EqualValues(t, 9, table.Stats().ThreadNameResets)
	require.Equal(t, "t200", table.ThreadName(100, 200))
}

func TestLossMakesMapsBeReadAgain(t *testing.T) {
	h := newHost(t, false)
	p := proc{name: "a", exe: "/bin/a", ticks: 1, maps: "1000-2000 r-xp 00000000 08:01 7 /bin/a\n"}
	h.process(100, p)
	table := h.table(nil)
	sample := &perfevent.Sample{User: []uint64{0x1100, 0x5100}}
	before := table.Lookup(100, 0).Stack(sample, false)
	table.AfterLoss()
	require.Same(t, before, table.Lookup(100, 0).Stack(sample, false), "nothing had changed")

	p.maps += "5000-6000 r-xp 00000000 08:01 8 /lib/plugin.so\n"
	p.exe = "/bin/b"
	h.process(100, p)
	require.Same(t, before, table.Lookup(100, 0).Stack(sample, false), "before the loss")
	table.AfterLoss()
	after := table.Lookup(100, 0)
	stack := after.Stack(sample, false)
	require.NotSame(t, before, stack)
	require.Same(t, before.Locations[0].Mapping, stack.Locations[0].Mapping)
	require.Equal(t, "/lib/plugin.so", stack.Locations[1].Mapping.Path)
	require.Equal(t, "/bin/b", attributes(t, after.Resource)["process.executable.path"], "an exec may have been lost")
}

func TestWhatCannotBeReadIsLeftOut(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "a", exe: "/bin/a", cgroup: "nonsense\n", environ: environ("OTEL_SERVICE_NAME=a", strings.Repeat("x", procfs.MaxEnviron))})
	h.process(101, proc{name: "a", exe: "/bin/a", cgroup: "0::/../../outside\n"})
	h.write("proc/102/stat", "102 what is this")
	table := h.table(nil)
	cut := attributes(t, table.Lookup(100, 0).Resource)
	require.Equal(t, "a", cut["service.name"])
	require.NotContains(t, cut, "process.linux.cgroup")
	require.NotContains(t, attributes(t, table.Lookup(101, 0).Resource), "process.linux.cgroup")
	require.Equal(t, map[string]any{"process.pid": int64(102)}, attributes(t, table.Lookup(102, 0).Resource))
	require.Equal(t, map[string]any{"process.pid": int64(103)}, attributes(t, table.Lookup(103, 0).Resource))
	require.Equal(t, Stats{Processes: 4, Bytes: table.held()}, table.Stats())
}

func TestDeniedFilesLeaveAttributesUnset(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	h := newHost(t, false)
	shop(h)
	for _, name := range []string{"environ", "cgroup", "maps"} {
		require.NoError(t, os.Chmod(filepath.Join(h.root, "proc/100", name), 0))
	}
	table := h.table(nil)
	require.NotContains(t, attributes(t, table.Lookup(100, 0).Resource), "service.name")
}

func TestLookupOfNoProcess(t *testing.T) {
	table := newHost(t, false).table(nil)
	require.Nil(t, table.Lookup(0, 0))
	require.Nil(t, table.Lookup(-1, 0))
	table.Fork(0, 0, 0, 0)
	table.Exec(0, nil)
	table.Comm(0, 0, nil)
	table.Mmap(0, &perfevent.Mmap{})
	table.Exit(0, 0)
	require.Zero(t, table.Stats().Processes)
}

// BenchmarkLearn measures the time for reading the files of a process that has just
// started. For comparison, the benchmark also measures the time for reading a single file
// of /proc.
func BenchmarkLearn(b *testing.B) {
	pid := os.Getpid()
	tree, err := cgroup.Open("/")
	if err != nil {
		b.Skip(err)
	}
	table := NewTable(Config{Tree: tree})
	p := table.Lookup(pid, 0)
	b.Run("process", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := table.fs.stat(pid)
			table.learn(p, s, err)
		}
	})
	b.Run("next batch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table.NextBatch()
			table.Lookup(pid, 0)
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

// TestProcessesWithoutAReportedEndAreForgotten covers ended processes whose records were
// lost. The table checks some processes in each batch, and must forget the processes that
// have ended.
func TestProcessesWithoutAReportedEndAreForgotten(t *testing.T) {
	const unreported = 2 * maxVerified
	for _, tt := range []struct {
		name string
		tell func(*Table)
		// batches is the number of batches until all processes are checked and forgotten.
		batches int
	}{
		{"records were lost", (*Table).AfterLoss, unreported/maxVerified + 3},
		{"no longer sampled", func(*Table) {}, unreported/alwaysVerified + 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, false)
			h.process(100, proc{name: "main", exe: "/bin/a", ticks: 1})
			table := h.table(nil)
			for pid := 1000; pid < 1000+unreported; pid++ {
				table.Fork(pid, 100, pid, 100)
			}
			h.process(999, proc{name: "again", exe: "/bin/a", ticks: 7})
			table.Lookup(999, 0)
			h.process(999, proc{name: "other", exe: "/bin/a", ticks: 8}) // a new process has the pid of an ended process

			tt.tell(table)
			table.NextBatch()
			require.Equal(t, unreported+2, table.Stats().Processes, "samples may be read late")
			for range tt.batches {
				table.NextBatch()
			}
			require.Equal(t, 1, table.Stats().Processes)
			require.Equal(t, "main", table.Lookup(100, 0).Name)
			require.Equal(t, "other", table.Lookup(999, 0).Name)
		})
	}
}
