// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprof pulls profiles from endpoints in the manner of net/http/pprof
// and hands their samples on. A Puller has one endpoint: at each interval, or as
// soon as the program behind it is hot, it finds out which process that is, pulls
// the profiles that are wanted, all at once, and turns them into samples.
//
// What is cumulative in the program (allocations, contentions) is asked for as the
// difference over a window of time, ?seconds=N, which net/http/pprof works out
// itself: nothing of an earlier pull is kept, and a program that was restarted
// starts afresh. Whatever comes is bounded before it is decoded.
package pprof
