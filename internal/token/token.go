// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package token wakes a goroutine that waits on a channel with room for one token.
package token

// Put puts a token into a channel unless the channel is full.
func Put(into chan<- struct{}) {
	select {
	case into <- struct{}{}:
	default:
	}
}
