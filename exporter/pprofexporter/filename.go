// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"regexp"
	"strings"
	"time"
)

const (
	extension  = ".pb.gz"
	timeLayout = "20060102T150405Z"
)

// ours returns a regular expression for the names of this exporter's files. Such a name
// is a result of fileName, followed by an optional number and the extension.
func ours() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9._-]+_[A-Za-z0-9._-]+_[0-9]{8}T[0-9]{6}Z_[A-Za-z0-9._-]+_[A-Za-z0-9._-]+\.pb\.gz$`)
}

// fileName returns the name of a file without its extension. No argument can make
// the name refer to another directory. Together with the number and the extension,
// the name has at most 200 bytes.
func fileName(service, unit string, at time.Time, policy, profileType string) string {
	// The end of a unit's name is kept, because it is the most specific part of a path.
	return strings.Join([]string{
		head(safe(service), 60),
		tail(safe(unit), 64),
		at.UTC().Format(timeLayout),
		head(safe(policy), 24),
		head(safe(profileType), 16),
	}, "_")
}

// safe replaces every byte outside of [A-Za-z0-9._-]. The result is not empty. It begins
// neither with a dot, which would hide the file, nor with a dash, which would make the
// name look like an option.
func safe(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			b[i] = '-'
		}
	}
	if len(b) == 0 {
		return "unknown"
	}
	if b[0] == '.' || b[0] == '-' {
		b[0] = '_'
	}
	return string(b)
}

func head(s string, n int) string { return s[:min(n, len(s))] }

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
