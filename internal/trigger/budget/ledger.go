// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

// Ledger counts what all units spent together. Nothing is counted that no limit is
// set for, except places.
//
// Invariants:
//   - openUnits is the number of units that called Occupy and not Vacate since; at
//     most MaxConcurrentUnits if the caller asks PlaceFree first
//   - triggers has at most MaxTriggersPerHour events in any hour if the caller asks
//     TriggerLeft first
//   - bytes may exceed MaxBytesPerHour: what was exported is counted even if the
//     caller did not ask BytesLeft
type Ledger struct {
	limits    Limits
	openUnits int
	triggers  Hour
	bytes     bytesPerHour
}

// NewLedger returns a ledger in which nothing was spent.
func NewLedger(l Limits) Ledger { return Ledger{limits: l} }

// Limits returns the limits.
func (l *Ledger) Limits() Limits { return l.limits }

// OpenUnits returns the number of units that hold a place.
func (l *Ledger) OpenUnits() int { return l.openUnits }

// PlaceFree reports whether one more unit may open its gate.
func (l *Ledger) PlaceFree() bool {
	return l.limits.MaxConcurrentUnits == 0 || l.openUnits < l.limits.MaxConcurrentUnits
}

// Occupy counts a unit that opens its gate.
func (l *Ledger) Occupy() { l.openUnits++ }

// Vacate counts a unit whose gate closed.
func (l *Ledger) Vacate() { l.openUnits-- }

// TriggerLeft reports whether max_triggers_per_hour allows one more opening.
func (l *Ledger) TriggerLeft(at int64) bool {
	return l.limits.MaxTriggersPerHour == 0 || l.triggers.Count(at) < l.limits.MaxTriggersPerHour
}

// SpendTrigger counts an opening.
func (l *Ledger) SpendTrigger(at int64) {
	if l.limits.MaxTriggersPerHour > 0 {
		l.triggers.Add(at)
	}
}

// BytesLeft reports whether max_bytes_per_hour is not used up.
func (l *Ledger) BytesLeft(at int64) bool {
	return l.limits.MaxBytesPerHour == 0 || l.bytes.sum(at) < l.limits.MaxBytesPerHour
}

// Affords reports whether max_bytes_per_hour allows this many bytes more.
func (l *Ledger) Affords(bytes int, at int64) bool {
	limit := l.limits.MaxBytesPerHour
	return limit == 0 || int64(max(bytes, 0)) <= limit-l.bytes.sum(at)
}

// SpendBytes counts exported bytes.
func (l *Ledger) SpendBytes(bytes int, at int64) {
	if l.limits.MaxBytesPerHour > 0 {
		l.bytes.add(at, int64(max(bytes, 0)))
	}
}
