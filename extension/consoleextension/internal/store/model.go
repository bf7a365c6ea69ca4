// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps what the console shows, in one directory: units with their
// readings, openings with their profiles, policies, and what collectors report about
// themselves.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/pprof/profile"
)

// ErrNotFound is returned for a unit, an opening or a profile that the store does not
// have, or no longer.
var ErrNotFound = errors.New("not found")

// ErrDamaged is returned for a profile of which no file can be read.
var ErrDamaged = errors.New("profile damaged on disk")

// UnitID identifies a unit in links, which stay valid when the collector restarts:
// the first 16 hexadecimal digits of the SHA-256 of host.name, a zero byte and
// hotprofile.unit.
type UnitID string

// Unit is a unit of a host.
type Unit struct {
	ID   UnitID
	Host string // host.name
	Name string // hotprofile.unit
	// Resource has the attributes of the newest reading, event or profile.
	Resource    map[string]string
	First, Last time.Time
}

// Condition is an item of a policy's any_of. A unit has a trend of each.
type Condition struct {
	Policy, Monitor, Window string
}

// Reading is the newest value of a condition.
type Reading struct {
	Condition
	At        time.Time
	Value     float64 // NaN while there are too few readings
	Threshold float64
}

// UnitSummary is a unit with the newest figures, and its openings of the time that is
// kept.
type UnitSummary struct {
	Unit
	Readings []Reading         // by policy, monitor and window
	States   map[string]string // watching, profiling or cooling_down, by policy
	Openings int               // without baselines
	Newest   Opening           // the last opening that is no baseline; its ID is empty if there is none
	Refusals map[string]int    // by hotprofile.gate.why
}

// Point is a span of a trend: one reading, or several where readings are thinned.
type Point struct {
	At             time.Time // its end
	Min, Mean, Max float64
	Threshold      float64
}

// Trend is a series of values of a condition. A gap has a point whose values are NaN.
type Trend struct {
	Condition
	Points []Point
}

// Opening is one time that a policy opened a gate. It is built from its events and
// profiles, in any order: each may be missing.
type Opening struct {
	ID   string // hotprofile.trigger.id
	Unit Unit
	// Policy, Kind (hot, baseline, manual or alert), Monitor, Window, Value and
	// Threshold are the reason.
	Policy, Kind, Monitor, Window string
	Value, Threshold              float64
	// Triggered is when it opened; Until when it is due to close; Closed when it
	// closed, the zero time while it is open or if the event was missed.
	Triggered, Until, Closed time.Time
	Why                      string // why it closed
	NothingExported          string // why nothing was exported; empty if something was
	Samples, Bytes           int64  // that were exported, by the event of the closing
	TraceID, SpanID          string // of a span among the reasons; else empty
	Profiles                 []ProfileInfo
}

// ProfileKey identifies a profile of an opening.
type ProfileKey struct {
	// Type is the name that configurations use: cpu, off_cpu, alloc_space, …
	Type string
	// Origin is hotprofile.origin: empty if it was sampled, pprof if the program took
	// it itself.
	Origin string
	// Scope is the name of the instrumentation scope, which is the profiler.
	Scope string
	// Moment of a snapshot, such as of goroutines, in nanoseconds; 0 for other types.
	Moment int64
}

// ProfileInfo describes a kept profile. Its samples have the labels
// hotprofile.trigger.phase, thread.name and thread.id where they are known.
type ProfileInfo struct {
	ProfileKey
	Unit       string // of the values, as nanoseconds
	Samples    int64
	Bytes      int64 // on disk
	Start, End time.Time
	Phases     []string // before, both, after, baseline: those that have samples
	// Incomplete samples have stacks that do not reach the thread's entry. The last was
	// taken at LastIncomplete.
	Incomplete     int64
	LastIncomplete time.Time
	// CPUTime and CPUSampled are as in pprofconv.Builder.
	CPUTime, CPUSampled int64
	// Truncated samples were dropped because the opening, or the store, was full.
	Truncated int64
	// Damaged is the number of files of it that could not be read: their samples are lost.
	Damaged int
}

// OpeningQuery selects openings; the zero value selects all.
type OpeningQuery struct {
	Unit     UnitID
	Policy   string
	From, To time.Time
	// Baselines selects baselines alone; else they are left out, unless All is set.
	Baselines, All bool
	Limit          int // 0: all
}

// Refusal is a condition that held while the gate stayed shut.
type Refusal struct {
	At                            time.Time
	Unit                          Unit
	Policy, Kind, Monitor, Window string
	Value, Threshold              float64
	Why, Budget                   string
}

// RefusalQuery selects refusals; the zero value selects all.
type RefusalQuery struct {
	Unit     UnitID
	Policy   string
	From, To time.Time
	Limit    int
}

// PolicySummary counts the decisions of a policy on all units, in the time that is kept.
type PolicySummary struct {
	Name       string
	Conditions []PolicyCondition
	Opened     map[string]int // by kind
	Refused    map[string]int // by why; dry run: it would have opened
	Units      map[string]int // now, by state
	Newest     time.Time      // the last opening
}

// PolicyCondition is a condition with the thresholds in force, of which there are
// several while hosts differ.
type PolicyCondition struct {
	Condition
	Thresholds []float64
}

// PolicyChange is an event of changed policies, or of a policy that matches no unit.
type PolicyChange struct {
	At                      time.Time
	Host                    string
	From, Version           string
	Added, Removed, Changed []string
	Unmatched, Why          string // the policy that matches no unit, and why
}

// Instance is a collector that sends its own metrics and logs.
type Instance struct {
	ID, Host, Service, Version string
	Resource                   map[string]string
	First, Last                time.Time
	Metrics                    []Metric // by name and attributes
	Logs                       []Log    // newest first: warnings, errors, and those of the start
}

// Metric is the newest point of a collector's own metric.
type Metric struct {
	Name, Unit string
	Attributes map[string]string
	At         time.Time
	Value      float64 // of a histogram the mean
	Monotonic  bool
	PerSecond  float64 // of a monotonic sum since the point before
}

// Log is a log record of a collector.
type Log struct {
	At         time.Time
	Severity   string
	Body       string
	Component  string
	Attributes map[string]string
}

// PeerKey identifies a peer of a unit. The zero value is the sum of the peers that
// were not distinguished.
type PeerKey struct {
	Address   string
	Direction string // outbound: the unit connected to the peer; inbound: the peer to the unit
	Port      int    // the peer's if outbound, else the unit's own
	Transport string // tcp or udp
}

// PeerName is set if a peer is a unit of the same host, once that is known: its service,
// and its hotprofile.unit.
type PeerName struct{ Service, Name string }

// Peer has the figures of a unit and a peer over some time. Peers are known while a unit
// is hot.
type Peer struct {
	PeerKey
	PeerName
	// Unit is that of Name, if the store has it.
	Unit     UnitID
	From, To time.Time // when it was first and last reported, to a minute

	Sent, Received                   int64 // bytes
	Connects, ConnectFailures        int64
	Segments, Retransmits            int64         // sent
	ReceiverWindow, SendBuffer, Path time.Duration // in which sending was limited by it, the sum of all connections

	Connections, SendQueue, ReceiveQueue int64         // at most, at once
	RTT, RTTVariation                    time.Duration // the mean; 0: not known
}

// Usage has the size of the store and its bounds.
type Usage struct {
	Bytes, MaxBytes int64
	MaxAge          time.Duration
	Oldest          time.Time
	// Dropped counts what gave way or was refused since the start, by what it was.
	Dropped map[string]int64
}

// Reader reads the store for the pages. Every method returns what was written before it was
// called, and none waits for a writer longer than for one transaction.
type Reader interface {
	Units(context.Context) ([]UnitSummary, error)
	Unit(context.Context, UnitID) (UnitSummary, error)
	// Trends returns at most points points of each trend of a unit; all if it is 0.
	Trends(ctx context.Context, unit UnitID, from, to time.Time, points int) ([]Trend, error)
	// Openings returns the newest first.
	Openings(context.Context, OpeningQuery) ([]Opening, error)
	Opening(ctx context.Context, id string) (Opening, error)
	// Profile returns the profile as one, with the labels of ProfileInfo. It is the
	// caller's, who may change it. Samples are part of it at most 4 seconds after they came.
	Profile(ctx context.Context, opening string, of ProfileKey) (*profile.Profile, error)
	// Refusals returns the newest first.
	Refusals(context.Context, RefusalQuery) ([]Refusal, error)
	Policies(context.Context) ([]PolicySummary, error)
	PolicyChanges(context.Context) ([]PolicyChange, error)
	// Peers returns the peers of a unit in a span, to a minute, those with the most bytes first.
	Peers(ctx context.Context, unit UnitID, from, to time.Time) ([]Peer, error)
	Instances(context.Context) ([]Instance, error)
	Usage() Usage
}
