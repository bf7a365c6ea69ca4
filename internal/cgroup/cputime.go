// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A CPUTime reads the CPU time that the processes of one cgroup have used, ended
// ones included.
type CPUTime struct {
	figure                     // cpuacct.usage, without stat
	stat       *level[cpuStat] // cpu.stat of the v2 tree
	generation uint32          // of the cgroup that was read last
	began      bool            // one was read
}

// OpenCPUTime opens the CPU time of the group's own cgroup: of v1 cpuacct if that
// is mounted, which costs two thirds of the other, else of the v2 tree, which
// counts CPU time on a hybrid host too. The error is an [Unavailable] if the group
// has no cgroup of its own.
func (r *Reader) OpenCPUTime(g Group) (*CPUTime, error) {
	var reason error = NotMounted
	for _, h := range [...]Hierarchy{CPUAcct, V2Tree} {
		dir, err := r.tree.Own(g, h)
		if err != nil {
			if errors.Is(reason, NotMounted) {
				reason = err
			}
			continue
		}
		c := &CPUTime{}
		if h == V2Tree {
			c.figure, c.stat = figure{r: r}, r.acquireStat(dir, g.Paths[h])
		} else {
			c.figure = r.figure(dir, "cpuacct.usage")
		}
		_, _, err = c.Read(time.Time{})
		if err == nil || !isMissing(err) {
			return c, nil // a file that cannot be read now may be readable later: a gap
		}
		c.Close()
		if reason = NoFile; errors.Is(err, ErrGone) {
			reason = ErrGone
		}
	}
	return nil, reason
}

// Read returns the CPU time used. replaced reports whether another cgroup has the
// path since the last reading, so that the figure began at 0.
func (c *CPUTime) Read(now time.Time) (used time.Duration, replaced bool, err error) {
	if c.stat != nil {
		return c.readStat(now)
	}
	b, err := c.read()
	if err != nil {
		return 0, false, err
	}
	n, err := parseFigure(b)
	if err == nil && n > math.MaxInt64 {
		err = fmt.Errorf("malformed CPU time %.40q", b)
	}
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", c.file.Path(), err)
	}
	return time.Duration(n), c.wasReplaced(), nil
}

func (c *CPUTime) readStat(now time.Time) (used time.Duration, replaced bool, err error) {
	s, err := c.r.stat(c.stat, now, false)
	if err != nil {
		return 0, false, err
	}
	if !s.hasUsage {
		return 0, false, fmt.Errorf("read %s: %w", c.From(), errNoUsage)
	}
	replaced = c.began && s.generation != c.generation
	c.generation, c.began = s.generation, true
	return s.usage, replaced, nil
}

// From returns the path of the file that is read.
func (c *CPUTime) From() string {
	if c.stat != nil {
		return c.stat.files[0].Path()
	}
	return c.figure.From()
}

func isMissing(err error) bool {
	return isGone(err) || errors.Is(err, errNoUsage) || errors.Is(err, ErrGone)
}

// Close closes the file.
func (c *CPUTime) Close() {
	if c.stat != nil {
		release(c.r.stats, []*level[cpuStat]{c.stat})
		c.stat = nil
	}
	c.figure.Close()
}
