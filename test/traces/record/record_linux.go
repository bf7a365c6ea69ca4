// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
	"github.com/hotprofile/hotprofile/test/traces"
)

// rig holds the cgroups and the loads of one recording.
type rig struct {
	schedule *traces.Schedule
	file     string // file of the schedule
	start    int64  // CLOCK_MONOTONIC at the beginning of the trace
	tree     *cgroup.Tree
	reader   *cgroup.Reader

	parent    string // empty if there is none
	neighbour *scratch.Cgroup
	above     *scratch.Cgroup
	unit      *scratch.Cgroup
	quota     float64
	running   []*exec.Cmd // loads that remove waits for
	cpu       *cgroup.CPUTime
	capacity  *cgroup.CPUCapacity
}

// record runs one schedule and writes its trace. It always removes the cgroups.
func record(ctx context.Context, s *traces.Schedule, file, to string) (err error) {
	tree, err := cgroup.Open("/")
	if err != nil {
		return err
	}
	files := openfile.NewSet(64)
	r := &rig{schedule: s, file: file, tree: tree, reader: tree.NewReader(files)}
	defer r.reader.Close()
	defer func() { err = errors.Join(err, r.remove()) }()

	header := machine(s, tree)
	if !s.Quotaed(0) && s.CPUs != runtime.NumCPU() {
		return fmt.Errorf("it has no limit and says that there are %d CPUs: this machine has %d", s.CPUs, runtime.NumCPU())
	}
	r.start = nanos(unix.CLOCK_MONOTONIC)
	if err := r.surround(); err != nil {
		return err
	}
	rows, err := r.follow(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := traces.WriteTrace(&b, append(header, load()), rows); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// machine describes the host and the time of a recording.
func machine(s *traces.Schedule, tree *cgroup.Tree) []string {
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return []string{
		s.About,
		fmt.Sprintf("recorded %s, from schedules/%s.txt", time.Now().UTC().Format(time.DateOnly), s.Name),
		fmt.Sprintf("machine: %d CPUs, %s, Linux %s, cgroups %s, shared with other work", runtime.NumCPU(), runtime.GOARCH, kernel, tree.Mode()),
		fmt.Sprintf("the cgroup's weight is %d times the usual, so that other work takes little from its quota", weight),
		load(),
	}
}

// weight is the CPU weight of the traced cgroups, as a multiple of the default weight.
const weight = 20

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := bytes.Cut(b, []byte(" "))
	return fmt.Sprintf("1-minute load average of the machine: %s", one)
}

// surround creates the parent of the unit and the neighbour, if the schedule has them.
func (r *rig) surround() (err error) {
	s := r.schedule
	if s.Parent == 0 {
		return nil
	}
	r.parent = r.name()
	if r.above, err = scratch.Make(r.parent); err != nil {
		return err
	}
	if err := r.above.SetQuota(s.Parent); err != nil {
		return err
	}
	if err := r.above.RaiseWeight(weight); err != nil {
		return err
	}
	if len(s.Neighbours) == 0 {
		return nil
	}
	if r.neighbour, err = scratch.Make(r.parent + "/neighbour"); err != nil {
		return err
	}
	return r.run(r.neighbour, "neighbour")
}

func (r *rig) name() string {
	return fmt.Sprintf("hotprofile-trace-%s-%d", r.schedule.Name, os.Getpid())
}

// run starts a load, which ends with the schedule.
func (r *rig) run(in *scratch.Cgroup, what string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	file, err := filepath.Abs(r.file)
	if err != nil {
		return err
	}
	cmd := in.Command(self, "burn", what, file, strconv.FormatInt(r.start, 10))
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1") // preemption would wake waiting threads
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the load: %w", err)
	}
	r.running = append(r.running, cmd)
	return nil
}

// follow changes the cgroup as the schedule describes, and reads the cgroup every second.
func (r *rig) follow(ctx context.Context) (rows []traces.Row, err error) {
	for second := 0; second <= r.schedule.Seconds; second++ {
		t := float64(second)
		if err := r.waitUntil(ctx, time.Duration(second)*time.Second); err != nil {
			return nil, err
		}
		if err := r.change(t); err != nil {
			return nil, err
		}
		if r.unit == nil || r.schedule.IsMissing(t) {
			continue
		}
		row, err := r.read()
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (r *rig) now() time.Duration { return time.Duration(nanos(unix.CLOCK_MONOTONIC) - r.start) }

func (r *rig) waitUntil(ctx context.Context, at time.Duration) error {
	t := time.NewTimer(at - r.now())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// change adjusts the unit's cgroup to the schedule at the time t. It creates or removes
// the cgroup, or sets the quota of the cgroup.
func (r *rig) change(t float64) error {
	if r.schedule.IsDown(t) {
		return r.stop()
	}
	if r.unit == nil {
		if err := r.begin(t); err != nil {
			return err
		}
	}
	if q := r.schedule.Quota(t); q != r.quota {
		if err := r.unit.SetQuota(q); err != nil {
			return err
		}
		r.quota = q
	}
	return nil
}

// begin creates the unit's cgroup and starts the load in it.
func (r *rig) begin(t float64) (err error) {
	name := r.name()
	if r.parent != "" {
		name = r.parent + "/unit"
	}
	if r.unit, err = scratch.Make(name); err != nil {
		return err
	}
	if r.parent == "" {
		if err := r.unit.RaiseWeight(weight); err != nil {
			return err
		}
	}
	if r.quota = r.schedule.Quota(t); r.quota > 0 {
		if err := r.unit.SetQuota(r.quota); err != nil {
			return err
		}
	}
	unit, ok := r.tree.GroupAt(r.unit.Path)
	if !ok {
		return fmt.Errorf("the cgroup %s that was just made is not there", r.unit.Path)
	}
	if err := r.run(r.unit, "unit"); err != nil {
		return err
	}
	if r.cpu, err = r.reader.OpenCPUTime(unit); err != nil {
		return err
	}
	r.capacity, err = r.reader.OpenCPUCapacity(unit.Paths)
	return err
}

// stop removes the unit's cgroup and all processes in it.
func (r *rig) stop() error {
	if r.unit == nil {
		return nil
	}
	if r.cpu != nil {
		r.cpu.Close()
		r.cpu = nil
	}
	if r.capacity != nil {
		r.capacity.Close()
		r.capacity = nil
	}
	err := r.unit.Remove()
	r.unit = nil
	return err
}

func (r *rig) remove() error {
	err := r.stop()
	for _, c := range []*scratch.Cgroup{r.neighbour, r.above} {
		if c != nil {
			err = errors.Join(err, c.Remove())
		}
	}
	for _, cmd := range r.running {
		_ = cmd.Wait() // the error does not matter; the load may have been killed with its cgroup
	}
	return err
}

func (r *rig) read() (traces.Row, error) {
	at := r.now()
	used, _, err := r.cpu.Read(time.Now())
	if err != nil {
		return traces.Row{}, err
	}
	c, err := r.capacity.Read(time.Now())
	if err != nil {
		return traces.Row{}, err
	}
	row := traces.Row{At: at.Seconds(), CPU: used.Seconds(), Capacity: c.Cores}
	path := c.Path // the cgroup with the smallest quota
	if path == "" {
		path = r.unit.Path
	}
	row.Periods, row.Throttled, err = r.throttling(path)
	return row, err
}

// throttling reads the counters of a cgroup that has the cpu controller.
func (r *rig) throttling(path string) (periods, throttled uint64, err error) {
	dir := r.tree.Mount(cgroup.CPU)
	if dir == "" {
		dir = r.tree.Mount(cgroup.V2Tree)
	}
	b, err := os.ReadFile(filepath.Join(dir, path, "cpu.stat"))
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		switch string(key) {
		case "nr_periods":
			periods, err = strconv.ParseUint(string(value), 10, 64)
		case "nr_throttled":
			throttled, err = strconv.ParseUint(string(value), 10, 64)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read cpu.stat of %s: malformed line %.40q", path, line)
		}
	}
	return periods, throttled, nil
}
