// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package token wakes goroutines that wait at a channel with room for one token.
package token

// Put puts a token into a channel, unless there is one already.
func Put(into chan<- struct{}) {
	select {
	case into <- struct{}{}:
	default:
	}
}
