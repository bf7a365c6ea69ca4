// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package nativeformat_test

// raceDetector reduces the tests that change every byte: with the race detector they
// take minutes, and there are no goroutines.
const raceDetector = false
