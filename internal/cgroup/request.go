// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/json"
	"io"
	"os"
	"syscall"
	"time"
)

// These are the reasons why a request is unknown.
const (
	// NoRequest is returned for a group that does not request CPU.
	NoRequest Unavailable = "it requests no CPU: its shares are the least there are"
	// DefaultWeight is returned if the group's weight may be the kernel's default.
	DefaultWeight Unavailable = "its cpu.weight is 100, the default: whether that is a request of one core or none at all cannot be told apart"
	// UnknownFormula is for a weight that may result from either formula.
	UnknownFormula Unavailable = "its cpu.weight may come from either formula of container runtimes, and nothing on this host tells them apart: use cpu_usage with a threshold in cores for this unit"
)

// A CPURequest reads the number of cores that a group requests. The group gets these cores
// when the CPUs are overcommitted.
type CPURequest struct {
	*Value
	r     *Reader
	v2    bool
	group Group

	// cores and err are computed when the weight changes, and again after askAgain if err
	// is set.
	known  bool
	weight uint64
	cores  float64
	err    error
	at     time.Time
}

// askAgain is the time after which an unexplained weight is examined again. By then,
// another container may have revealed the formula.
const askAgain = time.Minute

// OpenCPURequest opens the request of a group. If g is zero, it opens the request of a
// process with the paths p. The process shares its cgroup's request with the cgroup's other
// processes. The error is an [Unavailable] if the group has no separate cgroup.
func (r *Reader) OpenCPURequest(g Group, p Paths) (*CPURequest, error) {
	h, dir, err := r.tree.ownOf(g, CPU)
	if g.ProcessOnly() {
		g = r.tree.GroupOf(p)
		switch path := g.Paths[h]; path {
		case "":
			err = NotMounted
		case "/":
			err = InRoot
		default:
			dir, err = r.tree.dir(h, path), nil
		}
	}
	if err != nil {
		return nil, err
	}
	v, err := openValue(r.part(dir, h.file("cpu.weight", "cpu.shares"), parseFigure))
	if err != nil {
		return nil, err
	}
	return &CPURequest{Value: v, r: r, v2: h == V2Tree, group: g}, nil
}

// Read returns the requested cores. The error is an [Unavailable] if no cores are
// requested, or if the formula by which the request became the cgroup's CPU weight is
// unknown.
func (q *CPURequest) Read(now time.Time) (float64, error) {
	n, replaced, err := q.Value.Read()
	if err != nil {
		return 0, err
	}
	if !q.v2 {
		if n <= minShares {
			return 0, NoRequest
		}
		return float64(n) / sharesPerCore, nil
	}
	if !q.known || n != q.weight || replaced || q.err != nil && now.Sub(q.at) >= askAgain {
		q.known, q.weight, q.at = true, n, now
		q.cores, q.err = q.ofWeight(n)
	}
	return q.cores, q.err
}

func (q *CPURequest) ofWeight(weight uint64) (float64, error) {
	if weight <= minWeight || weight > maxWeight { // 0 is cpu.idle
		return 0, NoRequest
	}
	formula, ok := q.formula(weight)
	switch {
	case ok:
		return formula.shares(weight).cores(), nil
	case weight == defaultWeight && q.group.PodUID == "":
		return 0, DefaultWeight
	default:
		return 0, UnknownFormula
	}
}

const defaultWeight = 100 // the kernel's default

// formula returns the formula by which the runtime computed a container's weight. It
// compares the weight with the shares in the runtime's own record of the container. If the
// weight does not match the record, because the container was resized, formula returns the
// formula of another container, because a host has only one runtime.
func (q *CPURequest) formula(weight uint64) (weightFormula, bool) {
	if q.group.ContainerID == "" {
		return "", false
	}
	if shares, ok := q.r.tree.specShares(q.group.ContainerID); ok {
		linear, other := weightLinear.weight(shares) == weight, weightNew.weight(shares) == weight
		switch {
		case linear && !other:
			q.r.formula = weightLinear
		case other && !linear:
			q.r.formula = weightNew
		}
	}
	return q.r.formula, q.r.formula != ""
}

// maxSpec is the maximum number of bytes read from a container's configuration. A large
// configuration has about 50 KiB.
const maxSpec = 4 << 20

// specShares returns the CPU shares in the OCI configuration of a container, if readable.
// It supports containerd, Docker, k3s, CRI-O and Podman. The container was created with
// these shares, but they may have changed since.
func (t *Tree) specShares(id string) (uint64, bool) {
	root, err := os.OpenRoot(t.root) // symbolic links cannot lead out of root
	if err != nil {
		return 0, false
	}
	defer root.Close()
	for _, at := range [...]string{
		"run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id,
		"run/containerd/io.containerd.runtime.v2.task/moby/" + id,
		"run/containerd/io.containerd.runtime.v2.task/default/" + id,
		"run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/" + id,
		"run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/" + id,
		"run/containers/storage/overlay-containers/" + id + "/userdata",
		"var/lib/containers/storage/overlay-containers/" + id + "/userdata",
	} {
		if shares, ok := readSpec(root, at+"/config.json"); ok {
			return shares, true
		}
	}
	return 0, false
}

func readSpec(root *os.Root, name string) (uint64, bool) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxSpec {
		return 0, false
	}
	var spec struct {
		Linux struct {
			Resources struct {
				CPU struct {
					Shares uint64 `json:"shares"`
				} `json:"cpu"`
			} `json:"resources"`
		} `json:"linux"`
	}
	err = json.NewDecoder(io.LimitReader(f, maxSpec)).Decode(&spec)
	shares := spec.Linux.Resources.CPU.Shares
	return shares, err == nil && shares >= minShares
}
