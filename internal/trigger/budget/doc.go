// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package budget bounds what all units may open and export together.
//
// A [Ledger] counts what was spent against [Limits]. It has no clock: times are
// nanoseconds on one scale that the caller chooses. Nothing may be called
// concurrently.
package budget
