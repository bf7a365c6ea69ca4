// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"cmp"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/web"
)

// maxComponents bounds the components with a remembered status. No collector has so many.
const maxComponents = 1000

// own describes the collector that contains the console.
type own struct {
	version string
	started time.Time

	mu       sync.Mutex
	statuses map[string]web.ComponentStatus // components with an error
}

// ComponentStatusChanged records the status of a component. The collector may call it at
// any time.
func (c *Console) ComponentStatusChanged(source *componentstatus.InstanceID, event *componentstatus.Event) {
	c.own.set(source, event)
}

func (o *own) set(source *componentstatus.InstanceID, event *componentstatus.Event) {
	name := strings.ToLower(source.Kind().String()) + " " + source.ComponentID().String()
	o.mu.Lock()
	defer o.mu.Unlock()
	var status string
	switch event.Status() {
	case componentstatus.StatusRecoverableError:
		status = "recoverable error"
	case componentstatus.StatusPermanentError:
		status = "permanent error"
	case componentstatus.StatusFatalError:
		status = "fatal error"
	default:
		delete(o.statuses, name)
		return
	}
	if o.statuses == nil {
		o.statuses = map[string]web.ComponentStatus{}
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

// get returns the current description of the collector.
func (o *own) get() web.Own {
	memory := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(memory)
	out := web.Own{
		Version: o.version, Started: o.started, CPUSeconds: cpuSeconds(),
		Memory: int64(memory[0].Value.Uint64() - memory[1].Value.Uint64()),
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.statuses {
		out.Components = append(out.Components, s)
	}
	slices.SortFunc(out.Components, func(a, b web.ComponentStatus) int { return cmp.Compare(a.Component, b.Component) })
	return out
}
