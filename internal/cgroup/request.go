// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// The reasons for which a request is not known.
const (
	// NoRequest is for a unit that asks for no CPU.
	NoRequest Unavailable = "it requests no CPU: its shares are the least there are"
	// DefaultWeight is for a weight that nobody may have set.
	DefaultWeight Unavailable = "its cpu.weight is 100, the default: whether that is a request of one core or none at all cannot be told apart; set cpu_weight_formula if every unit has a request"
	// UnknownFormula is for a weight that may have been made by either formula.
	UnknownFormula Unavailable = "its cpu.weight may come from either formula of container runtimes, and nothing on this host tells them apart: set cpu_weight_formula to linear (runc before 1.3.2, crun before 1.23) or new"
)

// A CPURequest reads how many cores a unit requests: how much it gets where all
// want more than there is.
type CPURequest struct {
	figure
	v2      bool
	unit    Group
	dir     string
	formula WeightFormula

	// What a weight means is worked out when it changes, and looked for again
	// where nothing told it.
	known  bool
	weight uint64
	cores  float64
	err    error
	at     time.Time
}

// askAgain is after how long a weight that could not be told is looked at again:
// other containers of the pod may have come.
const askAgain = time.Minute

// OpenCPURequest opens the request of a unit. The error is an [Unavailable] where
// it has none of its own.
func (r *Reader) OpenCPURequest(u Group, formula WeightFormula) (*CPURequest, error) {
	h, ok := r.tree.owner(CPU)
	if !ok {
		return nil, NotMounted
	}
	dir, err := r.tree.Own(u, h)
	if err != nil {
		return nil, err
	}
	return r.openRequest(u, h, dir, formula)
}

// OpenCPURequestOf is OpenCPURequest for a process, which takes part in the
// request of the cgroup that it is in, whoever else is there.
func (r *Reader) OpenCPURequestOf(p Paths, formula WeightFormula) (*CPURequest, error) {
	h, ok := r.tree.owner(CPU)
	if !ok || p[h] == "" {
		return nil, NotMounted
	}
	u := r.tree.GroupOf(p)
	if u.Paths[h] == "/" {
		return nil, InRoot
	}
	return r.openRequest(u, h, r.tree.dir(h, u.Paths[h]), formula)
}

func (r *Reader) openRequest(u Group, h Hierarchy, dir string, formula WeightFormula) (*CPURequest, error) {
	if formula == "" {
		formula = WeightAuto
	}
	q := &CPURequest{v2: h == V2Tree, unit: u, dir: dir, formula: formula}
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

// Read returns the cores that are requested. The error is an [Unavailable] where
// nothing is, or where it cannot be told.
func (q *CPURequest) Read(now time.Time) (float64, error) {
	b, err := q.read()
	if err != nil {
		return 0, err
	}
	n, err := parseFigure(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", q.From(), err)
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
	formula := q.formula
	if formula == WeightAuto {
		var ok bool
		if formula, ok = q.r.tree.formulaOf(q.unit, q.dir, weight); !ok {
			if weight == defaultWeight && q.unit.PodUID == "" {
				return 0, DefaultWeight
			}
			return 0, UnknownFormula
		}
	}
	return formula.shares(weight).cores(), nil
}

const defaultWeight = 100 // of a cgroup whose weight nobody set

// formulaOf finds out by which formula a container got its weight: by the shares
// in its runtime's own record of it, else by what its pod has.
func (t *Tree) formulaOf(u Group, dir string, weight uint64) (WeightFormula, bool) {
	if u.ContainerID == "" {
		return "", false
	}
	if shares, ok := t.specShares(u.ContainerID); ok {
		linear, other := WeightLinear.weight(shares) == weight, WeightNew.weight(shares) == weight
		switch {
		case linear && !other:
			return WeightLinear, true
		case other && !linear:
			return WeightNew, true
		}
	}
	if u.PodUID == "" {
		return "", false
	}
	return seePod(filepath.Dir(dir)).formula()
}

// maxPods bounds how many cgroups beside a unit's are looked at.
const maxPods = 512

// seePod reads the weights of a pod and what is beside it.
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

// weightOf returns a cgroup's cpu.weight, 0 where it has none.
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

// maxSpec bounds a container's configuration; a large one has some 50 KiB.
const maxSpec = 4 << 20

// specShares returns the CPU shares in the OCI configuration of a container, of
// those of containerd, Docker, k3s, CRI-O and Podman that can be read. It holds
// what the container was made with, so it tells only if its weight agrees.
func (t *Tree) specShares(id string) (uint64, bool) {
	root, err := os.OpenRoot(t.root) // no link in it leads out
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
