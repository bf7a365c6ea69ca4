// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

const (
	// maxScanInterval is the maximum time from the end of one scan to the start of the
	// next, unless scanShare requires more.
	maxScanInterval = 5 * time.Second

	// scanShare limits the cost of scans on hosts with many units. The time between two
	// scans is at least this many times the duration of the last scan.
	scanShare = 50
)

// Discoverer finds the cgroups of the host before a profile names them. The windows of
// these units are then already filled when the units become hot. Discoverer removes units
// that were not seen for TTL. On Linux, Discoverer does not search for processes, because
// many processes are short-lived and most are not sampled. A hot process is discovered
// when its profiles arrive.
type Discoverer struct {
	Tree     *cgroup.Tree
	Scope    identify.Scope
	Units    *units.Set
	TTL      time.Duration
	Interval time.Duration // evaluation interval; more frequent scans are not useful
	Now      func() time.Time
	Log      *zap.Logger
	// SetClaims is called with the cgroups that carry the id of a container that runs
	// elsewhere.
	SetClaims func([]cgroup.Claim)

	scanner   *cgroup.Scanner // nil before the first scan
	logged    string          // the last fault that was logged
	full      bool            // the last scan found more units than Max
	claims    map[cgroup.Claim]bool
	sandboxes sandboxes
}

// maxLoggedClaims limits the claims that are logged, but all claims are counted.
const maxLoggedClaims = 128

// Run scans repeatedly until the context ends. It closes scanned after the first scan.
func (d *Discoverer) Run(ctx context.Context, scanned chan<- struct{}) {
	Repeat(ctx, func() time.Duration {
		start := time.Now()
		d.scan()
		if scanned != nil {
			close(scanned)
			scanned = nil
		}
		return d.wait(time.Since(start))
	})
}

// Repeat calls a function until the context ends. The function returns the time until its
// next call.
func Repeat(ctx context.Context, f func() time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(f())
		}
	}
}

// scan finds units and removes expired units, once.
func (d *Discoverer) scan() {
	var err error
	switch {
	case d.Tree == nil:
		err = d.scanProcesses()
	case d.Scope == identify.ScopeCgroup:
		err = d.scanCgroups()
	}
	switch {
	case err == nil:
		d.logged = ""
	case err.Error() != d.logged:
		d.logged = err.Error()
		d.Log.Warn("cannot find all units", zap.Error(err))
	}
	now := d.Now()
	d.Units.Expire(now.Add(-d.TTL), now)
}

// scanProcesses adds all processes of a Windows host.
func (d *Discoverer) scanProcesses() error {
	all, err := procfs.List()
	now, boot, tooMany := d.Now(), procfs.BootTime(), 0
	for _, p := range all {
		started := procfs.TimeOf(boot, p.Start)
		id := identify.Identity{Name: identify.ProcessName(p.PID, started), Process: p.Process, Started: started}
		claim := identify.Claim{PID: p.PID, Created: started, ExecutableName: p.Name, Attributes: pcommon.NewMap()}
		claim.Attributes.PutInt(attr.PID, int64(p.PID))
		claim.Attributes.PutStr(attr.ExecutableName, p.Name)
		if !d.Units.See(id, claim, now) {
			tooMany++
		}
	}
	d.refused(tooMany, 0)
	return err
}

// refused reports the units that are not watched.
func (d *Discoverer) refused(tooMany, claimed int) {
	d.Units.SetRefused(tooMany, claimed)
	if tooMany > 0 && !d.full {
		d.Log.Warn("not all units are watched", zap.Int("watched", units.Max), zap.Int("refused", tooMany))
	}
	d.full = tooMany > 0
}

func (d *Discoverer) scanCgroups() error {
	if d.scanner == nil {
		d.scanner = d.Tree.NewScanner()
		d.sandboxes.tree = d.Tree
	}
	d.sandboxes.begin()
	found, err := d.scanner.Groups()
	claims := d.scanner.Claims()
	d.SetClaims(claims)
	now := d.Now()
	tooMany := 0
	for _, g := range found {
		if d.sandboxes.has(g) {
			if u, ok := d.Units.Lookup(g.ID); ok { // a profile has added the unit
				d.Units.Remove(u, now)
			}
			continue
		}
		if !d.Units.Add(identify.Identity{Name: g.ID, Group: g}, now) {
			tooMany++
		}
	}
	d.refused(tooMany, len(claims))
	d.logClaims(claims)
	return err
}

// logClaims logs each claim once.
func (d *Discoverer) logClaims(claims []cgroup.Claim) {
	for _, c := range claims {
		if d.claims[c] || len(d.claims) >= maxLoggedClaims {
			continue
		}
		if d.claims == nil {
			d.claims = map[cgroup.Claim]bool{}
		}
		d.claims[c] = true
		d.Log.Warn("cgroup refused: its name has the id of a container that runs in another cgroup",
			zap.String("unit", c.ContainerID), zap.String("cgroup", c.Cgroup), zap.String("container", c.Container))
	}
}

// wait returns the time until the next scan. took is the duration of the last scan.
func (d *Discoverer) wait(took time.Duration) time.Duration {
	return max(min(maxScanInterval, max(time.Second, d.Interval)), scanShare*took)
}

// youngScans is the number of scans after which a container is no longer checked, unless
// it is a sandbox. While a container is starting, its only process belongs to the
// container runtime.
const youngScans = 12

// sandboxes finds the containers that are not units. These containers are the sandboxes
// of pods, whose only process holds the pod's namespaces, and containers that the runtime
// is still starting.
type sandboxes struct {
	tree          *cgroup.Tree
	last, current map[string]container // containers of the last scan and of this scan, by id
}

// container is the result of the scans for one container.
type container struct {
	scans   int // number of scans that read its process
	sandbox bool
}

// begin starts a scan. It forgets containers that the last scan did not find.
func (s *sandboxes) begin() { s.last, s.current = s.current, map[string]container{} }

// has reports whether a group is a sandbox or a container that is still starting. has
// checks a sandbox again in each scan, because the name of a process is weak evidence. A
// sandbox that gets a second process becomes a unit.
func (s *sandboxes) has(g cgroup.Group) bool {
	if g.ContainerID == "" {
		return false
	}
	c := s.last[g.ContainerID]
	starting := false
	if c.scans < youngScans || c.sandbox {
		comm := s.onlyProcess(g)
		c.scans++
		c.sandbox = comm == "pause"
		starting = strings.HasPrefix(comm, "runc") && c.scans < youngScans
	}
	s.current[g.ContainerID] = c
	return c.sandbox || starting
}

// onlyProcess returns the name of a group's process. It returns an empty string if the group
// does not have exactly one process.
func (s *sandboxes) onlyProcess(g cgroup.Group) string {
	processes, err := s.tree.Processes(g)
	if err != nil || len(processes) != 1 {
		return ""
	}
	for pid := range processes {
		if stat, err := procfs.At(s.tree.Root()).Stat(pid); err == nil {
			return string(stat.Comm)
		}
	}
	return ""
}
