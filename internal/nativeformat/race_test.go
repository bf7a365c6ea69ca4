// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package nativeformat_test

// raceDetector reports whether the tests run with the race detector. Tests that change
// every byte are then reduced. They would take minutes and have no goroutines.
const raceDetector = true
