// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// maxMountinfo is the maximum number of bytes read from a mountinfo file. It is
// enough for about 20,000 mounts.
const maxMountinfo = 4 << 20

// MaxPaths is the maximum number of bytes read from /proc/PID/cgroup.
const MaxPaths = 64 << 10

// A mount is a directory where all or part of a hierarchy is mounted.
type mount struct {
	dir string
	// device is major:minor, which is the same for every mount of one hierarchy. It is
	// empty if unknown.
	device string
	// namespacePath is the path of dir in the hierarchy, in this process's cgroup
	// namespace.
	namespacePath
	hierarchies []Hierarchy
	// above holds the names of the cgroups from dir down to the root of this process's
	// cgroup namespace, one name per level of up. It is empty without a private namespace.
	above []string
}

// A namespacePath is a path relative to a cgroup namespace, as the kernel shows it. For
// example, "/../../a" is the directory a two levels above the namespace's root.
type namespacePath struct {
	up   int
	rest string // empty, or starts with a slash
}

// parseNamespacePath fails for paths that the kernel does not write, which are paths
// without a leading slash and paths with ".." after a name.
func parseNamespacePath(path string) (namespacePath, error) {
	p := namespacePath{rest: path}
	for p.rest == "/.." || strings.HasPrefix(p.rest, "/../") {
		p.up++
		p.rest = p.rest[len("/.."):]
	}
	if p.rest == "/" {
		p.rest = ""
	}
	if p.rest != "" && p.rest[0] != '/' || strings.HasSuffix(p.rest, "/..") || strings.Contains(p.rest, "/../") || path == "" {
		return namespacePath{}, fmt.Errorf("malformed cgroup path %q", path)
	}
	return p, nil
}

// parseMountinfo returns the mounts of known hierarchies. It adds prefix to each mount
// point.
func parseMountinfo(b []byte, prefix string) []mount {
	var out []mount
	for line := range bytes.Lines(b) {
		before, after, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		var hierarchies []Hierarchy
		switch g[0] {
		case "cgroup2":
			hierarchies = []Hierarchy{V2Tree}
		case "cgroup":
			for name := range strings.SplitSeq(g[2], ",") {
				if h, ok := hierarchyOf(name); ok {
					hierarchies = append(hierarchies, h)
				}
			}
		}
		at, err := parseNamespacePath(unescape.Replace(f[3]))
		if len(hierarchies) == 0 || err != nil {
			continue
		}
		out = append(out, mount{
			dir:           filepath.Join(prefix, unescape.Replace(f[4])),
			device:        f[2],
			namespacePath: at,
			hierarchies:   hierarchies,
		})
	}
	return out
}

// unescape resolves the octal escapes that the kernel writes to mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)

// findMounts returns the usable mounts below root. It searches this process's mount table,
// then the mount table of the host's first process, then the usual mount points. all
// contains every cgroup mount of this process, including mounts outside root.
func findMounts(root string) (below, all []mount, err error) {
	if b, err := procfs.ReadFile("/proc/self/mountinfo", maxMountinfo); err == nil {
		all = parseMountinfo(b, "/")
		below = slices.DeleteFunc(slices.Clone(all), func(m mount) bool { return !Under(m.dir, root) || !usable(m.dir) })
	}
	if len(below) > 0 {
		return below, all, nil
	}
	if b, err := procfs.ReadFile(procfs.At(root).File(1, "mountinfo"), maxMountinfo); err == nil {
		below = slices.DeleteFunc(parseMountinfo(b, root), func(m mount) bool { return !usable(m.dir) })
	}
	if len(below) > 0 {
		return below, all, nil
	}
	below = conventional(filepath.Join(root, "sys/fs/cgroup"))
	if len(below) == 0 {
		return nil, nil, fmt.Errorf("no cgroup hierarchy found below %s: no mount of type cgroup or cgroup2 in /proc/self/mountinfo or %s, and nothing in %s; "+
			"mount the host's root with its submounts (rbind, or rslave) and name it in root_path",
			root, filepath.Join(root, "proc/1/mountinfo"), filepath.Join(root, "sys/fs/cgroup"))
	}
	return below, all, nil
}

// conventional returns the hierarchies in the directory where distributions mount them.
func conventional(dir string) []mount {
	if isFile(filepath.Join(dir, "cgroup.controllers")) && usable(dir) {
		return []mount{{dir: dir, hierarchies: []Hierarchy{V2Tree}}}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []mount
	for _, e := range entries {
		m := mount{dir: filepath.Join(dir, e.Name())}
		switch {
		case !usable(m.dir):
			continue
		case isFile(filepath.Join(m.dir, "cgroup.controllers")):
			m.hierarchies = []Hierarchy{V2Tree}
		case e.Name() == "systemd":
			m.hierarchies = []Hierarchy{Systemd}
		default:
			for name := range strings.SplitSeq(e.Name(), ",") {
				if h, ok := hierarchyOf(name); ok {
					m.hierarchies = append(m.hierarchies, h)
				}
			}
		}
		out = append(out, m)
	}
	return out
}

func usable(dir string) bool { return isFile(filepath.Join(dir, "cgroup.procs")) }

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}
