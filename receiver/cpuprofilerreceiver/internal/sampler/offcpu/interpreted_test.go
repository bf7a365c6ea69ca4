// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// TestInterpretedFramesOfWaitsThatLast checks that a wait has interpreted frames only if it
// lasts until the frames have been read.
func TestInterpretedFramesOfWaitsThatLast(t *testing.T) {
	const ms = int64(time.Millisecond)
	native, named := &samples.Stack{}, &samples.Stack{}
	var got []*samples.Stack
	w := newWaits(time.Millisecond, 10, func(p *part) { got = append(got, p.stack) })
	target := &perfevent.Attachment{}
	wait := func(in *interpreted, from, to int64) {
		w.sampled(1, 1, 0, caller{stack: native, interpreted: in})
		w.left(1, 1, from, false, target)
		w.came(1, 1, to, target)
	}
	wait(&interpreted{stack: named, read: 14 * ms}, 10*ms, 20*ms)
	wait(&interpreted{stack: named, read: 34 * ms}, 30*ms, 33*ms)
	wait(&interpreted{read: 44 * ms}, 40*ms, 50*ms)
	wait(nil, 60*ms, 70*ms)
	require.Len(t, got, 4)
	require.Same(t, named, got[0])
	for i, why := range []string{"", "the thread ran before the read", "the read failed", "no interpreter"} {
		if i > 0 {
			require.Same(t, native, got[i], why)
		}
	}

	got = nil
	w.sampled(1, 1, 0, caller{stack: native, interpreted: &interpreted{stack: named, read: 85 * ms}})
	w.left(1, 1, 80*ms, false, target)
	w.cut(84 * ms)
	w.came(1, 1, 90*ms, target)
	require.Len(t, got, 2)
	require.Same(t, native, got[0], "the thread was not known to wait at the read")
	require.Same(t, named, got[1])
}
