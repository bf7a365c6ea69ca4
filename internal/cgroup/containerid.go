// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"regexp"
	"strings"
)

const idLength = 64 // hexadecimal digits of the container ids of OCI engines

var (
	fargateName = regexp.MustCompile(`^[0-9a-f]{32}-[0-9]+$`)
	gardenName  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){4}$`)
	// podUIDName matches a UUID, or the 32 digits of a static pod.
	podUIDName = regexp.MustCompile(`^([0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32})$`)
)

// MinPrefix is the minimum number of digits in a search for a container id.
const MinPrefix = 12

// ContainerID returns the id of the outermost container on a cgroup's path. For nested
// containers, this is the container that runs directly on the host. ContainerID recognizes
// the names of Docker, containerd, CRI-O and Podman with either cgroup driver, with and
// without Kubernetes. It also recognizes the names of ECS on Fargate and of Garden.
func ContainerID(path string) (id string, ok bool) {
	id, _, ok = ContainerIn(path)
	return id, ok
}

// ContainerIn returns the same id as [ContainerID], and the
// path of the container's cgroup.
func ContainerIn(path string) (id, upTo string, ok bool) {
	parent, end := "", -1
	for name := range strings.SplitSeq(path, "/") {
		end += 1 + len(name)
		if id, ok := containerName(parent, name); ok {
			return id, path[:end], true
		}
		if name == "ecs" || name == "garden" || parent != "ecs" {
			parent = name // in Fargate, the task's id is between ecs and the container
		}
	}
	return "", "", false
}

// containerName returns the container id in the name of one cgroup.
func containerName(parent, name string) (string, bool) {
	if parent == "ecs" && fargateName.MatchString(name) || parent == "garden" && gardenName.MatchString(name) {
		return name, true
	}
	name = strings.TrimSuffix(name, ".scope")
	if len(name) < idLength {
		return "", false
	}
	prefix, id := name[:len(name)-idLength], name[len(name)-idLength:]
	if strings.Trim(id, "0123456789abcdef") != "" {
		return "", false
	}
	if prefix == "" {
		return id, true
	}
	// conmon is the container's monitor, which runs outside the container. An underscore
	// before the id marks Podman's pod (libpod_pod_ID).
	if last := prefix[len(prefix)-1]; last != '-' && last != ':' || strings.Contains(prefix, "conmon") {
		return "", false
	}
	return id, true
}

// PodUID returns the uid of the Kubernetes pod on a cgroup's path, in the notation of the
// API server.
func PodUID(path string) (uid string, ok bool) {
	for name := range strings.SplitSeq(path, "/") {
		name = strings.TrimSuffix(name, ".slice")
		if uid, ok := strings.CutPrefix(name, "pod"); ok {
			name = uid
		} else if i := strings.LastIndex(name, "-pod"); i > 0 && strings.HasPrefix(name, "kube") {
			name = name[i+len("-pod"):] // kubepods-burstable-podUIDName
		} else {
			continue
		}
		name, _, _ = strings.Cut(name, ".slice:") // kubepods-podUIDName.slice:cri-containerd:ID
		name = strings.ReplaceAll(name, "_", "-") // systemd's names use _ for a dash within a part
		if podUIDName.MatchString(name) {
			return name, true
		}
	}
	return "", false
}
