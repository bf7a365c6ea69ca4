// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package perfevent

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
)

// Session is a set of open perf events. It cannot be opened here.
type Session struct{ ring.Waiter }

// Attachment is something that a session samples.
type Attachment struct{}

// Open returns an *UnsupportedError, as all that returns an error here.
func Open(Options) (*Session, error) { return nil, rights.Unsupported }

// Probe returns an *UnsupportedError for each right.
func Probe() Rights {
	return Rights{Own: rights.Unsupported, HostWide: rights.Unsupported, Kernel: rights.Unsupported}
}

// ClockOffset returns 0.
func ClockOffset() int64 { return 0 }

// AttachHost fails.
func (*Session) AttachHost() (*Attachment, error) { return nil, rights.Unsupported }

// AttachCgroup fails.
func (*Session) AttachCgroup(string) (*Attachment, error) { return nil, rights.Unsupported }

// AttachProcess fails.
func (*Session) AttachProcess(int) (*Attachment, error) { return nil, rights.Unsupported }

// AttachTracepoint fails.
func (*Session) AttachTracepoint(int) (*Attachment, error) { return nil, rights.Unsupported }

// Attachments returns nil.
func (*Session) Attachments() []*Attachment { return nil }

// SetHits fails.
func (*Session) SetHits(*Attachment, []int, func(int) int) error { return rights.Unsupported }

// SetUserStack fails.
func (*Session) SetUserStack(int) (int, error) { return 0, rights.Unsupported }

// SetPrompt fails.
func (*Session) SetPrompt(bool) error { return rights.Unsupported }

// DetachAll fails.
func (*Session) DetachAll() error { return rights.Unsupported }

// CountsHitsOfThreads returns false.
func CountsHitsOfThreads() bool { return false }

// AttachThread fails.
func (*Session) AttachThread(int, int, int) (*Attachment, error) { return nil, rights.Unsupported }

// Pause fails.
func (*Session) Pause() error { return rights.Unsupported }

// Resume fails.
func (*Session) Resume() error { return rights.Unsupported }

// SetPeriod fails.
func (*Session) SetPeriod(time.Duration) error { return rights.Unsupported }

// SetSwitches fails.
func (*Session) SetSwitches(int, func(int) int) error { return rights.Unsupported }

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Stats returns zeros.
func (*Session) Stats() Stats { return Stats{} }

// Close does nothing.
func (*Session) Close() error { return nil }

// More does nothing.
func (*Attachment) More(int, int) error { return nil }

// SharesRing returns false.
func (*Attachment) SharesRing() bool { return false }

// Detach does nothing.
func (*Attachment) Detach() error { return nil }
