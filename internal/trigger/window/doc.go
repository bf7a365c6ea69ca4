// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package window keeps the recent readings of a monitor and judges them over
// spans of time.
//
// A [Monitor] is the plan: how readings become values, how long they are kept and
// which tests they are put to. A [History] holds the readings of one monitor of one
// unit, and a window for each test. A window keeps running counts and sums, so a
// test costs the same whatever its span.
//
// The package has no clock and allocates only in [Monitor.NewHistory]. Times are
// nanoseconds on one scale that the caller chooses. Nothing may be called
// concurrently.
package window
