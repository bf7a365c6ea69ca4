// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"cmp"
	"maps"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/web"
)

// maxComponents is the maximum number of components whose status is kept. It is larger
// than the number of components in any real collector.
const maxComponents = 1000

// own describes the collector in which the console runs. It receives the status of each
// component of the collector.
type own struct {
	version string
	started time.Time

	mu       sync.Mutex
	statuses map[string]web.ComponentStatus // components with an error
}

// failures names the statuses that the health page shows.
var failures = map[componentstatus.Status]string{
	componentstatus.StatusRecoverableError: "recoverable error",
	componentstatus.StatusPermanentError:   "permanent error",
	componentstatus.StatusFatalError:       "fatal error",
}

// ComponentStatusChanged records the status of a component. The collector may call it at
// any time.
func (o *own) ComponentStatusChanged(source *componentstatus.InstanceID, event *componentstatus.Event) {
	name := strings.ToLower(source.Kind().String()) + " " + source.ComponentID().String()
	o.mu.Lock()
	defer o.mu.Unlock()
	status, failing := failures[event.Status()]
	if !failing {
		delete(o.statuses, name)
		return
	}
	if _, known := o.statuses[name]; !known && len(o.statuses) >= maxComponents {
		return
	}
	s := web.ComponentStatus{Component: name, Status: status, Since: event.Timestamp()}
	if event.Err() != nil {
		s.Error = event.Err().Error()
	}
	o.statuses[name] = s
}

// describe returns the current description of the collector.
func (o *own) describe() web.Own {
	memory := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(memory)
	out := web.Own{
		Version: o.version, Started: o.started, CPUSeconds: cpuSeconds(),
		Memory: int64(memory[0].Value.Uint64() - memory[1].Value.Uint64()),
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	out.Components = slices.SortedFunc(maps.Values(o.statuses), func(a, b web.ComponentStatus) int { return cmp.Compare(a.Component, b.Component) })
	return out
}
