// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// resource returns a new resource with the known attributes of a process.
func (t *Table) resource(p *Process) *samples.Resource {
	f, env := p.facts, p.environment()
	r := &samples.Resource{PID: p.PID}
	add := func(key, value string) { // in the order of keys
		if value != "" {
			r.Attributes = append(r.Attributes, samples.Attribute{Key: key, Value: value})
		}
	}
	add(attr.ContainerID, f.group.ContainerID)
	add(attr.DeploymentEnvironment, env.deployment)
	add(attr.HostID, t.cfg.HostID)
	add(attr.HostName, t.cfg.HostName)
	add(attr.PodUID, f.group.PodUID)
	if !p.StartTime.IsZero() {
		add(attr.CreationTime, p.StartTime.Format(time.RFC3339Nano))
	}
	add(attr.ExecutableName, executableName(f, p.Name))
	add(attr.ExecutablePath, f.path)
	add(attr.Cgroup, f.group.Cgroup)
	r.Attributes = append(r.Attributes, samples.Attribute{Key: attr.PID, Value: int64(p.PID)})
	add(attr.ServiceInstanceID, env.serviceInstance)
	add(attr.ServiceName, serviceName(f, env.serviceName))
	add(attr.ServiceNamespace, env.serviceNamespace)
	add(attr.ServiceVersion, env.serviceVersion)
	return r
}

// executableName returns the name under which the program was started. If this name is
// unknown, it returns the name of the program's file or, without a file, the name of the
// process. Kernel threads get only the name of their kind, such as "kworker" for
// "kworker/3:1H-kblockd", because each value is a series in a backend.
func executableName(f *facts, comm string) string {
	if f.called != "" {
		return f.called
	}
	if f.path != "" {
		return filepath.Base(f.path)
	}
	if f.kernel {
		comm, _, _ = strings.Cut(comm, "/")
	}
	return comm
}

// serviceName returns the service name that the process declares. Outside containers, the
// default is the name of the process's systemd service.
func serviceName(f *facts, declared string) string {
	if declared != "" || f.group.ContainerID != "" {
		return declared
	}
	at := f.paths[cgroup.Systemd] // on cgroup v1, systemd has its own tree
	if at == "" || at == "/" {
		at = f.group.Cgroup
	}
	return systemdService(at)
}

// systemdService returns the name of the innermost systemd unit in a cgroup's path if
// that unit is a service. The suffix is removed. For example, the result for
// /system.slice/checkout.service/workers is "checkout". A process in a scope, such as a
// login session, belongs to no service, even if user@1000.service is above the scope.
func systemdService(at string) string {
	for _, name := range slices.Backward(strings.Split(at, "/")) {
		if service, ok := strings.CutSuffix(name, ".service"); ok {
			return text([]byte(unescapeUnit(service)), maxValue)
		}
		if strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".slice") {
			return ""
		}
	}
	return ""
}

// unescapeUnit resolves systemd's escapes in a unit's name, such as \x2d for a dash.
func unescapeUnit(name string) string {
	if plain, err := strconv.Unquote(`"` + name + `"`); err == nil {
		return plain
	}
	return name
}
