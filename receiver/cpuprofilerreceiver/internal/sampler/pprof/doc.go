// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprof pulls profiles from endpoints of net/http/pprof or compatible endpoints,
// and adds their samples to a buffer. There is one puller per endpoint. At each interval,
// or when the program behind the endpoint becomes hot, the puller identifies the process.
// It then pulls all configured profiles at the same time, and converts them into samples.
//
// Cumulative profiles (allocations, contentions) are requested as the difference over a
// window, with ?seconds=N. net/http/pprof computes this difference itself, so the puller
// keeps no earlier pull, and a restart of the program needs no special case. The size of
// every response is checked before the response is decoded.
package pprof
