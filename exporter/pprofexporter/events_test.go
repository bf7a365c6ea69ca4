// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// host is a component.Host with the hot_units extension.
type host struct{ *hotunitsextension.HotUnits }

func (h host) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("hot_units"): h.HotUnits}
}

func asMap(kvs []attribute.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range kvs {
		out[string(kv.Key)] = kv.Value.AsInterface()
	}
	return out
}

func TestAFileThatIsWrittenIsAnEvent(t *testing.T) {
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(t.Context())) })
	events := ext.(*hotunitsextension.HotUnits).Subscribe("test")
	defer events.Close()

	h := newHarness(t, nil)
	h.startOn(host{ext.(*hotunitsextension.HotUnits)})
	resource := pprofstest.Checkout()
	resource["deployment.environment.name"] = "prod"
	resource["hotprofile.trigger.policy"] = "cpu"
	reason := pprofstest.Reason("0a1b", "t1", "2026-05-28T20:26:42Z")
	reason["hotprofile.trigger.value"], reason["hotprofile.trigger.window"] = "97.3", "30s average"
	h.send(pprofstest.Input{Resource: resource, Profile: reason, Hot: 75, Cold: 25})
	require.Empty(t, events.Events(), "it is not written yet")
	require.NoError(t, h.shutdown(t.Context()))
	require.Len(t, events.Events(), 1)
	e := <-events.Events()
	require.Equal(t, "hotprofile.profile.written", e.Name)
	file := filepath.Join(h.cfg.Directory, h.files()[0])
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"hotprofile.unit": "0a1b", "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.id": "t1",
		"hotprofile.trigger.monitor": "cpu_utilization", "hotprofile.trigger.value": 97.3, "hotprofile.trigger.threshold": 80.0, "hotprofile.trigger.window": "30s average",
		"hotprofile.profile.duration": 5.0,
		"hotprofile.profile.type":     "cpu", "hotprofile.profile.samples": int64(100),
		"hotprofile.profile.functions": []string{"main.hot 75.0%", "main.cold 25.0%"},
		"file.path":                    file, "file.size": info.Size(),
	}, asMap(e.Attributes))
	require.Equal(t, "checkout", asMap(e.Resource)["service.name"])
	require.Equal(t, "prod", asMap(e.Resource)["deployment.environment.name"])
	require.NotContains(t, asMap(e.Resource), "process.pid", "a file may be of several processes")
	require.NotContains(t, asMap(e.Resource), "hotprofile.trigger.policy")
	require.Equal(t, "cpu profile of checkout written to "+file+", hottest: main.hot 75.0%, main.cold 25.0%", e.Body)
}

// TestTheEventOfAFileHasItsContainer checks that the event of a file has a container id. The
// first profile of the file has no container id, because its process was moved into the
// container later.
func TestTheEventOfAFileHasItsContainer(t *testing.T) {
	h := started(t, nil)
	for _, resource := range []map[string]string{
		{"service.name": "checkout", "process.executable.name": "sh"},
		{"service.name": "checkout", "process.executable.name": "app", "container.id": "0a1b"},
		{"service.name": "checkout", "process.executable.name": "child", "container.id": "0a1b"},
	} {
		h.send(pprofstest.Input{Resource: resource, Profile: pprofstest.Reason("0a1b", "t1", ""), Hot: 1})
	}
	var f *openFile
	for _, f = range h.open.files {
	}
	require.Equal(t, map[string]any{"service.name": "checkout", "process.executable.name": "app", "container.id": "0a1b"}, asMap(f.resource.Attributes))
	require.NoError(t, h.shutdown(t.Context()))
	require.Zero(t, h.memory())
}
