// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Claim is the identity of a process according to the attributes of a resource. If an
// attribute is missing, its field is zero.
type Claim struct {
	ContainerID, Cgroup            string
	PodUID, ContainerName          string
	HostName, HostID               string
	PID                            int
	Created                        time.Time
	ExecutablePath, ExecutableName string
	Service, ServiceNamespace      string
	// Replaced is true if the process now runs a different program from the one in the
	// profile. In this case, the claim does not set the unit's service.
	Replaced bool
	// Attributes contains all attributes of the resource. The attributes belong to the
	// batch, so they must not be kept.
	Attributes pcommon.Map
}

// ClaimOf reads the claim of a resource. It ignores attributes whose
// values have a wrong type.
func ClaimOf(attributes pcommon.Map) (c Claim) {
	c.Attributes = attributes
	for k, v := range attributes.All() {
		switch k {
		case attr.ContainerID:
			c.ContainerID = v.Str()
		case attr.PodUID:
			c.PodUID = v.Str()
		case attr.ContainerName:
			c.ContainerName = v.Str()
		case attr.Cgroup:
			c.Cgroup = v.Str()
		case attr.PID:
			if n := v.Int(); v.Type() == pcommon.ValueTypeInt && n > 0 && n <= procfs.MaxPID {
				c.PID = int(n)
			}
		case attr.CreationTime:
			if t, err := time.Parse(time.RFC3339, v.Str()); err == nil {
				c.Created = t
			}
		case attr.ExecutablePath:
			c.ExecutablePath = v.Str()
		case attr.ExecutableName:
			c.ExecutableName = v.Str()
		case attr.HostName:
			c.HostName = v.Str()
		case attr.HostID:
			c.HostID = v.Str()
		case attr.ServiceName:
			c.Service = v.Str()
		case attr.ServiceNamespace:
			c.ServiceNamespace = v.Str()
		}
	}
	return c
}
