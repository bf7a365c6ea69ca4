// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package attach has perf events attached to what targets mean now.
//
// A Loop has two goroutines. One looks, every discovery interval, for what the
// targets mean, which takes reading much of /proc, and hands the result over. The
// other attaches what is to be sampled, and has a Reader read the kernel's
// records; all of that is plain code of one thread. What differs between samplers
// is the Reader's.
package attach
