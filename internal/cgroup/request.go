// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// The reasons why a request is unknown.
const (
	// NoRequest is for a group that requests no CPU.
	NoRequest Unavailable = "it requests no CPU: its shares are the least there are"
	// DefaultWeight is for a weight that may be the kernel's default.
	DefaultWeight Unavailable = "its cpu.weight is 100, the default: whether that is a request of one core or none at all cannot be told apart"
	// UnknownFormula is for a weight that either formula may have made.
	UnknownFormula Unavailable = "its cpu.weight may come from either formula of container runtimes, and nothing on this host tells them apart: use cpu_usage with a threshold in cores for this unit"
)

// A CPURequest reads the cores that a group requests: what it gets while all
// together want more than there is.
type CPURequest struct {
	figure
	v2    bool
	group Group
	dir   string

	// cores and err are computed when the weight changes, and again after askAgain
	// if err is set.
	known  bool
	weight uint64
	cores  float64
	err    error
	at     time.Time
}

// askAgain is the time after which an unexplained weight is looked at again: the
// pod may have other containers by then.
const askAgain = time.Minute

// OpenCPURequest opens the request of a group. The error is an [Unavailable] if it
// has no cgroup of its own.
func (r *Reader) OpenCPURequest(g Group) (*CPURequest, error) {
	h, dir, err := r.tree.ownOf(g, CPU)
	if err != nil {
		return nil, err
	}
	return r.openRequest(g, h, dir)
}

// OpenCPURequestOf is OpenCPURequest for a process, which shares the request of its
// cgroup with the other processes there.
func (r *Reader) OpenCPURequestOf(p Paths) (*CPURequest, error) {
	h, ok := r.tree.owner(CPU)
	if !ok || p[h] == "" {
		return nil, NotMounted
	}
	g := r.tree.GroupOf(p)
	if g.Paths[h] == "/" {
		return nil, InRoot
	}
	return r.openRequest(g, h, r.tree.dir(h, g.Paths[h]))
}

func (r *Reader) openRequest(g Group, h Hierarchy, dir string) (*CPURequest, error) {
	q := &CPURequest{v2: h == V2Tree, group: g, dir: dir}
	name := "cpu.shares"
	if q.v2 {
		name = "cpu.weight"
	}
	q.figure = r.figure(dir, name)
	if err := q.exists(); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// Read returns the requested cores. The error is an [Unavailable] if none are
// requested or the weight cannot be explained.
func (q *CPURequest) Read(now time.Time) (float64, error) {
	n, err := q.number()
	if err != nil {
		return 0, err
	}
	if !q.v2 {
		if n <= minShares {
			return 0, NoRequest
		}
		return float64(n) / sharesPerCore, nil
	}
	if !q.known || n != q.weight || q.wasReplaced() || q.err != nil && now.Sub(q.at) >= askAgain {
		q.known, q.weight, q.at = true, n, now
		q.cores, q.err = q.ofWeight(n)
	}
	return q.cores, q.err
}

func (q *CPURequest) ofWeight(weight uint64) (float64, error) {
	if weight <= minWeight || weight > maxWeight { // 0 is cpu.idle
		return 0, NoRequest
	}
	formula, ok := q.r.tree.formulaOf(q.group, q.dir, weight)
	switch {
	case ok:
		return formula.shares(weight).cores(), nil
	case weight == defaultWeight && q.group.PodUID == "":
		return 0, DefaultWeight
	default:
		return 0, UnknownFormula
	}
}

const defaultWeight = 100 // the kernel's

// formulaOf returns the formula that a container's weight was computed with: by the
// shares in the runtime's own record, else by the weights in its pod.
func (t *Tree) formulaOf(g Group, dir string, weight uint64) (weightFormula, bool) {
	if g.ContainerID == "" {
		return "", false
	}
	if shares, ok := t.specShares(g.ContainerID); ok {
		linear, other := weightLinear.weight(shares) == weight, weightNew.weight(shares) == weight
		switch {
		case linear && !other:
			return weightLinear, true
		case other && !linear:
			return weightNew, true
		}
	}
	if g.PodUID == "" {
		return "", false
	}
	return seePod(filepath.Dir(dir)).formula()
}

// maxPods bounds the cgroups beside a group's that are read.
const maxPods = 512

// seePod reads the weights in a pod and of the cgroups beside it.
func seePod(dir string) pod {
	var p pod
	p.weight = weightOf(dir)
	p.containers = weightsBelow(dir, func(name string) bool {
		_, ok := containerName("", name)
		return ok
	})
	tier := filepath.Dir(dir)
	if !strings.Contains(filepath.Base(tier), "burstable") {
		entries, _ := os.ReadDir(tier) // a guaranteed pod's is beside it
		for _, e := range entries {
			if e.IsDir() && strings.Contains(e.Name(), "burstable") {
				tier = filepath.Join(tier, e.Name())
				break
			}
		}
	}
	p.tier = weightOf(tier)
	p.siblings = weightsBelow(tier, func(name string) bool {
		_, ok := PodUID(name)
		return ok
	})
	return p
}

func weightsBelow(dir string, of func(name string) bool) []uint64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var weights []uint64
	for _, e := range entries {
		if !e.IsDir() || !of(e.Name()) {
			continue
		}
		if w := weightOf(filepath.Join(dir, e.Name())); w > 0 {
			weights = append(weights, w)
		}
		if len(weights) > maxPods {
			return nil
		}
	}
	return weights
}

// weightOf returns a cgroup's cpu.weight, 0 if it has none.
func weightOf(dir string) uint64 {
	b, err := procfs.ReadFile(filepath.Join(dir, "cpu.weight"), 64)
	if err != nil {
		return 0
	}
	n, err := parseFigure(b)
	if err != nil || n > maxWeight {
		return 0
	}
	return n
}

// maxSpec is the most that is read of a container's configuration, in bytes; a large
// one has some 50 KiB.
const maxSpec = 4 << 20

// specShares returns the CPU shares in the OCI configuration of a container of
// containerd, Docker, k3s, CRI-O or Podman, if it can be read. They are those that
// the container was created with, and may have changed since.
func (t *Tree) specShares(id string) (uint64, bool) {
	root, err := os.OpenRoot(t.root) // no link leads out of it
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
