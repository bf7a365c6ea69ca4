// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// These are the monitors of TCP connections.
const (
	TCPRetransmits     = "tcp_retransmits"      // share of sent segments that were retransmitted
	TCPRTT             = "tcp_rtt"              // round-trip time, weighted by bytes
	TCPConnectFailures = "tcp_connect_failures" // connections that could not be established, per second
)

// TCPMonitors returns the names of the monitors of TCP connections.
func TCPMonitors() []string { return []string{TCPConnectFailures, TCPRetransmits, TCPRTT} }

// NoConnections is returned on a host on which connections are not read.
const NoConnections cgroup.Unavailable = "connections are not read: peers.enabled is false, or network namespaces cannot be read here"

// TCPFigures contains totals of a unit's TCP connections. The totals begin when
// the unit was first followed.
type TCPFigures struct {
	Segments, Retransmits float64 // segments that were sent, and segments that were sent again
	// RoundTrip is the sum of round-trip time × bytes over all connections, with the
	// round-trip time in seconds. Bytes is the total number of these bytes.
	RoundTrip, Bytes float64
	Failures         float64 // connections that could not be established
	Elapsed          time.Duration
	// Err is the reason why the values are missing. FailuresErr is the
	// reason why Failures is missing.
	Err, FailuresErr error
}

// tcp is the meter of the monitors of TCP connections. Options.TCP provides the values.
type tcp struct {
	w  *Watcher
	of func(TCPFigures) (num, den float64, err error)
}

func newTCP(of func(TCPFigures) (num, den float64, err error)) func(*Watcher, string) meter {
	return func(w *Watcher, _ string) meter { return tcp{w, of} }
}

func retransmits(t TCPFigures) (num, den float64, err error) {
	return t.Retransmits, t.Segments, t.Err
}

func roundTrip(t TCPFigures) (num, den float64, err error) { return t.RoundTrip, t.Bytes, t.Err }

func connectFailures(t TCPFigures) (num, den float64, err error) {
	return t.Failures, t.Elapsed.Seconds(), t.FailuresErr
}

func (m tcp) read(time.Time) (num, den float64, restarted bool, err error) {
	s := m.w.source
	if s.options.TCP == nil {
		return 0, 0, false, NoConnections
	}
	figures := s.options.TCP(m.w.unit, m.w.processOf())
	num, den, err = m.of(figures)
	return num, den, false, err
}

func (m tcp) from() string { return "sock_diag" }
func (m tcp) close()       {}
