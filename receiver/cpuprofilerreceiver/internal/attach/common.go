// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Sink is what every sampler needs of the buffer that its samples go to.
type Sink interface {
	// ReadUpTo sets the time before which everything has been added; buffer.Idle
	// while nothing is sampled.
	ReadUpTo(time int64)
	// KernelLost adds n to the events of a type's sampler that the kernel lost.
	KernelLost(t *samples.Type, n uint64)
	// Paused reports that there is no room and sampling has to stop until there is.
	Paused() bool
	// Batch returns the number of batches that samples have gone to.
	Batch() uint64
}

// CommonConfig is what a Common needs.
type CommonConfig struct {
	// Type is the sampler's type of samples.
	Type  *samples.Type
	Table *processes.Table
	Sink  Sink
	// Lost returns the number of events that the kernel has lost by its counters.
	Lost func(perfevent.Stats) uint64
	// ThreadName and ThreadID report which attributes tell threads apart.
	ThreadName, ThreadID bool
	// Interval is the time between two searches for targets, for the log.
	Interval time.Duration
	Logger   *zap.Logger
	// Now returns CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
}

// Common is what Readers do alike with a session: they follow processes, count
// losses, pause and report. The reading goroutine calls it; Lost is for any.
type Common struct {
	cfg CommonConfig
	// hostWide reports whether the session gets the whole host's records of processes.
	hostWide bool
	stats    perfevent.Stats // of the session, as counted already
	losses   *Losses
	lost     atomic.Uint64
	batch    uint64 // that the table knows of
	failure  string // that was logged
	leftOut  string // likewise
}

// NewCommon returns a Common without a session.
func NewCommon(cfg CommonConfig) *Common {
	return &Common{cfg: cfg, losses: NewLosses(cfg.Logger, cfg.Type.Sampler)}
}

// Begin begins with a session that was opened with these options.
func (c *Common) Begin(o *perfevent.Options) {
	c.hostWide = o.HostWide
	c.stats = perfevent.Stats{}
	c.cfg.Sink.ReadUpTo(c.cfg.Now())
	c.cfg.Table.AfterLoss() // what happened before was not recorded
}

// End is called when the session ends.
func (c *Common) End() { c.losses.End() }

// Idle is called when there is no session.
func (c *Common) Idle() { c.cfg.Sink.ReadUpTo(buffer.Idle) }

// NextBatch tells the table if samples go to another batch, and reports whether
// they do.
func (c *Common) NextBatch() bool {
	n := c.cfg.Sink.Batch()
	if n == c.batch {
		return false
	}
	c.batch = n
	c.cfg.Table.NextBatch()
	return true
}

// Follow updates the table of processes from a record.
func (c *Common) Follow(rec *perfevent.Record) {
	table := c.cfg.Table
	switch rec.Type {
	case perfevent.TypeFork:
		// Without the whole host's records a child process is not sampled, and no
		// record would tell its end.
		if c.hostWide || rec.Task.PID == rec.Task.PPID {
			table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
		}
	case perfevent.TypeExit:
		table.Exit(rec.Task.PID, rec.Task.TID)
	case perfevent.TypeComm:
		if rec.Comm.Exec {
			table.Exec(rec.Comm.PID, rec.Comm.Name)
		} else {
			table.Comm(rec.Comm.PID, rec.Comm.TID, rec.Comm.Name)
		}
	case perfevent.TypeMmap:
		table.Mmap(rec.Mmap.PID, &rec.Mmap)
	case perfevent.TypeLost:
		if rec.Lost.Records {
			table.AfterLoss()
		}
	}
}

// Thread returns a record's thread as far as threads are told apart.
func (c *Common) Thread(rec *perfevent.Record) (t samples.Thread) {
	if c.cfg.ThreadName {
		t.Name = c.cfg.Table.ThreadName(rec.PID, rec.TID)
	}
	if c.cfg.ThreadID {
		t.ID = int32(rec.TID)
	}
	return t
}

// Count counts what the kernel has lost of the session, by its counters now. It
// returns the counters before.
func (c *Common) Count(now perfevent.Stats) (before perfevent.Stats) {
	before, c.stats = c.stats, now
	if n := c.cfg.Lost(now) - c.cfg.Lost(before); n > 0 {
		c.lost.Add(n)
		c.cfg.Sink.KernelLost(c.cfg.Type, n)
	}
	c.losses.Note(c.cfg.Now(), c.lost.Load())
	return before
}

// Lost returns the number of events that the kernel has lost.
func (c *Common) Lost() uint64 { return c.lost.Load() }

// Pause makes the kernel sample nothing.
func (c *Common) Pause(session *perfevent.Session) {
	if err := session.Pause(); err != nil {
		// Samples are dropped all the same, only at a greater cost.
		c.cfg.Logger.Warn("pausing sampling failed", zap.String("sampler", c.cfg.Type.Sampler), zap.Error(err))
	}
}

// Resume makes the kernel sample again.
func (c *Common) Resume(session *perfevent.Session) {
	if err := session.Resume(); err != nil {
		c.cfg.Logger.Error("resuming sampling failed", zap.String("sampler", c.cfg.Type.Sampler), zap.Error(err))
	}
	c.Interrupted()
}

// Interrupted is called after sampling events were off for a moment. They record
// mappings too, unless there are events for the whole host.
func (c *Common) Interrupted() {
	if !c.hostWide {
		c.cfg.Table.AfterLoss()
	}
}

// Failed logs that looking for targets failed, once per failure.
func (c *Common) Failed(err error) {
	if text := err.Error(); text != c.failure {
		c.failure = text
		c.cfg.Logger.Warn("looking for targets failed; what is sampled stays as it is", zap.String("sampler", c.cfg.Type.Sampler),
			zap.Error(err), zap.Duration("retry_interval", c.cfg.Interval))
	}
}

// Found is called when looking for targets succeeded: the next failure is logged.
func (c *Common) Found() { c.failure = "" }

// LeftOut returns what was found and is not sampled, each with the reason, and
// whether that has changed since the last call.
func (c *Common) LeftOut(f *Found) (leftOut []string, changed bool) {
	leftOut = make([]string, 0, len(f.Plan.LeftOut))
	for _, l := range f.Plan.LeftOut {
		leftOut = append(leftOut, l.What+": "+l.Reason)
	}
	all := strings.Join(leftOut, "\n")
	changed, c.leftOut = all != c.leftOut, all
	return leftOut, changed
}
