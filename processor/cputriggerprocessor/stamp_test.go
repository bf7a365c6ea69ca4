// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/conformancetest"
	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestStampingAddsEachAttributeOnce(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	pd := batch(t, r.now.Add(time.Second), p, p, p)
	strings, attributes := pd.Dictionary().StringTable().Len(), pd.Dictionary().AttributeTable().Len()
	require.NoError(t, r.send(pd))
	out := r.sink.AllProfiles()[0]
	require.Len(t, allProfiles(out), 6)
	require.Equal(t, strings+10, out.Dictionary().StringTable().Len(), "ten keys")
	require.Equal(t, attributes+10, out.Dictionary().AttributeTable().Len())
	conformancetest.CheckDictionary(t, out)
}
