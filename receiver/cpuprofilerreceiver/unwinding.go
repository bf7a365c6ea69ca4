// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Unwind says how the user's part of stacks is found.
type Unwind string

// The values of unwind.
const (
	UnwindAuto         Unwind = "auto"
	UnwindFramePointer Unwind = "frame_pointer"
	UnwindDwarf        Unwind = "dwarf"
)

const (
	minStackBytes = 1024
	maxStackBytes = perfevent.MaxUserStack
)

func (cfg *Config) validateUnwind() error {
	var errs []error
	switch cfg.Unwind {
	case UnwindAuto, UnwindFramePointer, UnwindDwarf:
	default:
		errs = append(errs, fmt.Errorf("unwind: %q is not one of auto, frame_pointer, dwarf", cfg.Unwind))
	}
	if n := cfg.StackBytes; n < minStackBytes || n > maxStackBytes || n%8 != 0 {
		errs = append(errs, fmt.Errorf("stack_bytes: %d is not a multiple of 8 between %d and %d", n, minStackBytes, maxStackBytes))
	}
	return errors.Join(errs...)
}

func (cfg *Config) unwinding() unwind.Mode {
	switch cfg.Unwind {
	case UnwindDwarf:
		return unwind.Copies
	case UnwindFramePointer:
		return unwind.FramePointers
	default:
		return unwind.CopiesWhereNeeded
	}
}

// newUnwinding returns what copies of stacks are walked by, nil where none are
// taken.
func (p *profiler) newUnwinding(at place) *unwind.Cache {
	if p.cfg.unwinding() == unwind.FramePointers {
		return nil
	}
	return unwind.NewCache(p.tables(at))
}

// maxRoots bounds the memory of what is known of roots: some hundred bytes a file.
const maxRoots = 4 << 20

// newRoots returns what tells where threads begin in files that were stripped.
func (p *profiler) newRoots(at place) *unwind.Cache {
	cfg := p.tables(at)
	cfg.RootsOnly, cfg.MaxBytes = true, maxRoots
	return unwind.NewCache(cfg)
}

func (p *profiler) tables(at place) unwind.Config {
	return unwind.Config{
		Open:     func(m *samples.Mapping) (*os.File, error) { return symbolizer.OpenMapping(at.root, m) },
		VDSO:     symbolizer.VDSO,
		VDSOPath: symbolizer.VDSOPath,
		Meter:    p.meter,
		Logger:   p.logger,
	}
}

// unwindStats returns what adds up the counters of the caches that there are.
func (*profiler) unwindStats(caches ...*unwind.Cache) func() unwind.Stats {
	return func() (sum unwind.Stats) {
		for _, c := range caches {
			if c == nil {
				continue
			}
			st := c.Stats()
			sum.Evicted += st.Evicted
			sum.Dropped += st.Dropped
			sum.Incomplete += st.Incomplete
		}
		return sum
	}
}

// newStacks returns how a sampler finds the stacks of its samples.
func (p *profiler) newStacks(sampler string) *unwind.Stacks {
	return unwind.NewStacks(unwind.StacksConfig{
		Mode:   p.cfg.unwinding(),
		Bytes:  p.cfg.StackBytes,
		Tables: p.unwinding,
		What:   sampler,
		Logger: p.logger,
	})
}

func (c *counters) recordUnwinding(ctx context.Context) {
	u := c.copies()
	c.hit(ctx, "unwind_files", u.Evicted-c.seenUnwind.Evicted)
	c.hit(ctx, "unwind_requests", u.Dropped-c.seenUnwind.Dropped)
	c.hit(ctx, "unwind_tables", u.Incomplete-c.seenUnwind.Incomplete)
	c.seenUnwind = u
}
