// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"fmt"
	"time"
)

// OverBudgetError says which budget keeps a gate from being opened by hand.
type OverBudgetError struct{ Budget string }

func (e *OverBudgetError) Error() string {
	return fmt.Sprintf("opening a gate: over budget: %s; try again later or raise it", e.Budget)
}

// Fire opens the gate of a unit by hand: within the budgets, whatever the
// cooldown and the unit's age. Again while it is open it prolongs that opening.
// The next call of Evaluate reports what happened. The error is an
// *OverBudgetError where a budget allows no more.
func (e *Engine) Fire(u *Unit, duration time.Duration, now time.Time) (*Opening, error) {
	return nil, errors.New("not there yet")
}

// Afford says whether max_bytes_per_hour allows so much more to be let out.
func (e *Engine) Afford(bytes int, now time.Time) bool { return true }

// Spend counts what was let out and accepted, once per profile.
func (e *Engine) Spend(bytes int, now time.Time) {}
