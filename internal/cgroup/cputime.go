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
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// A CPUTime reads the CPU time that the processes of one cgroup have used, those
// that have ended included.
type CPUTime struct {
	r    *Reader
	file keptfile.File
	v2   bool // cpu.stat, else cpuacct.usage
	// replaced is kept through readings that fail, until one that tells.
	replaced bool
}

// OpenCPUTime opens the figure of the unit's own cgroup: of the v2 tree, which
// counts CPU time on a hybrid host too, else of v1 cpuacct. The error is an
// [Unavailable] where the unit has none of its own.
func (r *Reader) OpenCPUTime(u Unit) (*CPUTime, error) {
	var reason error = NotMounted
	for _, h := range [...]Hierarchy{V2Tree, CPUAcct} {
		dir, err := r.tree.Own(u, h)
		if err != nil {
			if errors.Is(reason, NotMounted) {
				reason = err
			}
			continue
		}
		c := &CPUTime{r: r, v2: h == V2Tree}
		name := "cpuacct.usage"
		if c.v2 {
			name = "cpu.stat"
		}
		c.file = r.files.File(filepath.Join(dir, name))
		_, _, err = c.Read()
		if err == nil || !isMissing(err) {
			return c, nil // a file that cannot be read now may be readable later: a gap
		}
		if reason = NoFile; errors.Is(err, ErrGone) {
			reason = ErrGone
		}
	}
	return nil, reason
}

// Read returns the CPU time used. Replaced says that the cgroup is another one
// of the same path than at the last reading, so that the figure began anew.
func (c *CPUTime) Read() (used time.Duration, replaced bool, err error) {
	n, replaced, err := c.file.Read(c.r.buf)
	c.replaced = c.replaced || replaced
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(c.file.Path())) {
			err = ErrGone
		}
		return 0, false, err
	}
	if used, err = c.parse(c.r.buf[:n]); err != nil {
		return 0, false, fmt.Errorf("read %s: %w", c.file.Path(), err)
	}
	replaced, c.replaced = c.replaced, false
	return used, replaced, nil
}

func (c *CPUTime) parse(b []byte) (time.Duration, error) {
	unit := time.Nanosecond
	if c.v2 {
		unit = time.Microsecond
		i := bytes.Index(b, []byte("usage_usec "))
		if i < 0 {
			return 0, errNoFigure
		}
		b = b[i+len("usage_usec "):]
	}
	v, _, ok := parseUint(b)
	if !ok || v > math.MaxInt64/uint64(unit) {
		return 0, fmt.Errorf("malformed CPU time %.40q", b)
	}
	return time.Duration(v) * unit, nil
}

var errNoFigure = errors.New("no usage_usec")

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFigure) || errors.Is(err, ErrGone)
}

// Close closes the file.
func (c *CPUTime) Close() { c.file.Close() }
