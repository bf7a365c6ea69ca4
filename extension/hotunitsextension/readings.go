// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// UnitReadings contains the readings of a unit, and the values that policies compare with
// thresholds.
type UnitReadings struct {
	Unit string
	// Resource contains the attributes of the unit's resource.
	Resource    []attribute.KeyValue
	Time        time.Time
	ContainerID string // empty if the unit is not a container
	// CPUSeconds is the CPU time that the unit used from the time when it was first watched
	// until CPUTime. CPUTime is zero if no policy needs the CPU time.
	CPUSeconds float64
	CPUTime    time.Time
	// WorkingSet is the memory that the unit used at MemoryTime, in bytes, without
	// inactive file pages. MemoryTime is zero if no policy needs the memory use.
	WorkingSet float64
	MemoryTime time.Time

	Conditions []ConditionReading
	Policies   []PolicyState // policies that apply to the unit
	Peers      []PeerReading // sorted by Start; empty if peers are not read
}

// PeerReading describes the traffic between a unit and one of its peers. A PeerReading
// without an Address is the sum of all peers that have no separate reading.
type PeerReading struct {
	Address   netip.Addr
	Outbound  bool   // true if the unit connected to the peer, false for the reverse
	Port      uint16 // the peer's port if Outbound, otherwise the unit's port
	Transport string // "tcp" or "udp"
	// Unit and Service are set if the peer is a unit of this host.
	Unit, Service string

	// Start is the time when the counters were zero.
	Start                     time.Time
	Connects, ConnectFailures int64
	Sent, Received            int64 // bytes of TCP
	Segments, Retransmits     int64 // segments that the unit sent
	// ReceiverWindow, SendBuffer and Network are the durations for which connections had
	// data to send, but were limited by the receiver's window, the send buffer or the
	// network, respectively.
	ReceiverWindow, SendBuffer, Network time.Duration

	// The following fields contain current values.
	Connections             int64
	SendQueue, ReceiveQueue int64 // bytes
	RTT, RTTVariation       time.Duration
	HasRTT                  bool
}

// ConditionReading is the value that a condition of a policy compares with its
// threshold.
type ConditionReading struct {
	Policy string
	// Monitor is the name of the monitor with its parameters, as in the attribute
	// hotprofile.trigger.condition. The parameters distinguish conditions that use the same
	// monitor.
	Monitor   string
	Window    string // "30s average" or "8 of 10s"
	Value     float64
	Known     bool // false if there are too few readings; Value is then 0
	Threshold float64
}

// PolicyState is the state of a policy for a unit.
type PolicyState struct {
	Policy string
	State  string // one of PolicyStates
}

// PolicyStates returns all possible states of a policy.
func PolicyStates() []string { return []string{"watching", "profiling", "cooling_down"} }

// ReadingsFunc appends the current readings of units. most is the maximum number of
// units that it appends. The unit that is nearest to a threshold comes first. left
// is the number of omitted units.
type ReadingsFunc func(dst []UnitReadings, most int) (out []UnitReadings, left int)

// ServeReadings registers a function that Readings calls. stop unregisters the function,
// and may be called twice. A call that has already begun may continue after stop returns.
func (h *HotUnits) ServeReadings(read ReadingsFunc) (stop func()) { return h.readings.add(read) }

// Readings returns the current readings of units. most is the maximum number of units in
// total. left is the number of omitted units.
func (h *HotUnits) Readings(most int) (out []UnitReadings, left int) {
	for _, read := range h.readings.list() {
		var n int
		out, n = read(out, max(0, most-len(out)))
		left += n
	}
	return out, left
}

// registry contains values that components have added and not yet removed.
type registry[T any] struct {
	mu  sync.Mutex
	all []*T
}

// add adds a value. remove removes the value, and may be called twice.
func (r *registry[T]) add(v T) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, &v)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = slices.DeleteFunc(r.all, func(other *T) bool { return other == &v })
	}
}

func (r *registry[T]) list() (values []T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.all {
		values = append(values, *v)
	}
	return values
}
