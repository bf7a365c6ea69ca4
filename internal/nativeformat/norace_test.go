// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package nativeformat_test

// raceDetector reports whether the tests run with the race detector. If so, tests that
// change every byte are shortened, because they would take minutes. These tests start
// no goroutines, so the race detector would find no races.
const raceDetector = false
