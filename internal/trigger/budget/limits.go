// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math"
)

// maxHourly bounds an hourly number of triggers, since the time of each is kept
// for an hour.
const maxHourly = 100_000

// The names of the budgets, as they are configured and reported.
const (
	MaxConcurrentUnits           = "max_concurrent_units"
	MaxTriggersPerHour           = "max_triggers_per_hour"
	MaxTriggersPerServicePerHour = "max_triggers_per_service_per_hour"
	MaxBytesPerHour              = "max_bytes_per_hour"
)

// Limits bound what all units may use together. Zero: unlimited.
type Limits struct {
	// MaxConcurrentUnits bounds the units with an open gate.
	MaxConcurrentUnits int
	// MaxTriggersPerHour bounds the openings in any hour, and
	// MaxTriggersPerServicePerHour those of the units of one service.
	MaxTriggersPerHour, MaxTriggersPerServicePerHour int
	// MaxBytesPerHour bounds the bytes exported in any hour.
	MaxBytesPerHour int64
}

// Validate returns every fault, each with its configuration key and what is allowed
// there.
func (l Limits) Validate() (errs []error) {
	for _, b := range []struct {
		name   string
		limit  int64
		atMost int64
	}{
		{MaxConcurrentUnits, int64(l.MaxConcurrentUnits), math.MaxInt64},
		{MaxTriggersPerHour, int64(l.MaxTriggersPerHour), maxHourly},
		{MaxTriggersPerServicePerHour, int64(l.MaxTriggersPerServicePerHour), maxHourly},
		{MaxBytesPerHour, l.MaxBytesPerHour, math.MaxInt64},
	} {
		switch {
		case b.limit < 0:
			errs = append(errs, fmt.Errorf("budgets.%s: %d is not allowed: must be 0 (unlimited) or more", b.name, b.limit))
		case b.limit > b.atMost:
			errs = append(errs, fmt.Errorf("budgets.%s: %d is not allowed: must be at most %d, or 0 (unlimited)", b.name, b.limit, b.atMost))
		}
	}
	return errs
}

// ExceededError is the error of an opening that a budget does not allow.
type ExceededError struct{ Budget string }

func (e *ExceededError) Error() string {
	return fmt.Sprintf("opening a gate: budget %s is used up: try again later or raise it", e.Budget)
}
