// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"
)

// cpuStat is the content of a cpu.stat. v1 and v2 have a part of it each.
type cpuStat struct {
	usage   time.Duration // v2
	periods Periods
	// generation is the number of cgroups that have had the path so far.
	generation uint32
	hasUsage   bool
	hasPeriods bool
}

// Periods are CFS periods: those in which a cgroup with a quota had something to
// run, and those of them in which it used up its quota.
type Periods struct{ Total, Throttled uint64 }

var (
	errNoUsage = errors.New("no usage_usec")
	usageKey   = []byte("usage_usec ")
	periodsKey = []byte("nr_periods ")
	throttled  = []byte("nr_throttled ")
)

// parseCPUStat reads the content of a cpu.stat.
func parseCPUStat(b []byte) (s cpuStat, err error) {
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		var n uint64
		switch {
		case bytes.HasPrefix(line, usageKey):
			if n, err = parseFigure(line[len(usageKey):]); err != nil || n > math.MaxInt64/uint64(time.Microsecond) {
				return cpuStat{}, fmt.Errorf("malformed CPU time %.40q", line)
			}
			s.usage, s.hasUsage = time.Duration(n)*time.Microsecond, true
		case bytes.HasPrefix(line, periodsKey):
			if s.periods.Total, err = parseFigure(line[len(periodsKey):]); err != nil {
				return cpuStat{}, err
			}
			s.hasPeriods = true
		case bytes.HasPrefix(line, throttled):
			if s.periods.Throttled, err = parseFigure(line[len(throttled):]); err != nil {
				return cpuStat{}, err
			}
			b = nil // the last one of interest
		}
	}
	if !s.hasUsage && !s.hasPeriods {
		return cpuStat{}, errNoUsage
	}
	return s, nil
}

// parseFigure reads a decimal number that nothing else follows.
func parseFigure(b []byte) (uint64, error) {
	n, rest, ok := parseUint(trimSpace(b))
	if !ok || len(rest) > 0 {
		return 0, fmt.Errorf("malformed figure %.40q", b)
	}
	return n, nil
}

// acquireStat opens the cpu.stat of a cgroup, once for all its users: on a v2 host
// CPU time and throttling are in the same file.
func (r *Reader) acquireStat(dir, path string) *level[cpuStat] {
	return acquire(r, r.stats, dir, path, "cpu.stat")
}

// stat reads a cpu.stat. If it was read at the same now already, or with recent
// less than sharedFor before, it returns that reading.
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
	} else if errors.Is(err, fs.ErrNotExist) && !isDir(l.key) {
		err = ErrGone
	}
	l.value.generation, l.err = generation, err
	return l.value, err
}
