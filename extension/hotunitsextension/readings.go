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

// UnitReadings are the readings of a unit, and the values that policies compare.
type UnitReadings struct {
	Unit string
	// Resource has the attributes of the unit's resource.
	Resource    []attribute.KeyValue
	Time        time.Time
	ContainerID string // empty: it is no container
	// CPUSeconds is the CPU time that the unit used from the time at which it was first
	// watched until CPUTime. CPUTime is zero if no policy needs the CPU time.
	CPUSeconds float64
	CPUTime    time.Time
	// WorkingSet is the memory that the unit used at MemoryTime, in bytes without inactive
	// file pages. MemoryTime is zero if no policy needs the memory.
	WorkingSet float64
	MemoryTime time.Time

	Conditions []ConditionReading
	Policies   []PolicyState // policies that apply to the unit
	Peers      []PeerReading // sorted by Start; empty if peers are not read
}

// PeerReading has the traffic between a unit and one of its peers. Without an Address, it
// is the sum of all peers without their own reading.
type PeerReading struct {
	Address   netip.Addr
	Outbound  bool   // the unit connected to the peer, not the peer to the unit
	Port      uint16 // the peer's if Outbound, else the unit's own
	Transport string // "tcp" or "udp"
	// Unit and Service are set if the peer is a unit of this host.
	Unit, Service string

	// Start is the time at which the counters started at zero.
	Start                     time.Time
	Connects, ConnectFailures int64
	Sent, Received            int64 // bytes of TCP
	Segments, Retransmits     int64 // sent
	// The time in which connections had data to send, by the limit of sending.
	ReceiverWindow, SendBuffer, Network time.Duration

	// The following are current values.
	Connections             int64
	SendQueue, ReceiveQueue int64 // bytes
	RTT, RTTVariation       time.Duration
	HasRTT                  bool
}

// ConditionReading is the value that a condition of a policy compares with its
// threshold.
type ConditionReading struct {
	Policy string
	// Monitor is the monitor with its parameters, as in hotprofile.trigger.condition of
	// events. The parameters distinguish the conditions of one monitor.
	Monitor   string
	Window    string // "30s average" or "8 of 10s"
	Value     float64
	Known     bool // false: there are too few readings, and Value is 0
	Threshold float64
}

// PolicyState is the state of a policy for a unit.
type PolicyState struct {
	Policy string
	State  string // of PolicyStates
}

// PolicyStates returns the states of policies.
func PolicyStates() []string { return []string{"watching", "profiling", "cooling_down"} }

// ReadingsFunc appends the current readings of at most most units. The unit nearest to a
// threshold comes first. left is the number of units that were left out.
type ReadingsFunc func(dst []UnitReadings, most int) (out []UnitReadings, left int)

type readings struct {
	mu      sync.Mutex
	sources []*ReadingsFunc
}

// ServeReadings makes Readings call a function. Call stop at the end. stop may be called
// twice. A call that has begun may still run for a moment.
func (h *HotUnits) ServeReadings(read ReadingsFunc) (stop func()) {
	r := &h.readings
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, &read)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sources = slices.DeleteFunc(r.sources, func(other *ReadingsFunc) bool { return other == &read })
	}
}

// Readings returns the current readings of at most most units in total, and the number of
// units that were left out.
func (h *HotUnits) Readings(most int) (out []UnitReadings, left int) {
	h.readings.mu.Lock()
	sources := slices.Clone(h.readings.sources)
	h.readings.mu.Unlock()
	for _, read := range sources {
		var n int
		out, n = (*read)(out, max(0, most-len(out)))
		left += n
	}
	return out, left
}
