// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// These constants bound a resource. Longer values are cut, and attributes with longer
// keys or beyond maxAttributes are dropped.
const (
	maxAttributes = 64
	maxKey        = 256
	maxValue      = 1024
)

const unknownService = "unknown_service:dotnet"

// parseAttributes parses a resource in the format of OTEL_RESOURCE_ATTRIBUTES, as the
// OpenTelemetry SDKs do. It ignores pairs without "=" or without a key, keeps invalid
// percent-encoding unchanged, and uses the last value of a repeated key. The attributes are
// sorted by key. bounded is the number of attributes that were cut or dropped because of a
// limit, or because of a control character in the key.
func parseAttributes(header string) (attributes []samples.Attribute, bounded int) {
	for pair := range strings.SplitSeq(header, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		key, keyCut := decoded(key, maxKey)
		value, valueCut := decoded(value, maxValue)
		if keyCut || strings.ContainsFunc(key, unicode.IsControl) {
			bounded++ // a cut key could be equal to another key
			continue
		}
		if key == "" {
			continue
		}
		if valueCut {
			bounded++
		}
		i, found := slices.BinarySearchFunc(attributes, key, func(a samples.Attribute, key string) int { return cmp.Compare(a.Key, key) })
		switch {
		case found:
			attributes[i].Value = value
		case len(attributes) >= maxAttributes:
			bounded++
		default:
			attributes = slices.Insert(attributes, i, samples.Attribute{Key: key, Value: value})
		}
	}
	return attributes, bounded
}

// decoded returns a percent-decoded word, cut to at most limit bytes.
func decoded(s string, limit int) (_ string, cut bool) {
	s = strings.TrimSpace(s)
	if d, err := url.PathUnescape(s); err == nil {
		s = d
	}
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= limit {
		return strings.Clone(s), false
	}
	return truncate.Cut(s, limit), true
}

// claimed reports whether an attribute of a sender is always removed. Over a Unix socket,
// the kernel provides the data about the process, the cgroup and the host. Over TCP, such
// data cannot be verified. Attributes that only cpu_trigger sets are never accepted.
func claimed(key string) bool {
	switch key {
	case attr.PID, attr.ParentPID, attr.VPID, attr.GroupLeaderPID, attr.SessionLeaderPID, attr.CreationTime, attr.Cgroup:
		return true
	}
	return strings.HasPrefix(key, "host.") || strings.HasPrefix(key, attr.Prefix)
}

// host contains the host's name and id.
type host struct{ name, id string }

// resourceOf returns the resource for a sender's profiles. who is nil over TCP.
func resourceOf(header string, who *processes.Identity, at host) (r *samples.Resource, bounded int) {
	attributes, bounded := parseAttributes(header)
	attributes = slices.DeleteFunc(attributes, func(a samples.Attribute) bool {
		return claimed(a.Key) || who != nil && (a.Key == attr.ContainerID || a.Key == attr.PodUID) || a.Key == attr.ServiceName && a.Value == ""
	})
	r = &samples.Resource{}
	add := func(key, value string) {
		if value != "" {
			attributes = append(attributes, samples.Attribute{Key: key, Value: value})
		}
	}
	if !slices.ContainsFunc(attributes, func(a samples.Attribute) bool { return a.Key == attr.ServiceName }) {
		add(attr.ServiceName, unknownService)
	}
	if who != nil {
		r.PID = who.PID
		attributes = append(attributes, samples.Attribute{Key: attr.PID, Value: int64(who.PID)})
		if !who.Started.IsZero() {
			add(attr.CreationTime, who.Started.Format(time.RFC3339Nano))
		}
		add(attr.Cgroup, who.Cgroup)
		add(attr.ContainerID, who.ContainerID)
		add(attr.PodUID, who.PodUID)
		add(attr.HostName, at.name)
		add(attr.HostID, at.id)
	}
	slices.SortFunc(attributes, func(a, b samples.Attribute) int { return cmp.Compare(a.Key, b.Key) })
	r.Attributes = slices.Clip(attributes)
	return r, bounded
}
