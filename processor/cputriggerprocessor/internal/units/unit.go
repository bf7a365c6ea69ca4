// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/texts"
	"github.com/hotprofile/hotprofile/internal/trigger"
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
func Shorten(s string) string { return texts.Cut(s, maxText) }
