// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/tcppeer"
	"github.com/hotprofile/hotprofile/internal/unixsocket"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// maxSubjects is the maximum number of processes per endpoint.
const maxSubjects = 256

// subjectFinder finds the process or unit that an endpoint's profiles belong to. It is not
// safe for concurrent use.
type subjectFinder struct {
	cfg    *Config
	host   sampler.HostInfo
	target *processes.Finder // nil if no target is configured
	tcp    *tcppeer.Finder
	last   Subject
}

func newSubjectFinder(cfg *Config, host sampler.HostInfo) (*subjectFinder, error) {
	f := &subjectFinder{cfg: cfg, host: host, tcp: tcppeer.New(host.Root)}
	if cfg.Target.HasValue() {
		wanted, err := processes.NewMatcher([]processes.Target{*cfg.Target.Get()}, os.Getpid())
		if err != nil {
			return nil, fmt.Errorf("target: %w", err)
		}
		f.target = processes.NewFinder(processes.Config{Access: mappedfile.Access{Root: host.Root}, Tree: host.Tree, Wanted: wanted}, false)
	}
	return f, nil
}

// find returns the current subject. If the attributes have not changed, it returns the same
// resource as before, because the samples of one resource form one profile.
func (f *subjectFinder) find(ctx context.Context) (Subject, error) {
	found, err := f.look(ctx)
	if err != nil && !errors.Is(err, ErrUnidentified) {
		return Subject{}, err
	}
	if r := f.last.Resource; r != nil && r.PID == found.Resource.PID && slices.Equal(r.Attributes, found.Resource.Attributes) {
		found.Resource = r
	}
	f.last = found
	return found, err
}

func (f *subjectFinder) look(ctx context.Context) (Subject, error) {
	r, unit := &samples.Resource{}, processes.Identity{}
	pids, err := f.pids(ctx)
	if len(pids) > 0 && err == nil {
		r, unit, err = f.describe(pids)
	}
	if err != nil {
		r, unit = &samples.Resource{}, processes.Identity{}
	}
	attributes := make(map[string]any)
	for _, a := range r.Attributes {
		attributes[a.Key] = a.Value
	}
	for key, v := range f.cfg.Resource {
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		attributes[key] = v
	}
	if len(pids) == 0 {
		unit.ContainerID, _ = attributes[attr.ContainerID].(string)
		if unit.Cgroup, _ = attributes[attr.Cgroup].(string); unit.Cgroup != "" {
			// A cgroup path is ambiguous without its host.
			for key, value := range map[string]string{attr.HostName: f.host.Name, attr.HostID: f.host.ID} {
				if _, set := attributes[key]; !set && value != "" {
					attributes[key] = value
				}
			}
		}
	}
	// A sampler may sample the same program. Without this attribute, backends would add the
	// values of the pulled profiles to the values of the sampler.
	attributes[attr.Origin] = attr.OriginPprof
	language, _ := attributes[attr.SDKLanguage].(string)
	out := &samples.Resource{PID: r.PID}
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		out.Attributes = append(out.Attributes, samples.Attribute{Key: key, Value: attributes[key]})
	}
	return Subject{Resource: out, Unit: unit, Frames: frameTypeOf(language), PIDs: pids}, err
}

// pids returns the processes of the endpoint. It returns no pids if only the attributes in
// resource identify the unit.
func (f *subjectFinder) pids(ctx context.Context) (pids []int, err error) {
	_, container := f.cfg.Resource[attr.ContainerID]
	_, group := f.cfg.Resource[attr.Cgroup]
	switch {
	case f.target != nil:
		found, _, err := f.target.Find(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for the target: %w", err)
		}
		for _, m := range found {
			pids = append(pids, m.PID)
		}
		if len(pids) == 0 {
			return nil, fmt.Errorf("%w: there is no process of target %s", ErrUnidentified, *f.cfg.Target.Get())
		}
		return pids, nil
	case container || group:
		return nil, nil
	case f.cfg.Socket != "":
		return peers(ctx, "unix", f.cfg.Socket, socketPeer)
	case !f.cfg.named() && f.cfg.loopback() != "":
		return peers(ctx, "tcp", f.cfg.loopback(), f.tcp.Find)
	}
	return nil, nil
}

// peers connects to an address of this host. It calls find to identify the processes at the
// other end of the connection, and returns their pids.
func peers(ctx context.Context, network, address string, find func(context.Context, net.Conn) ([]int, error)) ([]int, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	pids, err := find(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnidentified, err)
	}
	return pids, nil
}

// socketPeer returns the process that listens on a socket, as identified by the kernel.
func socketPeer(_ context.Context, c net.Conn) ([]int, error) {
	pid, _, err := unixsocket.Peer(c)
	if err == nil && pid == 0 {
		err = errors.New("it is in another pid namespace")
	}
	return []int{pid}, err
}

// describe returns the resource and unit of a process. For several processes of one unit,
// it returns their common attributes, without attributes that describe a single process.
func (f *subjectFinder) describe(pids []int) (*samples.Resource, processes.Identity, error) {
	if len(pids) > maxSubjects {
		return nil, processes.Identity{}, fmt.Errorf("%w: it may be any of %d", ErrUnidentified, len(pids))
	}
	cfg := processes.Config{Access: mappedfile.Access{Root: f.host.Root}, Tree: f.host.Tree, HostName: f.host.Name, HostID: f.host.ID}
	var r *samples.Resource
	var unit processes.Identity
	for _, pid := range pids {
		one, id, err := processes.Describe(cfg, pid)
		if errors.Is(err, processes.ErrEnded) && len(pids) > 1 {
			continue
		}
		if err != nil {
			return nil, unit, err
		}
		if r == nil {
			r, unit = one, id
			continue
		}
		if id.Cgroup == "" && id.ContainerID == "" || id.Cgroup != unit.Cgroup || id.ContainerID != unit.ContainerID {
			return nil, unit, fmt.Errorf("%w: processes %d and %d may be, of different cgroups", ErrUnidentified, pids[0], pid)
		}
		unit = processes.Identity{Cgroup: id.Cgroup, ContainerID: id.ContainerID, PodUID: id.PodUID}
		r = common(r, one)
	}
	if r == nil {
		return nil, unit, fmt.Errorf("%w: its processes have ended", ErrUnidentified)
	}
	return r, unit, nil
}

// common returns the attributes that two processes of one unit have in common.
func common(a, b *samples.Resource) *samples.Resource {
	r := &samples.Resource{}
	for _, x := range a.Attributes {
		if slices.Contains(b.Attributes, x) && (!strings.HasPrefix(x.Key, "process.") || x.Key == attr.Cgroup) {
			r.Attributes = append(r.Attributes, x)
		}
	}
	return r
}
