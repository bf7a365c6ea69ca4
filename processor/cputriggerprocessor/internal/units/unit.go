// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// maxText is the maximum number of bytes of a string from telemetry that is kept for log
// lines.
const maxText = 256

// Unit is a watched unit.
type Unit struct {
	// The following fields do not change.

	identify.Identity
	// Path and ContainerID describe the unit's cgroup. For a process, this is the cgroup
	// that contains the process.
	Path, ContainerID string

	// The lock of Set guards the fields below.

	decision   *trigger.Decision
	seen       time.Time
	service    string // of its last profile
	executable string // of its last profile, for units without a service name
	named      bool   // the decision has received the service
	selection  selection
	heldBack   string // id of the last opening for which max_bytes_per_hour held back profiles
	forgotten  bool
	resource   resource
	shown      bool    // the debug log shows the unit
	userShare  float64 // user share of its CPU time while it was warm; below 0: not known
}

// Decision returns the unit's part of the decision core. The caller holds the lock.
func (u *Unit) Decision() *trigger.Decision { return u.decision }

// UserShare returns the user share of the unit's CPU time. The caller holds the lock.
func (u *Unit) UserShare() float64 { return u.userShare }

// IsProcess reports whether the unit is a process.
func (u *Unit) IsProcess() bool { return u.Process.PID != 0 }

// setService records the service that a claim names.
func (u *Unit) setService(c identify.Claim) {
	if c.Service != "" {
		u.service = Shorten(c.Service)
	}
	if c.ExecutableName != "" {
		u.executable = Shorten(c.ExecutableName)
	}
	switch {
	case u.named:
	case c.Service != "" && !strings.HasPrefix(c.Service, identify.UnknownService):
		u.named = true
		u.decision.SetService(serviceID(c.ServiceNamespace, c.Service))
	default:
		u.decision.SetService("")
	}
}

// serviceID returns the key of a service. A unit keeps its first key, because otherwise
// the cooldown of a unit with several services would change with each profile.
func serviceID(namespace, name string) string {
	if namespace == "" {
		return Shorten(name)
	}
	return Shorten(namespace) + "/" + Shorten(name)
}

// serviceName returns the unit's service for log lines. The
// name is empty before the unit's first profile.
func (u *Unit) serviceName() string {
	if u.service == "" && u.executable != "" {
		return identify.UnknownService + ":" + u.executable
	}
	return u.service
}

// Shorten cuts a text to at most 256 bytes.
func Shorten(s string) string { return truncate.Cut(s, maxText) }

const (
	// maxResourcesSize limits the memory of all kept resources. When the limit is
	// reached, a new resource is not kept. The events of its unit then only contain the
	// service, the container and the host.
	maxResourcesSize = 8 << 20

	// resourceAge is the time after which a resource is copied again.
	resourceAge = time.Minute
)

// resource contains the resource attributes of a unit for its events. The attributes are
// copied from the unit's profiles.
type resource struct {
	hotunitsextension.Resource // its attributes are never changed

	at         time.Time
	pid        int    // pid of the process
	executable string // path of the process's program
	// contained is true if the resource had container.id, or if the unit is not a
	// container. Profiles of a process that was not yet in its container have no
	// container.id.
	contained bool
}

// of returns the kept attributes of a unit. If the service or the host is missing, of adds
// it.
func (r *resources) of(u *Unit) []attribute.KeyValue {
	out := slices.Clip(u.resource.Attributes)
	add := func(key, value string) {
		if value != "" && !slices.ContainsFunc(out, func(kv attribute.KeyValue) bool { return string(kv.Key) == key }) {
			out = append(out, attribute.String(key, value))
		}
	}
	add(attr.ServiceName, u.serviceName())
	add(attr.HostName, r.host)
	return out
}

// resources is the common state of all kept resources. The lock of Set guards it.
type resources struct {
	skip func(key string) bool // nil: no resources are kept
	size int
	host string // the host's name; empty: not known
}

// Described is a unit with the resource attributes that are kept.
type Described struct {
	*Unit
	Attributes []attribute.KeyValue // not to be changed
}

// see keeps a resource of a unit, at most once per resourceAge. It replaces the kept resource
// sooner if the kept resource has no container, or if the process now runs another program.
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
		u.resource.Dropped = len(kept.Attributes) + kept.Dropped
		return
	}
	r.size += kept.Size
	if !contained {
		kept.Attributes = append(kept.Attributes, u.resource.Attributes...) // container.id, which forget has kept
	}
	u.resource.Resource = kept
}

// forget discards the resource of a unit, except for container.id.
func (r *resources) forget(u *Unit) {
	r.size -= u.resource.Size
	u.resource = resource{}
	if u.ContainerID != "" {
		u.resource.Attributes = []attribute.KeyValue{attribute.String(attr.ContainerID, u.ContainerID)}
	}
}
