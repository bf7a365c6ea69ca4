// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

const (
	// podLogs is the directory in which the kubelet keeps a symbolic link to the log of
	// each container. The link is named POD_NAMESPACE_CONTAINER-ID.log, and its target is
	// in the directory NAMESPACE_POD_UID/CONTAINER. Only root may write to podLogs.
	podLogs = "/var/log/containers"

	// maxLogs is the maximum number of links that are read.
	maxLogs = 10_000
)

// podContainer is a container of a pod, with data from the link to its log.
type podContainer struct {
	name, id string
	made     time.Time
}

// PodContainer returns the id of a container of a pod. name is the name of the container
// in the pod. If the name is empty, PodContainer returns the id of the pod's only running
// container. One rate limit covers reads of the directory and walks of the cgroup tree.
func (h *LocalHost) PodContainer(uid, name string) (id string, why Unmatched) {
	if len(uid) < 32 || len(uid) > 36 || strings.ContainsAny(uid, "/_*?") || len(name) > maxContainerID {
		return "", NoPod
	}
	key := uid + "/" + name // no container's id has a slash
	if id := h.full(key); id != key {
		if g, ok := h.watched(id); ok && g.ContainerID != "" {
			return id, ""
		}
	}
	now := h.now()
	if !h.mayWalk(key, now) {
		return "", NoPod
	}
	id, why = h.findPodContainer(uid, name)
	h.remember(key, id, now)
	return id, why
}

func (h *LocalHost) findPodContainer(uid, name string) (id string, why Unmatched) {
	found := map[string]string{} // running containers, by name
	all := h.podContainers(uid)
	for _, c := range all { // newest first, because older containers with the same name have ended
		if name != "" && c.name != name || found[c.name] != "" {
			continue
		}
		if _, ok, err := h.FindContainer(c.id); ok && err == nil {
			found[c.name] = c.id
		}
	}
	switch {
	case len(all) == 0:
		return "", NoPod
	case len(found) > 1:
		return "", SeveralContainers
	}
	for _, id := range found {
		return id, ""
	}
	return "", NoContainerOfPod
}

// podContainers returns the containers of a pod, newest first.
func (h *LocalHost) podContainers(uid string) (out []podContainer) {
	dir, err := os.Open(h.podLogs)
	if err != nil {
		return nil
	}
	defer dir.Close()
	links, _ := dir.Readdirnames(maxLogs)
	for _, link := range links {
		target, err := os.Readlink(filepath.Join(h.podLogs, link))
		if err != nil || !strings.Contains(target, "_"+uid+"/") {
			continue
		}
		parts := strings.Split(strings.TrimSuffix(link, ".log"), "_")
		container := parts[len(parts)-1]
		dash := strings.LastIndexByte(container, '-')
		if len(parts) == 1 || dash < 0 || len(container)-dash <= cgroup.MinPrefix {
			continue
		}
		if info, err := os.Lstat(filepath.Join(h.podLogs, link)); err == nil {
			out = append(out, podContainer{container[:dash], container[dash+1:], info.ModTime()})
		}
	}
	slices.SortFunc(out, func(a, b podContainer) int { return b.made.Compare(a.made) })
	return out
}
