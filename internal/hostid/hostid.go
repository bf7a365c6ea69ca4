// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostid reads the names and ids of this host. The receiver sends the first
// name and the first id. cpu_trigger trusts a pid or cgroup only if the sender's host
// name or host id belongs to this host.
package hostid

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Names returns the host's names. The most reliable name comes first. If root is not "/",
// this process is in a container, and the kernel returns the name of the container. In
// this case, the name in /etc/hostname comes first.
func Names(root string) []string {
	kernel, _ := os.Hostname() // the file may still have a name
	names := []string{kernel, word(filepath.Join(root, "etc/hostname"))}
	if filepath.Clean(root) != "/" {
		slices.Reverse(names)
	}
	return distinct(names)
}

// IDs returns the host's ids. The most reliable id comes first. The ids are the machine
// id, the product UUID and, in clouds, the instance id. Resource detection in clouds
// sends the instance id as host.id.
func IDs(root string) []string {
	var ids []string
	for _, file := range []string{"etc/machine-id", "var/lib/dbus/machine-id", "sys/class/dmi/id/product_uuid", "var/lib/cloud/data/instance-id"} {
		ids = append(ids, word(filepath.Join(root, file)))
	}
	return distinct(ids)
}

// Best returns the first of the given names or ids. If there are none,
// Best returns an empty string.
func Best(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

func distinct(words []string) (out []string) {
	for _, w := range words {
		if w != "" && !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// word returns the only word in a file of at most 256 bytes. If the file is longer, or
// does not contain exactly one word, word returns an empty string.
func word(path string) string {
	text, err := procfs.ReadFile(path, 256)
	fields := strings.Fields(string(text))
	if err != nil || len(fields) != 1 {
		return ""
	}
	return fields[0]
}
