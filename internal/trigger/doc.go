// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger decides when the gate of a unit opens and closes.
//
// It holds policies, the windows over a unit's readings that they test, a state
// machine per unit and policy, and what bounds them all: cooldowns, by unit or
// by service, and budgets. It has no clock, no goroutine and does no
// I/O: readings and the time are arguments, so every decision can be replayed.
//
// Nothing here may be called concurrently: the caller holds one lock around an
// Engine, its Units and its Openings. Every call is short: Evaluate looks at
// each item once, whatever the length of its window.
package trigger
