// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"fmt"
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
		Resource: f.resource.Attributes, Dropped: f.resource.Dropped, Attributes: f.why.Attributes(),
	}
	if len(top) > 0 {
		event.Body += ", hottest: " + strings.Join(top, ", ")
	}
	event.AddText(attr.ProfileType, pprofconv.TypeName(f.typ))
	event.AddText(attr.Origin, f.origin)
	event.AddText(attr.FilePath, file)
	if over > 0 { // 0 for a snapshot
		event.Attributes = append(event.Attributes, attribute.Float64(attr.ProfileDuration, over.Seconds()))
	}
	event.Attributes = append(event.Attributes,
		attribute.Int(attr.FileSize, size),
		attribute.Int(attr.ProfileSamples, f.pprof.Events()),
		attribute.StringSlice(attr.ProfileFunctions, top))
	e.events.PublishEvent(event)
}

// notOfFile reports whether a resource attribute does not apply to a whole file. Attributes
// of one process do not apply to all profiles of a file. Attributes of the trigger become
// attributes of the event instead.
func notOfFile(key string) bool {
	return strings.HasPrefix(key, "process.") && key != attr.ExecutableName || strings.HasPrefix(key, attr.TriggerPrefix)
}
