// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package nativeformat_test

// raceDetector reports whether the tests run with the race detector. With the race
// detector, tests that change every byte are reduced. Such tests would take minutes,
// and they start no goroutines.
const raceDetector = false
