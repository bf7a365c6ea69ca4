// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestLossesAreLoggedOncePerEpisode(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	l := NewLosses(zap.New(core), samples.OnCPU, nil, nil)
	const second = int64(time.Second)
	l.note(1*second, losses{})
	require.Zero(t, logs.Len())

	for i := range int64(100) { // four losses per second
		l.note(2*second+i*second/4, losses{events: uint64(10 + i), records: 7})
	}
	all := logs.TakeAll()
	require.Len(t, all, 1)
	require.Equal(t, zap.WarnLevel, all[0].Level)
	require.Equal(t, map[string]any{"sampler": "on_cpu", "lost": uint64(10), "lost_records": uint64(7)}, all[0].ContextMap())

	l.note(30*second, losses{events: 109, records: 7}) // the time without losses is not long enough yet
	require.Zero(t, logs.Len())
	l.note(31*second, losses{events: 110, records: 7})
	for i := range int64(100) {
		l.note(31*second+i*second, losses{events: 110, records: 7})
	}
	all = logs.TakeAll()
	require.Len(t, all, 1)
	require.Equal(t, zap.InfoLevel, all[0].Level)
	require.Equal(t, map[string]any{"sampler": "on_cpu", "lasted": 29 * time.Second, "lost": uint64(110), "lost_records": uint64(7)}, all[0].ContextMap())

	l.note(200*second, losses{events: 111, records: 7})
	l.End()
	l.End()
	all = logs.TakeAll()
	require.Len(t, all, 2)
	require.Equal(t, uint64(1), all[1].ContextMap()["lost"])
}
