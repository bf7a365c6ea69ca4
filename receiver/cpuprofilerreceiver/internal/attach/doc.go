// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package attach attaches perf events to what the configured targets are now.
//
// A Loop has two goroutines. One finds the targets every discovery interval, which
// reads much of /proc, and sends the result to the other. That one attaches events
// and calls a Reader, which reads the kernel's records; all of this is
// single-threaded code. A Reader has what differs between samplers, the Loop what
// does not.
package attach
