// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

func finderOf(t *testing.T, e *Config) *subjectFinder {
	tree, _ := cgroup.Open("/")
	f, err := newSubjectFinder(e, sampler.HostInfo{Root: "/", Tree: tree, Name: "here"})
	require.NoError(t, err)
	return f
}

func TestTargetNamesTheProcess(t *testing.T) {
	e := DefaultConfig()
	e.ClientConfig.Endpoint = "http://192.0.2.1/debug/pprof" // the address is never used
	e.Target = configoptional.Some(processes.Target{PID: os.Getpid()})
	require.NoError(t, e.Validate())
	f := finderOf(t, &e)
	got, err := f.find(t.Context())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), got.Unit.PID)
	again, err := f.find(t.Context())
	require.NoError(t, err)
	require.Same(t, got.Resource, again.Resource, "one resource is one profile")
}

func TestResourceNamesTheContainer(t *testing.T) {
	e := DefaultConfig()
	e.ClientConfig.Endpoint = "http://192.0.2.1/debug/pprof"
	e.Resource = map[string]any{"container.id": "4f1c0c6b8a2e", "telemetry.sdk.language": "java"}
	got, err := finderOf(t, &e).find(t.Context())
	require.NoError(t, err)
	require.Equal(t, "4f1c0c6b8a2e", got.Unit.ContainerID)
	require.EqualValues(t, "jvm", got.Frames)
}

func TestTargetThatIsNotThereLeavesTheResource(t *testing.T) {
	e := DefaultConfig()
	e.ClientConfig.Endpoint = "http://192.0.2.1/debug/pprof"
	e.Target = configoptional.Some(processes.Target{Executable: "/nowhere/at/all"})
	e.Resource = map[string]any{"service.name": "checkout"}
	got, err := finderOf(t, &e).find(t.Context())
	require.ErrorIs(t, err, ErrUnidentified)
	require.Zero(t, got.Unit)
	require.Equal(t, []samples.Attribute{{Key: "hotprofile.origin", Value: "pprof"}, {Key: "service.name", Value: "checkout"}}, got.Resource.Attributes)
}
