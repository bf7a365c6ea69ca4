// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostid holds the names and ids that this host goes by. The receiver
// puts the first of each on what it sends, and the gate believes a pid or a
// cgroup only of a sender that gives one of them, so both read them here.
package hostid

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names returns the host's names, the best first. Below a root of its own the
// host's file counts before what the kernel says, which is then the container's.
func Names(root string) []string {
	kernel, _ := os.Hostname() // else the file must do
	names := []string{kernel, word(filepath.Join(root, "etc/hostname"))}
	if filepath.Clean(root) != "/" {
		slices.Reverse(names)
	}
	return distinct(names)
}

// IDs returns the host's ids, the best first: the machine's own, and in clouds
// the instance's, as resource detection gives it.
func IDs(root string) []string {
	var ids []string
	for _, file := range []string{"etc/machine-id", "var/lib/dbus/machine-id", "sys/class/dmi/id/product_uuid", "var/lib/cloud/data/instance-id"} {
		ids = append(ids, word(filepath.Join(root, file)))
	}
	return distinct(ids)
}

// Best is the first of names or ids, empty where there is none.
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

// word is the single word that a small file holds, else nothing.
func word(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const limit = 256
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	fields := strings.Fields(string(text))
	if err != nil || len(text) > limit || len(fields) != 1 {
		return ""
	}
	return fields[0]
}
