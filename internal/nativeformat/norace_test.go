// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package nativeformat

// raceDetector makes the tests that try every byte try fewer: under it they take
// minutes and can find nothing more.
const raceDetector = false
