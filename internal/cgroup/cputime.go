// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"time"
)

// A CPUTime reads the CPU time that the processes of one cgroup have used, including
// processes that have ended.
type CPUTime struct {
	r          *Reader
	stat       *level[cpuStat]
	generation uint32 // generation of stat at the last Read
	began      bool   // whether generation is set
}

// OpenCPUTime opens the CPU time counter of the group's own cgroup. If v1 cpuacct is
// mounted, this is cpuacct.usage, because reading it takes a third less time than reading
// cpu.stat in the v2 tree. Otherwise it is cpu.stat, which also counts CPU time on hybrid
// hosts. The error is an [Unavailable] if the group has no separate cgroup.
func (r *Reader) OpenCPUTime(g Group) (*CPUTime, error) {
	var reason error = NotMounted
	for _, h := range [...]Hierarchy{CPUAcct, V2Tree} {
		if _, err := r.tree.Own(g, h); err != nil {
			if errors.Is(reason, NotMounted) {
				reason = err
			}
			continue
		}
		c := &CPUTime{r: r, stat: acquire(r, r.stats, h, g.Paths[h], h.file("cpu.stat", "cpuacct.usage"))}
		_, _, err := c.Read(time.Time{})
		if err == nil || !isMissing(err) {
			return c, nil // the file may be readable later
		}
		c.Close()
		if reason = NoFile; errors.Is(err, ErrGone) {
			reason = ErrGone
		}
	}
	return nil, reason
}

// Read returns the CPU time used. replaced reports whether a different cgroup took over
// the path since the last Read. The counter of the new cgroup began at 0.
func (c *CPUTime) Read(now time.Time) (used time.Duration, replaced bool, err error) {
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
func (c *CPUTime) From() string { return c.stat.files[0].Path() }

func isMissing(err error) bool {
	return isGone(err) || errors.Is(err, errNoUsage) || errors.Is(err, ErrGone)
}

// Close closes the file.
func (c *CPUTime) Close() { release(c.r.stats, c.stat) }

// cpuStat is the content of a cpu.stat or a cpuacct.usage. v1 and v2 each provide a part of
// the fields.
type cpuStat struct {
	usage   time.Duration // v2, and cpuacct.usage
	periods Periods
	// generation is the number of times that a different cgroup took over the path.
	generation uint32
	hasUsage   bool
	hasPeriods bool
}

// Periods counts CFS periods of a cgroup with a quota. Total counts periods in which a
// thread was runnable. Throttled counts periods in which the cgroup used up its quota.
type Periods struct{ Total, Throttled uint64 }

var errNoUsage = errors.New("no usage_usec")

// parseCPUStat parses the content of a cpu.stat, or of a cpuacct.usage, which is a number of
// nanoseconds.
func parseCPUStat(b []byte) (s cpuStat, err error) {
	if len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
		usage, err := parseFigure(b)
		if usage > math.MaxInt64 {
			return cpuStat{}, fmt.Errorf("malformed CPU time %d", usage)
		}
		return cpuStat{usage: time.Duration(usage), hasUsage: err == nil}, err
	}
	var usage uint64
	for line := range bytes.Lines(b) {
		key, figure, _ := bytes.Cut(line, []byte(" "))
		var to *uint64
		switch string(key) {
		case "usage_usec":
			to, s.hasUsage = &usage, true
		case "nr_periods":
			to, s.hasPeriods = &s.periods.Total, true
		case "nr_throttled":
			to = &s.periods.Throttled
		default:
			continue
		}
		if *to, err = parseFigure(figure); err != nil {
			return cpuStat{}, err
		}
	}
	if usage > math.MaxInt64/uint64(time.Microsecond) {
		return cpuStat{}, fmt.Errorf("malformed CPU time %d", usage)
	}
	s.usage = time.Duration(usage) * time.Microsecond
	if !s.hasUsage && !s.hasPeriods {
		return cpuStat{}, errNoUsage
	}
	return s, nil
}

// parseFigure parses a single decimal number.
func parseFigure(b []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(trimSpace(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("malformed figure %.40q", b)
	}
	return n, nil
}

// stat reads a cpu.stat. If the cached content was already read at the time now, stat returns
// the cached content. If recent is true, it also returns content that was read less than
// sharedFor ago.
func (r *Reader) stat(l *level[cpuStat], now time.Time, recent bool) (cpuStat, error) {
	if l.at.Equal(now) && !now.IsZero() || recent && l.fresh(now) {
		return l.value, l.err
	}
	l.at = now
	n, replaced, err := l.files[0].Read(r.buf)
	generation := l.value.generation
	if replaced {
		generation++
	}
	if err == nil {
		l.value, err = parseCPUStat(r.buf[:n])
		if err != nil {
			err = fmt.Errorf("read %s: %w", l.files[0].Path(), err)
		}
	} else if errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(l.files[0].Path())) {
		err = ErrGone
	}
	l.value.generation, l.err = generation, err
	return l.value, err
}
