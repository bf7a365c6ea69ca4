// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLossesAreLoggedOncePerEpisode(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	l := NewLosses(zap.New(core), "on_cpu")
	const second = int64(time.Second)
	l.Note(1*second, Lost{})
	require.Zero(t, logs.Len())

	for i := range int64(100) { // four losses per second
		l.Note(2*second+i*second/4, Lost{Samples: uint64(10 + i), Records: 7})
	}
	all := logs.TakeAll()
	require.Len(t, all, 1)
	require.Equal(t, zap.WarnLevel, all[0].Level)
	require.Equal(t, map[string]any{"sampler": "on_cpu", "lost": uint64(10), "lost_records": uint64(7)}, all[0].ContextMap())

	l.Note(30*second, Lost{Samples: 109, Records: 7}) // the time without losses is not long enough yet
	require.Zero(t, logs.Len())
	l.Note(31*second, Lost{Samples: 110, Records: 7})
	for i := range int64(100) {
		l.Note(31*second+i*second, Lost{Samples: 110, Records: 7})
	}
	all = logs.TakeAll()
	require.Len(t, all, 1)
	require.Equal(t, zap.InfoLevel, all[0].Level)
	require.Equal(t, map[string]any{"sampler": "on_cpu", "lasted": 29 * time.Second, "lost": uint64(110), "lost_records": uint64(7)}, all[0].ContextMap())

	l.Note(200*second, Lost{Samples: 111, Records: 7})
	l.End()
	l.End()
	all = logs.TakeAll()
	require.Len(t, all, 2)
	require.Equal(t, uint64(1), all[1].ContextMap()["lost"])
}
