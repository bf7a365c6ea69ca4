// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
)

// publish publishes an event about a written file. over is the duration of the profiles.
// top lists the hottest functions.
func (e *pprofExporter) publish(f *openFile, file string, size int, over time.Duration, top []string) {
	if !e.events.Listening() {
		return
	}
	event := hotunitsextension.Event{
		Name: hotunitsextension.ProfileWritten, Time: e.now(),
		Body:     fmt.Sprintf("%s profile of %s written to %s", pprofconv.TypeName(f.typ), f.main().service, file),
		Resource: f.resource.Attributes, Dropped: f.resource.Dropped,
	}
	if len(top) > 0 {
		event.Body += ", hottest: " + strings.Join(top, ", ")
	}
	event.AddText(attr.Unit, f.unit)
	event.AddText(attr.TriggerPolicy, f.policy)
	event.AddText(attr.TriggerID, f.trigger)
	event.AddText(attr.ProfileType, pprofconv.TypeName(f.typ))
	event.AddText(attr.Origin, f.origin)
	event.AddText(attr.FilePath, file)
	event.Attributes = append(event.Attributes, f.condition...)
	if over > 0 { // 0 for a snapshot
		event.Attributes = append(event.Attributes, attribute.Float64(attr.ProfileDuration, over.Seconds()))
	}
	event.Attributes = append(event.Attributes,
		attribute.Int(attr.FileSize, size),
		attribute.Int(attr.ProfileSamples, f.pprof.Events()),
		attribute.StringSlice(attr.ProfileFunctions, top))
	e.events.PublishEvent(event)
}

// conditionOf returns the attributes of the condition that opened the gate. As in events
// about gates, the value and the threshold are numbers.
func conditionOf(attributes map[string]string) (out []attribute.KeyValue) {
	for _, key := range []string{attr.TriggerMonitor, attr.TriggerWindow} {
		if text := attributes[key]; text != "" {
			out = append(out, attribute.String(key, text))
		}
	}
	for _, key := range []string{attr.TriggerValue, attr.TriggerThreshold} {
		if n, err := strconv.ParseFloat(attributes[key], 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
			out = append(out, attribute.Float64(key, n))
		}
	}
	return out
}

// notOfFile reports whether a resource attribute does not apply to a whole file. Attributes
// of one process do not apply to all profiles of a file. Attributes of the trigger become
// attributes of the event instead.
func notOfFile(key string) bool {
	return strings.HasPrefix(key, "process.") && key != attr.ExecutableName || strings.HasPrefix(key, attr.TriggerPrefix)
}
