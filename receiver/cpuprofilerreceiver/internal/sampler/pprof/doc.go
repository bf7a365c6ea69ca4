// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprof pulls profiles from endpoints that serve what net/http/pprof does,
// and adds their samples to a buffer. A puller has one endpoint: at each interval,
// or as soon as the program behind it is hot, it identifies the process, pulls the
// configured profiles, all at once, and converts them into samples.
//
// Cumulative profiles (allocations, contentions) are requested as the difference
// over a window, ?seconds=N, which net/http/pprof computes itself: no earlier pull
// is kept, and a restarted program needs no care. Every response is bounded before
// it is decoded.
package pprof
