// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// TestSnapshotsWithoutTimes covers snapshots of other senders, which may have no times. Such
// a snapshot gets the end time of its profile.
func TestSnapshotsWithoutTimes(t *testing.T) {
	p := pprofile.NewProfile()
	p.SetTime(pprofstest.WindowStart)
	p.SetDurationNano(pprofstest.Window)
	s := p.Samples().AppendEmpty()
	s.Values().Append(5, 6)
	s = p.Samples().AppendEmpty()
	s.Values().Append(7)
	s.TimestampsUnixNano().Append(pprofstest.WindowStart)
	parts := PartsOf(dictionary.ProfileType{Sample: "inuse_space"}, p)
	require.Len(t, parts, 2)
	require.EqualValues(t, pprofstest.WindowStart, parts[0].Moment)
	require.EqualValues(t, pprofstest.WindowStart+pprofstest.Window, parts[1].Moment)
	_, value, events := parts[1].at(0)
	require.EqualValues(t, 11, value)
	require.Equal(t, 1, events)
	require.EqualValues(t, 1, parts[1].Events(0))
	require.Len(t, PartsOf(dictionary.ProfileType{Sample: "alloc_space"}, p), 1)
	require.Empty(t, PartsOf(dictionary.ProfileType{Sample: "inuse_space"}, pprofile.NewProfile()))
}
