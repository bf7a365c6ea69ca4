// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger decides when the gate of a unit opens and closes.
//
// An [Engine] holds units. A [Unit] has the readings of its monitors, and a state
// machine per policy; its gate is open while any of them is in [Profiling]. What
// bounds all units are cooldowns, by unit or by service, and budgets.
//
// The package has no clock, no goroutine and does no I/O: readings and the time are
// arguments, so every decision can be replayed.
//
// Nothing may be called concurrently: the caller holds one lock around an Engine, its
// Units and its Openings. Every call is short: Evaluate looks at each condition once,
// whatever the length of its window.
package trigger
