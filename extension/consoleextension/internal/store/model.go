// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps the data of the console in one directory. The data consists
// of units with their readings, openings with their profiles, policies, and the
// metrics and logs of collectors.
package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

var (
	// ErrNotFound is returned for a unit, an opening or a profile that the store does not
	// contain, or no longer contains.
	ErrNotFound = profilefiles.ErrNotFound
	// ErrDamaged is returned if no file of a profile can be read.
	ErrDamaged = profilefiles.ErrDamaged
)

type (
	// ProfileKey identifies a profile of an opening.
	ProfileKey = profilefiles.ProfileKey
	// ProfileInfo describes a kept profile.
	ProfileInfo = profilefiles.ProfileInfo
)

// UnitID identifies a unit in links. The links stay valid when the collector restarts. A
// UnitID is the first 16 hexadecimal digits of the SHA-256 hash of host.name, a zero byte
// and hotprofile.unit.
type UnitID string

// Unit is a unit of a host.
type Unit struct {
	ID   UnitID
	Host string // host.name
	Name string // hotprofile.unit
	// Resource contains the attributes of the newest reading, event or profile.
	Resource    map[string]string
	First, Last time.Time
}

// Condition is an item of a policy's any_of. A unit has one trend for each condition.
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

// UnitSummary is a unit with its newest readings and a summary of its openings.
type UnitSummary struct {
	Unit
	Readings []Reading         // by policy, monitor and window
	States   map[string]string // watching, profiling or cooling_down, by policy
	Openings int               // number of openings that are not baselines
	Newest   Opening           // newest opening that is not a baseline; the ID is empty if there is none
	Refusals map[string]int    // number of refusals by hotprofile.gate.why
}

// Point is a point of a trend. It represents one reading, or several older readings.
type Point struct {
	At             time.Time // end of the point's time span
	Min, Mean, Max float64
	Threshold      float64
}

// Trend is a series of values of a condition. A point with NaN values marks a gap.
type Trend struct {
	Condition
	Points []Point
}

// Opening is one opening of a gate by a policy, a person or an alert. The data comes from
// events and profiles. Events and profiles may arrive in any order or be lost.
type Opening struct {
	ID   string // hotprofile.trigger.id
	Unit Unit
	// Policy, Kind, Monitor, Window, Value and Threshold are the reason for the opening.
	// Kind is hot, baseline, manual or alert.
	Policy, Kind, Monitor, Window string
	Value, Threshold              float64
	// Triggered is the time when the gate opened. Until is the time when the gate is due
	// to close. Closed is zero while the gate is open, or if the closing event was lost.
	Triggered, Until, Closed time.Time
	Why                      string   // why the gate closed
	NothingExported          string   // why nothing was exported; empty if samples were exported
	Samples, Bytes           int64    // exported samples and bytes, as reported when the gate closed
	TraceID, SpanID          string   // a span that is one of the reasons; empty without such a span
	Traces                   []string // trace IDs of the slowest requests before the opening
	Requests                 []Request
	Profiles                 []ProfileInfo
}

// Request is one of the slowest requests that were sampled during an opening. The times are
// in milliseconds.
type Request = hotunitsextension.Request

// OpeningQuery selects openings. The zero value selects all openings except baselines.
type OpeningQuery struct {
	Unit     UnitID
	From, To time.Time
	// Baselines selects only baselines. All selects baselines and other openings.
	Baselines, All bool
	Limit          int // 0 means no limit
}

// Refusal is a decision to keep a gate closed although a condition held.
type Refusal struct {
	At                            time.Time
	Unit                          Unit
	Policy, Kind, Monitor, Window string
	Value, Threshold              float64
	Why, Budget                   string
}

// PolicySummary counts the decisions of a policy for all units. It
// covers all data that is kept.
type PolicySummary struct {
	Name       string
	Conditions []PolicyCondition
	Opened     map[string]int // by kind
	Refused    map[string]int // by why; dry run means that the gate would have opened
	Units      map[string]int // current number of units by state
	Newest     time.Time      // time of the newest opening
}

// PolicyCondition is a condition with its current thresholds. There are several
// thresholds while hosts use different thresholds.
type PolicyCondition struct {
	Condition
	Thresholds []float64
}

// PolicyChange reports that policies changed, or that a policy matches no unit.
type PolicyChange struct {
	At                      time.Time
	Host                    string
	From, Version           string
	Added, Removed, Changed []string
	Unmatched, Why          string // policy that matches no unit, and why
}

// Instance is a collector that sends its own metrics and logs.
type Instance struct {
	ID, Host, Service, Version string
	First, Last                time.Time
	Metrics                    []Metric // by name and attributes
	Logs                       []Log    // newest first: warnings, errors and startup logs
}

// Metric is the newest point of a collector's own metric.
type Metric struct {
	Name, Unit string
	Attributes map[string]string
	At         time.Time
	Value      float64 // for a histogram, the mean
	Monotonic  bool
	PerSecond  float64 // rate of a monotonic sum since the previous point
}

// Log is a log record of a collector.
type Log struct {
	At         time.Time
	Severity   string
	Body       string
	Component  string
	Attributes map[string]string
}

// IsWarning reports whether a log is a warning or an error.
func (l Log) IsWarning() bool {
	return slices.Contains([]string{"WARN", "WARNING", "ERROR", "DPANIC", "PANIC", "FATAL"}, strings.ToUpper(l.Severity))
}

// PeerKey identifies a peer of a unit. The zero value identifies the sum of all peers that
// are not listed separately.
type PeerKey struct {
	Address   string
	Direction string // outbound if the unit connected to the peer, inbound if the peer connected to the unit
	Port      int    // the peer's port for outbound, the unit's port for inbound
	Transport string // tcp or udp
}

// PeerName is the service and the hotprofile.unit of a peer. Both are empty until the
// peer is known to be a unit of the same host.
type PeerName struct{ Service, Name string }

// Peer contains measurements of the connections between a unit and one of its peers in a
// time span. Peers are known only while the unit is hot.
type Peer struct {
	PeerKey
	PeerName
	// Unit identifies the unit called Name. It is empty if the store does not know the
	// unit.
	Unit     UnitID
	From, To time.Time // time of the first and last report, to the minute

	Sent, Received                   int64 // bytes
	Connects, ConnectFailures        int64
	Segments, Retransmits            int64         // sent
	ReceiverWindow, SendBuffer, Path time.Duration // time for which each limited sending, summed over all connections

	Connections, SendQueue, ReceiveQueue int64         // maximum at any one time
	RTT, RTTVariation                    time.Duration // mean; 0 if not known
}

// Usage describes the current size of the store and its limits.
type Usage struct {
	Bytes, MaxBytes int64
	MaxAge          time.Duration
	Oldest          time.Time
	// Dropped counts the data that was dropped or refused since the start, by kind.
	Dropped map[string]int64
}

// Reader reads the store for the pages. The result of every method includes the data that
// was written before the call. Methods with a context may read from the disk. In this case,
// they wait for at most one transaction of the writer.
type Reader interface {
	Units() []UnitSummary
	// Unit returns ErrNotFound for an unknown unit.
	Unit(UnitID) (UnitSummary, error)
	// Trends returns the trends of a unit. points is the maximum number of points in each
	// trend. If points is 0, all points are returned.
	Trends(ctx context.Context, unit UnitID, from, to time.Time, points int) ([]Trend, error)
	// Openings returns openings, newest first.
	Openings(context.Context, OpeningQuery) ([]Opening, error)
	Opening(ctx context.Context, id string) (Opening, error)
	// Profile returns one profile with the labels of ProfileInfo. The caller owns the profile
	// and may change it. A new sample appears in the profile within 4 seconds.
	Profile(ctx context.Context, opening string, of ProfileKey) (*profile.Profile, error)
	// Refusals returns the refusals of a unit, or of all units if the ID is empty, newest
	// first. limit is the maximum number of refusals. If limit is 0, there is no maximum.
	Refusals(ctx context.Context, unit UnitID, limit int) ([]Refusal, error)
	Policies() []PolicySummary
	// PolicyChanges returns the changes of policies, newest first.
	PolicyChanges(context.Context) ([]PolicyChange, error)
	// Peers returns the peers of a unit in a time span, with an accuracy of one minute. The
	// peers with the most bytes come first.
	Peers(ctx context.Context, unit UnitID, from, to time.Time) ([]Peer, error)
	// Instances returns the collectors. If the context ends first, they have no logs.
	Instances(context.Context) ([]Instance, error)
	Usage() Usage
}
