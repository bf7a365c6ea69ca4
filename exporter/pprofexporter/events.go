// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofs"
)

// publish publishes that a file was written. top are its hottest functions.
func (e *pprofExporter) publish(f *finished, file string, size int, top []string) {
	if !e.events.Listening() {
		return
	}
	event := hotunitsextension.Event{
		Name: hotunitsextension.ProfileWritten, Time: e.now(),
		Body:     fmt.Sprintf("%s profile of %s written to %s", pprofs.TypeName(f.typ), f.main().service, file),
		Resource: f.resource.Attributes, Dropped: f.resource.Dropped,
	}
	if len(top) > 0 {
		event.Body += ", hottest: " + strings.Join(top, ", ")
	}
	text := func(key, value string) {
		if value != "" {
			event.Attributes = append(event.Attributes, attribute.String(key, value))
		}
	}
	text(attr.Unit, f.unit)
	text(attr.TriggerPolicy, f.policy)
	text(attr.TriggerID, f.trigger)
	text(attr.ProfileType, pprofs.TypeName(f.typ))
	text(attr.Origin, f.origin)
	text(attr.FilePath, file)
	event.Attributes = append(event.Attributes,
		attribute.Int(attr.FileSize, size),
		attribute.Int(attr.ProfileSamples, f.pprof.Events()),
		attribute.StringSlice(attr.ProfileFunctions, top))
	e.events.PublishEvent(event)
}

// notOfFile reports whether an attribute of a resource is not one of all profiles of a
// file, but of a process; or is about the trigger, which events have as attributes of
// their own.
func notOfFile(key string) bool {
	return strings.HasPrefix(key, "process.") && key != attr.ExecutableName || strings.HasPrefix(key, attr.TriggerPrefix)
}
