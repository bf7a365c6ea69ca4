// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprof pulls profiles from endpoints of net/http/pprof or compatible ones, and
// adds their samples to a buffer. A puller has one endpoint. At each interval, or as soon
// as the program behind it is hot, it identifies the process. It then pulls all configured
// profiles at once, and converts them into samples.
//
// Cumulative profiles (allocations, contentions) are requested as the difference over a
// window, ?seconds=N, which net/http/pprof computes itself. So no earlier pull is kept, and
// a restarted program needs no special case. Every response is bounded before it is
// decoded.
package pprof
