// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"time"
)

// Session stub.
type Session struct{}

// Target is what samples were asked for: the host, a cgroup or a process.
type Target struct{}

// Open makes the rings; nothing is sampled until something is attached.
func Open(Options) (*Session, error) { return nil, errors.New("not yet") }

// AttachHost samples every CPU.
func (s *Session) AttachHost() (*Target, error) { return nil, nil }

// AttachCgroup samples what runs in the cgroup whose directory is dir, in the
// hierarchy that owns perf_event, and below it.
func (s *Session) AttachCgroup(dir string) (*Target, error) { return nil, nil }

// AttachProcess samples the threads of a process, those to come included; its
// children not.
func (s *Session) AttachProcess(pid int) (*Target, error) { return nil, nil }

// Detach ends a target's sampling and closes its descriptors. Again is no error.
func (t *Target) Detach() error { return nil }

// PID is the process of AttachProcess, else 0.
func (t *Target) PID() int { return 0 }

// Pause stops all sampling events, those attached later included.
func (s *Session) Pause() error { return nil }

// Resume undoes Pause.
func (s *Session) Resume() error { return nil }

// SetPeriod changes the sampling period.
func (s *Session) SetPeriod(d time.Duration) error { return nil }

// Wait blocks until there is something to read, Wake is called or timeout has
// passed (negative: none).
func (s *Session) Wait(timeout time.Duration) error { return nil }

// Wake makes the Wait under way, or else the next one, return. It may be called
// from any goroutine.
func (s *Session) Wake() {}

// Read fills rec with the next record of a round. It returns false at the end
// of the round: Wait, then read again.
func (s *Session) Read(rec *Record) bool { return false }

// Stats returns the counters; from any goroutine.
func (s *Session) Stats() Stats { return Stats{} }

// Close detaches everything. The reader must have stopped.
func (s *Session) Close() error { return nil }

// ClockOffset is what to add to a Record's Time for nanoseconds since the Unix
// epoch. It moves when the wall clock is set, so ask again now and then.
func ClockOffset() int64 { return 0 }

// OnlineCPUs lists the CPUs that are online.
func OnlineCPUs() ([]int, error) { return nil, nil }
