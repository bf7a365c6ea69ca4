// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

const (
	// maxResourcesSize bounds the memory of all units' resources. Beyond it a resource is
	// not kept: its unit's events have only its service and container.
	maxResourcesSize = 8 << 20

	// resourceAge is the time after which a resource is copied anew.
	resourceAge = time.Minute
)

// resource holds the attributes of the resource of a unit's profiles, for events.
type resource struct {
	attributes []attribute.KeyValue // never changed
	dropped    int
	size       int
	at         time.Time
	pid        int    // of the process, and
	executable string // the path of its program
	// contained reports that it had container.id, or that the unit is no container. What a
	// process did before it was moved into its container has not.
	contained bool
}

// of returns the attributes of a unit's resource, its service and the host.
func (r *resources) of(u *Unit) []attribute.KeyValue {
	out := slices.Clip(u.resource.attributes)
	add := func(key, value string) {
		if value != "" && !slices.ContainsFunc(out, func(kv attribute.KeyValue) bool { return string(kv.Key) == key }) {
			out = append(out, attribute.String(key, value))
		}
	}
	add(attr.ServiceName, u.serviceName())
	add(attr.HostName, r.host)
	return out
}

// resources are those of all units. The lock of Set guards them.
type resources struct {
	skip func(key string) bool // nil: none are kept
	size int
	host string // the name of the host of all units; empty: not known
}

// Described is a unit and the resource of its profiles, if it is kept.
type Described struct {
	*Unit
	Attributes []attribute.KeyValue // not to be changed
}

// see keeps the resource of a unit's profiles, at most once a minute; sooner, where the
// one that is kept has no container, or its process runs another program now.
func (r *resources) see(u *Unit, c identify.Claim, now time.Time) {
	recent := now.Sub(u.resource.at) < resourceAge && (u.resource.pid != c.PID || u.resource.executable == Shorten(c.ExecutablePath))
	if r.skip == nil || recent && u.resource.contained {
		return
	}
	_, contained := c.Attributes.Get(attr.ContainerID)
	contained = contained || u.ContainerID == ""
	if recent && !contained {
		return
	}
	r.forget(u)
	kept := hotunitsextension.ResourceOf(c.Attributes, r.skip)
	u.resource.at, u.resource.contained = now, contained
	u.resource.pid, u.resource.executable = c.PID, Shorten(c.ExecutablePath)
	if r.size+kept.Size > maxResourcesSize {
		u.resource.dropped = len(kept.Attributes) + kept.Dropped
		return
	}
	r.size += kept.Size
	if !contained {
		kept.Attributes = append(kept.Attributes, u.resource.attributes...) // the container, which forget left
	}
	u.resource.attributes, u.resource.size, u.resource.dropped = kept.Attributes, kept.Size, kept.Dropped
}

// forget forgets the resource of a unit, but for its container.
func (r *resources) forget(u *Unit) {
	r.size -= u.resource.size
	u.resource = resource{}
	if u.ContainerID != "" {
		u.resource.attributes = []attribute.KeyValue{attribute.String(attr.ContainerID, u.ContainerID)}
	}
}
