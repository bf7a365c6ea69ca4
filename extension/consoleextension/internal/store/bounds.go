// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/texts"
)

// The bounds of the data in memory, and so in the database. Programs and hosts choose the
// names in the data. Each comment names the data that is dropped at the bound.
const (
	maxUnits      = 10_000  // units that are gone, the longest gone first; if none is gone, new units
	maxConditions = 64      // of a unit: new conditions
	maxSeries     = 50_000  // of all units: new conditions
	maxStates     = 64      // policies of a unit: states that are gone, then new states
	maxHead       = 500_000 // not yet on disk: new readings
	maxSeriesHead = 128     // of one condition, not yet on disk: new readings

	maxUnitPeers = 64     // of a unit: new peers
	maxPeers     = 20_000 // of all units: new peers

	maxOpenings     = 10_000 // old baselines, then the oldest openings
	maxUnitOpenings = 1_000  // of a unit: its oldest
	maxRefusals     = 20_000 // the oldest
	maxUnitRefusals = 1_000  // of a unit: its oldest
	maxChanges      = 256    // of policies: the oldest
	maxThresholds   = 16     // of a condition in PolicySummary

	maxInstances     = 256    // the collector that was silent for longest
	maxMetrics       = 1_000  // of an instance: new metrics
	maxAllMetrics    = 50_000 // of all instances: new metrics
	maxStartLogs     = 64     // of an instance: new logs
	maxWarnings      = 128    // of an instance: the oldest
	maxLogAttributes = 16

	maxName          = 256     // bytes of a name: of a policy, a monitor, a metric, a reason
	maxText          = 1024    // bytes of another text
	maxAttributes    = 32      // of a resource
	maxResource      = 4 << 10 // bytes of the attributes of a resource
	maxResources     = 16 << 20
	maxListedChanges = 64 // policies in a change
)

// identity are the attributes that a resource keeps when there is no room for more.
var identity = []string{
	attr.ServiceName, attr.ServiceNamespace, attr.ContainerID, attr.NamespaceName, attr.PodName, attr.ContainerName,
	attr.ExecutableName, attr.PID, attr.HostName,
}

// cutText returns the beginning of a text as valid UTF-8. It takes at most n bytes of the
// text, and does not keep the rest in memory.
func cutText(s string, n int) string {
	return strings.ToValidUTF8(texts.Cut(s, n), "\uFFFD")
}

// boundAttributes returns at most n attributes with at most so many bytes. The attributes
// of identity come first, then the others by name. cut reports whether attributes are left
// out.
func boundAttributes(all map[string]string, n, bytes int) (kept map[string]string, size int, cut bool) {
	kept = make(map[string]string, min(len(all), n))
	keep := func(k, v string) {
		k, v = cutText(k, maxName), cutText(v, maxText)
		if _, ok := kept[k]; ok {
			return
		}
		if len(kept) >= n || size+len(k)+len(v) > bytes {
			cut = true
			return
		}
		kept[k] = v
		size += len(k) + len(v)
	}
	for _, k := range identity {
		if v, ok := all[k]; ok {
			keep(k, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		keep(k, all[k])
	}
	return kept, size, cut
}
