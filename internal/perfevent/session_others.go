// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package perfevent

import "time"

// Session is the rings and what is attached to them, on Linux.
type Session struct{}

// Attachment is what a session samples, on Linux.
type Attachment struct{}

// Open returns ErrUnsupported.
func Open(Options) (*Session, error) { return nil, ErrUnsupported }

// Probe returns ErrUnsupported for each right.
func Probe() Rights {
	return Rights{Own: ErrUnsupported, HostWide: ErrUnsupported, Kernel: ErrUnsupported}
}

// ClockOffset is 0: there are no records.
func ClockOffset() int64 { return 0 }

// AttachHost returns ErrUnsupported.
func (*Session) AttachHost() (*Attachment, error) { return nil, ErrUnsupported }

// AttachCgroup returns ErrUnsupported.
func (*Session) AttachCgroup(string) (*Attachment, error) { return nil, ErrUnsupported }

// AttachProcess returns ErrUnsupported.
func (*Session) AttachProcess(int) (*Attachment, error) { return nil, ErrUnsupported }

// Pause returns ErrUnsupported.
func (*Session) Pause() error { return ErrUnsupported }

// Resume returns ErrUnsupported.
func (*Session) Resume() error { return ErrUnsupported }

// SetPeriod returns ErrUnsupported.
func (*Session) SetPeriod(time.Duration) error { return ErrUnsupported }

// SetSwitches returns ErrUnsupported.
func (*Session) SetSwitches(int, func(int) int) error { return ErrUnsupported }

// Wait returns ErrUnsupported.
func (*Session) Wait(time.Duration) error { return ErrUnsupported }

// Wake does nothing.
func (*Session) Wake() {}

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Stats returns zeros.
func (*Session) Stats() Stats { return Stats{} }

// Stale returns false.
func (*Session) Stale([]int) bool { return false }

// CPUs returns none.
func (*Session) CPUs() []int { return nil }

// Descriptors returns 0.
func (*Session) Descriptors() int { return 0 }

// Close does nothing.
func (*Session) Close() error { return nil }

// Detach does nothing.
func (*Attachment) Detach() error { return nil }

// PID returns 0.
func (*Attachment) PID() int { return 0 }

// String returns nothing.
func (*Attachment) String() string { return "" }

// Switches is a session of switch records, on Linux.
type Switches struct{}

// OpenSwitches returns ErrUnsupported.
func OpenSwitches(SwitchOptions) (*Switches, error) { return nil, ErrUnsupported }

// Stale returns false.
func (*Switches) Stale([]int) bool { return false }

// CPUs returns none.
func (*Switches) CPUs() []int { return nil }

// Look returns ErrUnsupported.
func (*Switches) Look() error { return ErrUnsupported }

// Wait returns ErrUnsupported.
func (*Switches) Wait(time.Duration) error { return ErrUnsupported }

// Wake does nothing.
func (*Switches) Wake() {}

// Read returns false.
func (*Switches) Read(*SwitchRecord) bool { return false }

// Through is 0: nothing was read.
func (*Switches) Through() int64 { return 0 }

// Corrupt is 0.
func (*Switches) Corrupt() uint64 { return 0 }

// Close does nothing.
func (*Switches) Close() error { return nil }
